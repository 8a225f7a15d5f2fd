"""Remote data sets: reading through a local cache, and uploading."""

from episodes.storage.remote.upload import upload

__all__ = ["upload"]

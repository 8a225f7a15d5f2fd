"""Remote data sets: read through a local cache, and uploaded."""

from episodes.storage.remote.upload import upload

__all__ = ["upload"]

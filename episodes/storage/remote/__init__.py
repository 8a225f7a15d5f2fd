"""Data sets that lie elsewhere: read through a cache, and uploaded."""

from episodes.storage.remote.upload import upload

__all__ = ["upload"]

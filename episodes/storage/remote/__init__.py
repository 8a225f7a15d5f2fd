"""Data sets in remote storage, such as S3: read through a local cache, and uploaded."""

from __future__ import annotations

__all__: list[str] = []

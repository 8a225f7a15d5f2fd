"""Data sets in remote storage, such as S3: reading through a local cache, and uploading."""

from __future__ import annotations

__all__: list[str] = []

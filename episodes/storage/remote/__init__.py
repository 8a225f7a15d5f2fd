"""Remote data sets: reading through a local cache, and uploading."""

from __future__ import annotations

__all__: list[str] = []

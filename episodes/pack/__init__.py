"""Many episodes as one set of columns."""

from __future__ import annotations

from episodes.pack.history import PackHistory
from episodes.pack.pack import EpisodePack

__all__ = ["EpisodePack", "PackHistory"]

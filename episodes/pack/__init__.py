"""Many episodes as one set of columns."""

from __future__ import annotations

from episodes.pack.pack import EpisodePack
from episodes.pack.pack_history import PackHistory

__all__ = ["EpisodePack", "PackHistory"]

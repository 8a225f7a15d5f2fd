"""Packs: many episodes, whose observations, actions etc. are each stored in one array."""

from __future__ import annotations

from episodes.pack.pack import EpisodePack as EpisodePack
from episodes.pack.pack_history import PackHistory as PackHistory

__all__: list[str] = []

"""Packs: many finished episodes stored as few arrays, one for all observations, one for all actions, and so on."""

from __future__ import annotations

from episodes.pack.pack import EpisodePack as EpisodePack
from episodes.pack.pack_history import PackHistory as PackHistory

__all__: list[str] = []

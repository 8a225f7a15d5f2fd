"""Infos: one dict an observation, kept as they came."""

from __future__ import annotations

from episodes.tracks.infos.infos import Infos as Infos

__all__: list[str] = []

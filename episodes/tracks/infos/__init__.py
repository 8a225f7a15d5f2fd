"""Infos of finished episodes: one dict per observation, stored as typed columns."""

from __future__ import annotations

from episodes.tracks.infos.infos import Infos as Infos

__all__: list[str] = []

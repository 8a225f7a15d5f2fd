"""Info dicts of finished episodes, stored as typed columns instead of one dict per observation."""

from __future__ import annotations

from episodes.tracks.infos.infos import Infos as Infos

__all__: list[str] = []

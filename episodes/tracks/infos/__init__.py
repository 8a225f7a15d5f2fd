"""Storage of the info dicts of a finished episode: one typed array per key instead of one dict per observation."""

from __future__ import annotations

from episodes.tracks.infos.infos import Infos as Infos

__all__: list[str] = []

"""Storage of an episode's time series, such as its observations and rewards, as growing
lists or as read-only arrays."""

from __future__ import annotations

from episodes.tracks.track import ArrayTrack as ArrayTrack
from episodes.tracks.track import InfoTrack as InfoTrack
from episodes.tracks.track import ListTrack as ListTrack
from episodes.tracks.track import Track as Track
from episodes.tracks.tracks import Tracks as Tracks

__all__: list[str] = []

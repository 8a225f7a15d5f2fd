"""Tracks: the named time series of an episode, growing or finished, and all of them as one record."""

from __future__ import annotations

from episodes.tracks.track import ArrayTrack as ArrayTrack
from episodes.tracks.track import InfoTrack as InfoTrack
from episodes.tracks.track import ListTrack as ListTrack
from episodes.tracks.track import Track as Track
from episodes.tracks.tracks import Tracks as Tracks

__all__: list[str] = []

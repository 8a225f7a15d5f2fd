"""Tracks: the named time series of an episode, growing or finished, and all of them as one record."""

from __future__ import annotations

from episodes.tracks.track import ArrayTrack, InfoTrack, ListTrack, Track
from episodes.tracks.tracks import Tracks

__all__ = ["ArrayTrack", "InfoTrack", "ListTrack", "Track", "Tracks"]

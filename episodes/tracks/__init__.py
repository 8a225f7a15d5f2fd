"""A track: one named time series of an episode, growing or finished."""

from __future__ import annotations

from episodes.tracks.track import ArrayTrack, ListTrack

__all__ = ["ArrayTrack", "ListTrack"]

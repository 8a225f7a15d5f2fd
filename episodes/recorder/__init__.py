"""Recorders that turn vector steps into packs."""

from __future__ import annotations

from episodes.recorder.incoming import IncomingEpisodes
from episodes.recorder.ongoing import OngoingEpisodes
from episodes.recorder.recorder_history import RecorderHistory
from episodes.recorder.vector_recorder import VectorRecorder

__all__ = ["VectorRecorder", "OngoingEpisodes", "RecorderHistory", "IncomingEpisodes"]

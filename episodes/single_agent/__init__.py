"""One agent's episode."""

from __future__ import annotations

from episodes.single_agent.episode import SingleAgentEpisode
from episodes.single_agent.episodes_history import EpisodesHistory

__all__ = ["EpisodesHistory", "SingleAgentEpisode"]

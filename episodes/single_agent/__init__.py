"""One agent's episode."""

from __future__ import annotations

from episodes.single_agent.episode import SingleAgentEpisode

__all__ = ["SingleAgentEpisode"]

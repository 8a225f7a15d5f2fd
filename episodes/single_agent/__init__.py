"""`SingleAgentEpisode`: one agent's observations, actions and rewards, with getters, setters and state dicts."""

from __future__ import annotations

from episodes.single_agent.episode import SingleAgentEpisode as SingleAgentEpisode
from episodes.single_agent.episodes_history import EpisodesHistory as EpisodesHistory

__all__: list[str] = []

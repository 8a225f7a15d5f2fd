"""Episodes of several agents, each on a clock of its own."""

from __future__ import annotations

from episodes.multi_agent.episode import MultiAgentEpisode
from episodes.multi_agent.packing import pack_agents, unpack_agents

__all__ = ["MultiAgentEpisode", "pack_agents", "unpack_agents"]

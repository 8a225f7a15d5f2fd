"""Episodes of several agents in one environment, and their conversion to packs (many episodes in a few arrays)."""

from __future__ import annotations

from episodes.multi_agent.episode import MultiAgentEpisode as MultiAgentEpisode
from episodes.multi_agent.packing import pack_agents as pack_agents
from episodes.multi_agent.packing import unpack_agents as unpack_agents

__all__: list[str] = []

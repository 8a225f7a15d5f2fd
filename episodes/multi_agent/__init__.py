"""Multi-agent episodes, and their packs."""

from __future__ import annotations

from episodes.multi_agent.episode import MultiAgentEpisode as MultiAgentEpisode
from episodes.multi_agent.packing import pack_agents as pack_agents
from episodes.multi_agent.packing import unpack_agents as unpack_agents

__all__: list[str] = []

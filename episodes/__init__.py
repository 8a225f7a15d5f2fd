"""What happened: episodes, packs of them, how they are recorded, kept, moved and looked at. numpy only, never torch."""

from __future__ import annotations

from episodes.columns import DEFAULT_AGENT_ID, DEFAULT_MODULE_ID, Columns
from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode

__all__ = ["Columns", "DEFAULT_AGENT_ID", "DEFAULT_MODULE_ID", "EpisodePack", "SingleAgentEpisode"]

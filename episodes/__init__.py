"""What happened: episodes, packs of them, how they are recorded, kept, moved and looked at. numpy only, never torch."""

from __future__ import annotations

from episodes.batch import (
    ActStateBatch,
    Batch,
    BatchWithAdvantages,
    BatchWithReturns,
    DistBatch,
    ModelOutputBatch,
    ObsBatch,
    PrioBatch,
    RolloutBatch,
)
from episodes.columns import DEFAULT_AGENT_ID, DEFAULT_MODULE_ID, Columns
from episodes.errors import EpisodeError
from episodes.multi_agent import MultiAgentEpisode, pack_agents, unpack_agents
from episodes.pack import EpisodePack
from episodes.recorder import OngoingEpisodes, VectorRecorder
from episodes.returns import discounted_returns, gae, n_step_returns, vtrace
from episodes.single_agent import SingleAgentEpisode

__all__ = [
    "SingleAgentEpisode",
    "MultiAgentEpisode",
    "EpisodePack",
    "pack_agents",
    "unpack_agents",
    "VectorRecorder",
    "OngoingEpisodes",
    "Batch",
    "ObsBatch",
    "RolloutBatch",
    "BatchWithReturns",
    "BatchWithAdvantages",
    "ActStateBatch",
    "ModelOutputBatch",
    "DistBatch",
    "PrioBatch",
    "gae",
    "n_step_returns",
    "discounted_returns",
    "vtrace",
    "Columns",
    "DEFAULT_AGENT_ID",
    "DEFAULT_MODULE_ID",
    "EpisodeError",
]

"""Reinforcement learning episodes: recording, packs, replay, storage, transport and inspection. Without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from episodes.lazy_names import lazy_names

if TYPE_CHECKING:
    from episodes.batch import Batch
    from episodes.columns import DEFAULT_AGENT_ID, DEFAULT_MODULE_ID, Columns
    from episodes.multi_agent import MultiAgentEpisode, pack_agents, unpack_agents
    from episodes.pack import EpisodePack
    from episodes.recorder.vector_recorder import VectorRecorder
    from episodes.returns import discounted_returns, gae, n_step_returns, vtrace
    from episodes.single_agent import SingleAgentEpisode
    from episodes.tracks.policy_box import PolicyBox
    from episodes.tracks.ragged import Ragged, RaggedKind

__all__ = [
    "SingleAgentEpisode",
    "MultiAgentEpisode",
    "EpisodePack",
    "PolicyBox",
    "Ragged",
    "RaggedKind",
    "pack_agents",
    "unpack_agents",
    "VectorRecorder",
    "Batch",
    "gae",
    "n_step_returns",
    "discounted_returns",
    "vtrace",
    "Columns",
    "DEFAULT_AGENT_ID",
    "DEFAULT_MODULE_ID",
]

__version__ = "0.1.0"

# Names that are imported when first used, so that the command line starts quickly
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "ActStateBatch": "episodes.batch",
        "Batch": "episodes.batch",
        "BatchWithAdvantages": "episodes.batch",
        "BatchWithReturns": "episodes.batch",
        "Columns": "episodes.columns",
        "DEFAULT_AGENT_ID": "episodes.columns",
        "DEFAULT_MODULE_ID": "episodes.columns",
        "DistBatch": "episodes.batch",
        "EpisodePack": "episodes.pack",
        "ModelOutputBatch": "episodes.batch",
        "MultiAgentEpisode": "episodes.multi_agent",
        "ObsBatch": "episodes.batch",
        "PolicyBox": "episodes.tracks.policy_box",
        "PrioBatch": "episodes.batch",
        "Ragged": "episodes.tracks.ragged",
        "RaggedKind": "episodes.tracks.ragged",
        "RolloutBatch": "episodes.batch",
        "SingleAgentEpisode": "episodes.single_agent",
        "VectorRecorder": "episodes.recorder.vector_recorder",
        "discounted_returns": "episodes.returns",
        "gae": "episodes.returns",
        "n_step_returns": "episodes.returns",
        "pack_agents": "episodes.multi_agent",
        "unpack_agents": "episodes.multi_agent",
        "vtrace": "episodes.returns",
    },
)

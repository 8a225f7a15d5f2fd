"""What happened: episodes, packs of them, how they are recorded, kept, moved and looked at. numpy only, never torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode

if TYPE_CHECKING:
    from episodes.multi_agent import MultiAgentEpisode, pack_agents, unpack_agents
    from episodes.recorder import OngoingEpisodes, VectorRecorder
    from episodes.returns import discounted_returns, gae, n_step_returns, vtrace

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

_LATER = {  # imported when somebody asks: half of what importing all of it takes
    "MultiAgentEpisode": "episodes.multi_agent",
    "pack_agents": "episodes.multi_agent",
    "unpack_agents": "episodes.multi_agent",
    "VectorRecorder": "episodes.recorder",
    "OngoingEpisodes": "episodes.recorder",
    "gae": "episodes.returns",
    "n_step_returns": "episodes.returns",
    "discounted_returns": "episodes.returns",
    "vtrace": "episodes.returns",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(_LATER[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

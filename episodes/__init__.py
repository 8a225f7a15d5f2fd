"""What happened: episodes, packs of them, how they are recorded, kept, moved and looked at. numpy only, never torch."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from episodes.batch import Batch
    from episodes.columns import DEFAULT_AGENT_ID, DEFAULT_MODULE_ID, Columns
    from episodes.errors import EpisodeError
    from episodes.multi_agent import MultiAgentEpisode, pack_agents, unpack_agents
    from episodes.pack import EpisodePack
    from episodes.recorder import OngoingEpisodes, VectorRecorder
    from episodes.returns import discounted_returns, gae, n_step_returns, vtrace
    from episodes.single_agent import SingleAgentEpisode
    from episodes.tracks.policy_box import PolicyBox

__all__ = [
    "SingleAgentEpisode",
    "MultiAgentEpisode",
    "EpisodePack",
    "PolicyBox",
    "pack_agents",
    "unpack_agents",
    "VectorRecorder",
    "OngoingEpisodes",
    "Batch",
    "gae",
    "n_step_returns",
    "discounted_returns",
    "vtrace",
    "Columns",
    "DEFAULT_AGENT_ID",
    "DEFAULT_MODULE_ID",
    "EpisodeError",
]

_HOMES = {  # of names that are imported when first used, so that the command line starts quickly
    "ActStateBatch": "episodes.batch",
    "Batch": "episodes.batch",
    "BatchWithAdvantages": "episodes.batch",
    "BatchWithReturns": "episodes.batch",
    "Columns": "episodes.columns",
    "DEFAULT_AGENT_ID": "episodes.columns",
    "DEFAULT_MODULE_ID": "episodes.columns",
    "DistBatch": "episodes.batch",
    "EpisodeError": "episodes.errors",
    "EpisodePack": "episodes.pack",
    "ModelOutputBatch": "episodes.batch",
    "MultiAgentEpisode": "episodes.multi_agent",
    "ObsBatch": "episodes.batch",
    "OngoingEpisodes": "episodes.recorder",
    "PolicyBox": "episodes.tracks.policy_box",
    "PrioBatch": "episodes.batch",
    "RolloutBatch": "episodes.batch",
    "SingleAgentEpisode": "episodes.single_agent",
    "VectorRecorder": "episodes.recorder",
    "discounted_returns": "episodes.returns",
    "gae": "episodes.returns",
    "n_step_returns": "episodes.returns",
    "pack_agents": "episodes.multi_agent",
    "unpack_agents": "episodes.multi_agent",
    "vtrace": "episodes.returns",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        globals()[name] = value = getattr(import_module(_HOMES[name]), name)
        return value
    if not name.startswith("_") and find_spec(f"{__name__}.{name}"):  # `import episodes` gives `episodes.errors` too
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

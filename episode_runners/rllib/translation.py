"""Translation of RLlib's connectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from connectors.connector import Connector
from connectors.env_to_module import FlattenObservations, FrameStacking, MeanStdFilter, PrevActionsPrevRewards

__all__ = ["acting_pieces"]

# Connectors that RLlib adds by itself. The pipelines of this library do the same.
DEFAULTS = frozenset(
    {
        "AddColumnsFromEpisodesToTrainBatch",
        "AddObservationsFromEpisodesToBatch",
        "AddOneTsToEpisodesAndTruncate",
        "AddStatesFromEpisodesToBatch",
        "AddTimeDimToBatchAndZeroPad",
        "AgentToModuleMapping",
        "BatchIndividualItems",
        "GetActions",
        "ListifyDataForVectorEnv",
        "ModuleToAgentUnmapping",
        "NormalizeAndClipActions",
        "NumpyToTensor",
        "RemoveSingleTsTimeRankFromBatch",
        "TensorToNumpy",
        "UnBatchToIndividualItems",
    }
)

TRANSLATIONS: dict[str, Callable[[Any], Connector]] = {
    "MeanStdFilter": lambda connector: MeanStdFilter(),
    "FlattenObservations": lambda connector: FlattenObservations(),
    "FrameStackingEnvToModule": lambda connector: FrameStacking(num_frames=connector.num_frames),
    "PrevActionsPrevRewards": lambda connector: PrevActionsPrevRewards(
        n_prev_actions=connector.n_prev_actions, n_prev_rewards=connector.n_prev_rewards
    ),
}


def acting_pieces(pipeline: Any) -> list[Connector]:
    """Return translations of the user's connectors in RLlib's pipeline `pipeline`."""
    return [translated(connector) for connector in pipeline.connectors if type(connector).__name__ not in DEFAULTS]


def translated(connector: Any) -> Connector:
    """Return the connector of this library for one of RLlib's."""
    return TRANSLATIONS[type(connector).__name__](connector)

"""Connectors from recorded episodes to a train batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from connectors.learner.add_columns import AddColumns
from connectors.learner.add_infos import AddInfos, AddInfosFromEpisodesToTrainBatch
from connectors.learner.add_next_observations import AddNextObservations
from connectors.learner.add_observations import AddObservations
from connectors.learner.add_policy_versions import AddPolicyVersions
from connectors.learner.add_states import AddStates
from connectors.learner.add_time_dimension_and_zero_pad import AddTimeDimensionAndZeroPad
from connectors.learner.compute_returns_to_go import ComputeReturnsToGo
from connectors.learner.generalized_advantage_estimation import GeneralizedAdvantageEstimation
from connectors.learner.hindsight_relabel import HindsightRelabel
from connectors.learner.normalize_rewards import NormalizeRewards
from connectors.learner.pipeline import LearnerPipeline
from connectors.learner.token_columns import TokenColumns
from connectors.learner.v_trace import VTrace
from connectors.views.frame_stacking import FrameStacking
from episodes.lazy_names import lazy_names

if TYPE_CHECKING:
    from connectors.learner.episodes_to_rollout_buffer import EpisodesToRolloutBuffer

__all__ = [
    "AddColumns",
    "AddInfos",
    "AddNextObservations",
    "AddObservations",
    "AddPolicyVersions",
    "AddStates",
    "AddTimeDimensionAndZeroPad",
    "ComputeReturnsToGo",
    "EpisodesToRolloutBuffer",
    "GeneralizedAdvantageEstimation",
    "HindsightRelabel",
    "LearnerPipeline",
    "NormalizeRewards",
    "TokenColumns",
    "VTrace",
    "AddColumnsFromEpisodesToTrainBatch",
    "AddInfosFromEpisodesToTrainBatch",
    "AddNextObservationsFromEpisodesToTrainBatch",
    "AddObservationsFromEpisodesToBatch",
    "AddStatesFromEpisodesToBatch",
    "AddTimeDimToBatchAndZeroPad",
    "FrameStackingLearner",
    "GeneralAdvantageEstimation",
    "LearnerConnectorPipeline",
]

# The names that RLlib has for them.
AddColumnsFromEpisodesToTrainBatch = AddColumns
AddNextObservationsFromEpisodesToTrainBatch = AddNextObservations
AddObservationsFromEpisodesToBatch = AddObservations
AddStatesFromEpisodesToBatch = AddStates
AddTimeDimToBatchAndZeroPad = AddTimeDimensionAndZeroPad
FrameStackingLearner = FrameStacking
GeneralAdvantageEstimation = GeneralizedAdvantageEstimation
LearnerConnectorPipeline = LearnerPipeline

# tensordict is slow to import.
__getattr__, __dir__ = lazy_names(
    __name__, {"EpisodesToRolloutBuffer": "connectors.learner.episodes_to_rollout_buffer"}
)

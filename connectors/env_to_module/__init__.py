"""From ongoing episodes to the policy's input."""

from __future__ import annotations

from connectors.agent_to_module_mapping import AgentToModuleMapping
from connectors.batch_items import BatchItems
from connectors.env_to_module.add_observations import AddObservations
from connectors.env_to_module.add_states import AddStates
from connectors.env_to_module.add_time_dimension import AddTimeDimension
from connectors.env_to_module.pipeline import EnvToModulePipeline, env_to_module_pipeline
from connectors.rewriting import MeanStdFilter, MultiAgentObservationPreprocessor, ObservationPreprocessor
from connectors.rewriting.for_each_agent import ForEachAgent
from connectors.tensors import NumpyToTensor
from connectors.views.flatten import FlattenObservations
from connectors.views.frame_stacking import FrameStacking
from connectors.views.previous_steps import PrevActionsPrevRewards

__all__ = [
    "AddObservations",
    "AddStates",
    "AddTimeDimension",
    "AgentToModuleMapping",
    "BatchItems",
    "EnvToModulePipeline",
    "FlattenObservations",
    "ForEachAgent",
    "FrameStacking",
    "MeanStdFilter",
    "MultiAgentObservationPreprocessor",
    "NumpyToTensor",
    "ObservationPreprocessor",
    "PrevActionsPrevRewards",
    "env_to_module_pipeline",
    "AddObservationsFromEpisodesToBatch",
    "AddStatesFromEpisodesToBatch",
    "AddTimeDimToBatchAndZeroPad",
    "BatchIndividualItems",
    "FrameStackingEnvToModule",
    "SingleAgentObservationPreprocessor",
]

# The names that RLlib has for them.
AddObservationsFromEpisodesToBatch = AddObservations
AddStatesFromEpisodesToBatch = AddStates
AddTimeDimToBatchAndZeroPad = AddTimeDimension
BatchIndividualItems = BatchItems
FrameStackingEnvToModule = FrameStacking
SingleAgentObservationPreprocessor = ObservationPreprocessor

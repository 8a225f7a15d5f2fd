"""Connectors and pipeline that compute the policy's input batch from ongoing episodes, while acting."""

from __future__ import annotations

from connectors.env_to_module.add_observations import AddObservations
from connectors.env_to_module.add_states import AddStates
from connectors.env_to_module.add_time_dimension import AddTimeDimension
from connectors.env_to_module.pipeline import EnvToModulePipeline
from connectors.rewriting.for_each_agent import ForEachAgent
from connectors.rewriting.mean_std_filter import MeanStdFilter
from connectors.rewriting.multi_agent_preprocessor import MultiAgentObservationPreprocessor
from connectors.rewriting.observation_preprocessor import ObservationPreprocessor
from connectors.views.agent_id import OneHotAgentId
from connectors.views.flatten import FlattenObservations
from connectors.views.frame_stacking import FrameStacking
from connectors.views.normalize_observations import NormalizeObservations
from connectors.views.previous_steps import PrevActionsPrevRewards
from connectors.views.time_steps import time_steps
from connectors.views.transformer_context import TransformerContext

__all__ = [
    "AddObservations",
    "AddStates",
    "AddTimeDimension",
    "EnvToModulePipeline",
    "FlattenObservations",
    "ForEachAgent",
    "FrameStacking",
    "MeanStdFilter",
    "MultiAgentObservationPreprocessor",
    "NormalizeObservations",
    "ObservationPreprocessor",
    "OneHotAgentId",
    "PrevActionsPrevRewards",
    "TransformerContext",
    "time_steps",
    "AddObservationsFromEpisodesToBatch",
    "AddStatesFromEpisodesToBatch",
    "AddTimeDimToBatchAndZeroPad",
    "FrameStackingEnvToModule",
    "SingleAgentObservationPreprocessor",
]

# The names that RLlib has for them.
AddObservationsFromEpisodesToBatch = AddObservations
AddStatesFromEpisodesToBatch = AddStates
AddTimeDimToBatchAndZeroPad = AddTimeDimension
FrameStackingEnvToModule = FrameStacking
SingleAgentObservationPreprocessor = ObservationPreprocessor

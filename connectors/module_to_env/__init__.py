"""Connectors and pipeline that convert a policy's outputs to actions for the environments."""

from __future__ import annotations

from connectors.module_to_env.get_actions import GetActions
from connectors.module_to_env.listify_for_vector_env import ListifyForVectorEnv
from connectors.module_to_env.module_to_agent_unmapping import ModuleToAgentUnmapping
from connectors.module_to_env.normalize_and_clip_actions import NormalizeAndClipActions
from connectors.module_to_env.pipeline import ModuleToEnvPipeline
from connectors.module_to_env.remove_time_dimension import RemoveTimeDimension
from connectors.module_to_env.tensor_to_numpy import TensorToNumpy
from connectors.module_to_env.unbatch_items import UnbatchItems

__all__ = [
    "GetActions",
    "ListifyForVectorEnv",
    "ModuleToAgentUnmapping",
    "ModuleToEnvPipeline",
    "NormalizeAndClipActions",
    "RemoveTimeDimension",
    "TensorToNumpy",
    "UnbatchItems",
    "ListifyDataForVectorEnv",
    "RemoveSingleTsTimeRankFromBatch",
    "UnBatchToIndividualItems",
]

# The names that RLlib has for them.
ListifyDataForVectorEnv = ListifyForVectorEnv
RemoveSingleTsTimeRankFromBatch = RemoveTimeDimension
UnBatchToIndividualItems = UnbatchItems

"""From ongoing episodes to the policy's input."""

from __future__ import annotations

from connectors.batch_items import BatchItems
from connectors.env_to_module.add_observations import AddObservations
from connectors.env_to_module.pipeline import EnvToModulePipeline, env_to_module_pipeline
from connectors.numpy_to_tensor import NumpyToTensor

__all__ = [
    "AddObservations",
    "BatchItems",
    "EnvToModulePipeline",
    "NumpyToTensor",
    "env_to_module_pipeline",
]

"""Episodes into batches, batches into tensors, model outputs into actions."""

from __future__ import annotations

from connectors.connector import Connector
from connectors.distributions import ActionDistribution, distribution_for
from connectors.env_to_module import EnvToModulePipeline, env_to_module_pipeline
from connectors.learner import LearnerPipeline, learner_pipeline
from connectors.module_to_env import ModuleToEnvPipeline, module_to_env_pipeline
from connectors.pipeline import ConnectorPipeline
from connectors.rewriter import ObservationRewriter
from connectors.trace import Trace

__all__ = [
    "ActionDistribution",
    "Connector",
    "ConnectorPipeline",
    "EnvToModulePipeline",
    "LearnerPipeline",
    "ModuleToEnvPipeline",
    "ObservationRewriter",
    "Trace",
    "distribution_for",
    "env_to_module_pipeline",
    "learner_pipeline",
    "module_to_env_pipeline",
]

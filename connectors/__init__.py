"""Episodes into batches, batches into tensors, model outputs into actions."""

from __future__ import annotations

from connectors.agent_to_module_mapping import AgentToModuleMapping
from connectors.connector import Connector
from connectors.distributions import ActionDistribution, distribution_for
from connectors.env_to_module import EnvToModulePipeline, env_to_module_pipeline
from connectors.learner import LearnerPipeline, learner_pipeline
from connectors.module_to_env import ModuleToEnvPipeline, module_to_env_pipeline
from connectors.multi_agent_pipelines import (
    MultiAgentEnvToModule,
    MultiAgentLearner,
    MultiAgentModuleToEnv,
    multi_agent_env_to_module,
    multi_agent_learner,
    multi_agent_module_to_env,
)
from connectors.pipeline import ConnectorPipeline
from connectors.rewriter import ObservationRewriter
from connectors.trace import Trace

__all__ = [
    "ActionDistribution",
    "AgentToModuleMapping",
    "Connector",
    "ConnectorPipeline",
    "EnvToModulePipeline",
    "LearnerPipeline",
    "ModuleToEnvPipeline",
    "MultiAgentEnvToModule",
    "MultiAgentLearner",
    "MultiAgentModuleToEnv",
    "ObservationRewriter",
    "Trace",
    "distribution_for",
    "env_to_module_pipeline",
    "learner_pipeline",
    "module_to_env_pipeline",
    "multi_agent_env_to_module",
    "multi_agent_learner",
    "multi_agent_module_to_env",
]

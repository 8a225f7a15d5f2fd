"""Connector pipelines: from episodes to batches of tensors, and from a policy's outputs to actions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl_episodes import check_packages

check_packages("episodes")  # a user's package of the same name may be found first

from connectors.actor import Actor, compute_action
from connectors.agent_to_module_mapping import AgentToModuleMapping
from connectors.batch_items import BatchItems
from connectors.connector import Connector
from connectors.distributions import ActionDistribution, distribution_for
from connectors.env_to_module.pipeline import env_to_module_pipeline
from connectors.episode_explanation import compare_policies, explain_episode
from connectors.learner.pipeline import learner_pipeline
from connectors.module_to_env.pipeline import module_to_env_pipeline
from connectors.multi_agent_pipelines import (
    MultiAgentEnvToModule,
    MultiAgentLearner,
    MultiAgentModuleToEnv,
    multi_agent_env_to_module,
    multi_agent_learner,
    multi_agent_module_to_env,
)
from connectors.pipeline import ConnectorPipeline
from connectors.policy import Policy
from connectors.rewriting.rewriter import ObservationRewriter
from connectors.tensors import NumpyToTensor
from episodes.lazy_names import lazy_names

if TYPE_CHECKING:
    from connectors.rollout.buffer import RolloutBuffer, add_advantages, iterate_minibatches
    from connectors.rollout.episodes import BlockEdge, rollout_to_episodes

__all__ = [
    "ActionDistribution",
    "Actor",
    "AgentToModuleMapping",
    "BatchItems",
    "BlockEdge",
    "Connector",
    "ConnectorPipeline",
    "MultiAgentEnvToModule",
    "MultiAgentLearner",
    "MultiAgentModuleToEnv",
    "NumpyToTensor",
    "ObservationRewriter",
    "Policy",
    "RolloutBuffer",
    "add_advantages",
    "compute_action",
    "distribution_for",
    "env_to_module_pipeline",
    "explain_episode",
    "compare_policies",
    "iterate_minibatches",
    "learner_pipeline",
    "module_to_env_pipeline",
    "multi_agent_env_to_module",
    "multi_agent_learner",
    "multi_agent_module_to_env",
    "rollout_to_episodes",
    "BatchIndividualItems",
    "ConnectorPipelineV2",
    "ConnectorV2",
]

# The names that RLlib has for them.
BatchIndividualItems = BatchItems
ConnectorPipelineV2 = ConnectorPipeline
ConnectorV2 = Connector

# Names that are imported when first used, because tensordict is slow to import
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "BlockEdge": "connectors.rollout.episodes",
        "RolloutBuffer": "connectors.rollout.buffer",
        "add_advantages": "connectors.rollout.buffer",
        "iterate_minibatches": "connectors.rollout.buffer",
        "rollout_to_episodes": "connectors.rollout.episodes",
    },
)

"""Algorithms, policies and trainers that learn from episodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl_episodes import check_packages

check_packages("episodes", "connectors", "episode_runners")  # a user's package of the same name may be found first

from episodes.lazy_names import lazy_names

if TYPE_CHECKING:
    from episode_learners.algorithms.algorithm import Algorithm, linear_decay
    from episode_learners.algorithms.bc import BC, BCConfig
    from episode_learners.algorithms.continuous_cql import ContinuousCQL, ContinuousCQLConfig
    from episode_learners.algorithms.cql import CQL, CQLConfig
    from episode_learners.algorithms.dqn import DQN, DQNConfig
    from episode_learners.algorithms.flat_optimizer import FlatOptimizer
    from episode_learners.algorithms.grpo import GRPO, GRPOConfig
    from episode_learners.algorithms.impala import IMPALA, IMPALAConfig
    from episode_learners.algorithms.ppo import PPO, PPOConfig, ppo_pipeline
    from episode_learners.algorithms.r2d2 import R2D2, R2D2Config
    from episode_learners.algorithms.sac import SAC, SACConfig
    from episode_learners.algorithms.target_network import TargetNetwork
    from episode_learners.algorithms.token_grpo import TokenGRPO, TokenGRPOConfig
    from episode_learners.data_parallel import data_parallel
    from episode_learners.league import League
    from episode_learners.multi_agent import MultiAgentAlgorithm
    from episode_learners.policies.actor_critic import EncoderPolicy, MLPPolicy, TransformerPolicy
    from episode_learners.policies.policy import Policy
    from episode_learners.policies.q_policies import LSTMQPolicy, QPolicy
    from episode_learners.policies.recurrent import GRUPolicy, LSTMPolicy
    from episode_learners.policies.soft_actor_critic import SACPolicy

__all__ = [
    "BC",
    "CQL",
    "DQN",
    "GRPO",
    "IMPALA",
    "PPO",
    "R2D2",
    "SAC",
    "Algorithm",
    "BCConfig",
    "CQLConfig",
    "ContinuousCQL",
    "ContinuousCQLConfig",
    "DQNConfig",
    "EncoderPolicy",
    "FlatOptimizer",
    "GRPOConfig",
    "GRUPolicy",
    "IMPALAConfig",
    "LSTMPolicy",
    "LSTMQPolicy",
    "League",
    "MLPPolicy",
    "MultiAgentAlgorithm",
    "PPOConfig",
    "Policy",
    "QPolicy",
    "R2D2Config",
    "SACConfig",
    "SACPolicy",
    "TargetNetwork",
    "TokenGRPO",
    "TokenGRPOConfig",
    "TransformerPolicy",
    "data_parallel",
    "linear_decay",
    "ppo_pipeline",
]

# Names that are imported when first used, because torch is slow to import
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Algorithm": "episode_learners.algorithms.algorithm",
        "BC": "episode_learners.algorithms.bc",
        "BCConfig": "episode_learners.algorithms.bc",
        "CQL": "episode_learners.algorithms.cql",
        "CQLConfig": "episode_learners.algorithms.cql",
        "ContinuousCQL": "episode_learners.algorithms.continuous_cql",
        "ContinuousCQLConfig": "episode_learners.algorithms.continuous_cql",
        "DQN": "episode_learners.algorithms.dqn",
        "DQNConfig": "episode_learners.algorithms.dqn",
        "EncoderPolicy": "episode_learners.policies.actor_critic",
        "FlatOptimizer": "episode_learners.algorithms.flat_optimizer",
        "GRPO": "episode_learners.algorithms.grpo",
        "GRPOConfig": "episode_learners.algorithms.grpo",
        "GRUPolicy": "episode_learners.policies.recurrent",
        "IMPALA": "episode_learners.algorithms.impala",
        "IMPALAConfig": "episode_learners.algorithms.impala",
        "LSTMPolicy": "episode_learners.policies.recurrent",
        "LSTMQPolicy": "episode_learners.policies.q_policies",
        "League": "episode_learners.league",
        "MLPPolicy": "episode_learners.policies.actor_critic",
        "MultiAgentAlgorithm": "episode_learners.multi_agent",
        "PPO": "episode_learners.algorithms.ppo",
        "PPOConfig": "episode_learners.algorithms.ppo",
        "Policy": "episode_learners.policies.policy",
        "QPolicy": "episode_learners.policies.q_policies",
        "R2D2": "episode_learners.algorithms.r2d2",
        "R2D2Config": "episode_learners.algorithms.r2d2",
        "SAC": "episode_learners.algorithms.sac",
        "SACConfig": "episode_learners.algorithms.sac",
        "SACPolicy": "episode_learners.policies.soft_actor_critic",
        "TargetNetwork": "episode_learners.algorithms.target_network",
        "TokenGRPO": "episode_learners.algorithms.token_grpo",
        "TokenGRPOConfig": "episode_learners.algorithms.token_grpo",
        "TransformerPolicy": "episode_learners.policies.actor_critic",
        "data_parallel": "episode_learners.data_parallel",
        "linear_decay": "episode_learners.algorithms.algorithm",
        "ppo_pipeline": "episode_learners.algorithms.ppo",
    },
)

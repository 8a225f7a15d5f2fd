"""Algorithms, one per file, with their optimizers and target networks."""

from __future__ import annotations

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
    "FlatOptimizer",
    "GRPOConfig",
    "IMPALAConfig",
    "PPOConfig",
    "R2D2Config",
    "SACConfig",
    "TargetNetwork",
    "linear_decay",
    "ppo_pipeline",
]

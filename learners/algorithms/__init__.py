"""What makes a policy better: one algorithm a file, on optimizers and target networks that they share."""

from __future__ import annotations

from learners.algorithms.algorithm import Algorithm, linear_decay
from learners.algorithms.bc import BC, BCConfig
from learners.algorithms.continuous_cql import ContinuousCQL, ContinuousCQLConfig
from learners.algorithms.cql import CQL, CQLConfig
from learners.algorithms.dqn import DQN, DQNConfig
from learners.algorithms.flat_optimizer import FlatOptimizer
from learners.algorithms.grpo import GRPO, GRPOConfig
from learners.algorithms.impala import IMPALA, IMPALAConfig
from learners.algorithms.ppo import PPO, PPOConfig, ppo_pipeline
from learners.algorithms.r2d2 import R2D2, R2D2Config
from learners.algorithms.sac import SAC, SACConfig
from learners.algorithms.target_network import TargetNetwork

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

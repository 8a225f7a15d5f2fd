"""What makes a policy better: one algorithm a file, on optimizers and target networks that they share."""

from __future__ import annotations

from learners.algorithms.algorithm import Algorithm, linear_decay
from learners.algorithms.bc import BC, BCConfig
from learners.algorithms.cql import CQL, CQLConfig
from learners.algorithms.dqn import DQN, DQNConfig
from learners.algorithms.flat_optimizer import FlatOptimizer
from learners.algorithms.ppo import PPO, PPOConfig, ppo_pipeline
from learners.algorithms.sac import SAC, SACConfig
from learners.algorithms.target_network import TargetNetwork

__all__ = [
    "BC",
    "CQL",
    "DQN",
    "PPO",
    "SAC",
    "Algorithm",
    "BCConfig",
    "CQLConfig",
    "DQNConfig",
    "FlatOptimizer",
    "PPOConfig",
    "SACConfig",
    "TargetNetwork",
    "linear_decay",
    "ppo_pipeline",
]

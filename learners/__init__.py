"""Batches in, better policies out."""

from __future__ import annotations

from learners.algorithms import (
    BC,
    CQL,
    DQN,
    SAC,
    Algorithm,
    BCConfig,
    CQLConfig,
    DQNConfig,
    FlatOptimizer,
    SACConfig,
    TargetNetwork,
    linear_decay,
)
from learners.algorithms.ppo import PPO, PPOConfig, ppo_pipeline
from learners.history import EpisodeHistory
from learners.multi_agent import MultiAgentAlgorithm
from learners.policies import LSTMPolicy, MLPPolicy, Policy, QPolicy, SACPolicy

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
    "EpisodeHistory",
    "FlatOptimizer",
    "LSTMPolicy",
    "MLPPolicy",
    "MultiAgentAlgorithm",
    "PPOConfig",
    "Policy",
    "QPolicy",
    "SACConfig",
    "SACPolicy",
    "TargetNetwork",
    "linear_decay",
    "ppo_pipeline",
]

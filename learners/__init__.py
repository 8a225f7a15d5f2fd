"""Batches in, better policies out."""

from __future__ import annotations

from learners.algorithms import (
    BC,
    CQL,
    DQN,
    GRPO,
    IMPALA,
    PPO,
    R2D2,
    SAC,
    Algorithm,
    BCConfig,
    CQLConfig,
    DQNConfig,
    FlatOptimizer,
    GRPOConfig,
    IMPALAConfig,
    PPOConfig,
    R2D2Config,
    SACConfig,
    TargetNetwork,
    linear_decay,
    ppo_pipeline,
)
from learners.history import EpisodeHistory
from learners.multi_agent import MultiAgentAlgorithm
from learners.policies import LSTMPolicy, LSTMQPolicy, MLPPolicy, Policy, QPolicy, SACPolicy

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
    "DQNConfig",
    "EpisodeHistory",
    "FlatOptimizer",
    "GRPOConfig",
    "IMPALAConfig",
    "LSTMPolicy",
    "LSTMQPolicy",
    "MLPPolicy",
    "MultiAgentAlgorithm",
    "PPOConfig",
    "Policy",
    "QPolicy",
    "R2D2Config",
    "SACConfig",
    "SACPolicy",
    "TargetNetwork",
    "linear_decay",
    "ppo_pipeline",
]

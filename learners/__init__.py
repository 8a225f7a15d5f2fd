"""Batches in, better policies out."""

from __future__ import annotations

from learners.algorithms import Algorithm, FlatOptimizer, TargetNetwork, linear_decay
from learners.algorithms.ppo import PPO, PPOConfig, ppo_pipeline
from learners.history import EpisodeHistory
from learners.multi_agent import MultiAgentAlgorithm
from learners.policy import LSTMPolicy, MLPPolicy, Policy

__all__ = [
    "PPO",
    "Algorithm",
    "EpisodeHistory",
    "FlatOptimizer",
    "LSTMPolicy",
    "MLPPolicy",
    "MultiAgentAlgorithm",
    "PPOConfig",
    "Policy",
    "TargetNetwork",
    "linear_decay",
    "ppo_pipeline",
]

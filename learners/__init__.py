"""Batches in, better policies out."""

from __future__ import annotations

from learners.algorithm import Algorithm, linear_decay
from learners.history import EpisodeHistory
from learners.multi_agent import MultiAgentAlgorithm
from learners.policy import LSTMPolicy, MLPPolicy, Policy
from learners.ppo import PPO, PPOConfig, ppo_pipeline

__all__ = [
    "PPO",
    "Algorithm",
    "EpisodeHistory",
    "LSTMPolicy",
    "MLPPolicy",
    "MultiAgentAlgorithm",
    "PPOConfig",
    "Policy",
    "linear_decay",
    "ppo_pipeline",
]

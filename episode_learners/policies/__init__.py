"""Policies: from a batch of observations to action distributions, values and other outputs."""

from __future__ import annotations

from episode_learners.policies.actor_critic import EncoderPolicy, MLPPolicy, TransformerPolicy
from episode_learners.policies.policy import Policy
from episode_learners.policies.q_policies import LSTMQPolicy, QPolicy
from episode_learners.policies.recurrent import GRUPolicy, LSTMPolicy, RecurrentPolicy
from episode_learners.policies.soft_actor_critic import SACPolicy

__all__ = [
    "EncoderPolicy",
    "GRUPolicy",
    "LSTMPolicy",
    "LSTMQPolicy",
    "MLPPolicy",
    "Policy",
    "QPolicy",
    "RecurrentPolicy",
    "SACPolicy",
    "TransformerPolicy",
]

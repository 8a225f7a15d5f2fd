"""What turns a batch of observations into action distributions, values and whatever else an algorithm learns from."""

from __future__ import annotations

from learners.policies.action_values import LSTMQPolicy, QPolicy
from learners.policies.actor_critic import EncoderPolicy, MLPPolicy, TransformerPolicy
from learners.policies.policy import Policy
from learners.policies.recurrent import GRUPolicy, LSTMPolicy, RecurrentPolicy
from learners.policies.soft_actor_critic import SACPolicy

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

"""Neural networks for policies: encoders, heads, recurrent and attention layers."""

from __future__ import annotations

from episode_learners.networks.autoregressive import Autoregressive
from episode_learners.networks.context import ContextEncoder
from episode_learners.networks.encoders import encoder_for
from episode_learners.networks.recurrent_encoders import GRUMemory, LSTMMemory

__all__ = [
    "Autoregressive",
    "ContextEncoder",
    "GRUMemory",
    "LSTMMemory",
    "encoder_for",
]

"""Networks: what policies are made of, and what a policy of your own may be made of."""

from __future__ import annotations

from learners.networks.autoregressive import Autoregressive
from learners.networks.context import ContextEncoder
from learners.networks.encoders import encoder_for
from learners.networks.heads import action_head
from learners.networks.layers import Perceptron, hidden_layers, linear
from learners.networks.memory import GRUMemory, LSTMMemory

__all__ = [
    "Autoregressive",
    "ContextEncoder",
    "GRUMemory",
    "LSTMMemory",
    "Perceptron",
    "action_head",
    "encoder_for",
    "hidden_layers",
    "linear",
]

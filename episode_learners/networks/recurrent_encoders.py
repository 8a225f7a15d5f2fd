"""Recurrent encoders: an encoder of single observations, followed by an LSTM or GRU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from episode_learners.networks.encoders import encoder_for

__all__ = ["GRUMemory", "LSTMMemory", "Memory"]

State = dict[str, Tensor]


class Memory(nn.Module, ABC):
    """Base class of recurrent encoders, which map sequences of observations [B, T, ...] to features
    [B, T, num_features].

    Args:
        space: space of the observations.
        hidden_sizes: sizes of the encoder's hidden layers.
        state_size: size of the recurrent state, and number of features.
        activation: class of the encoder's activations.
        generator: random generator of the initial weights.
    """

    def __init__(
        self,
        space: gym.Space,
        hidden_sizes: Sequence[int] = (64,),
        state_size: int = 64,
        activation: type[nn.Module] = nn.Tanh,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.num_features, self.has_layers = state_size, bool(hidden_sizes)
        self.encoder = encoder_for(space, hidden_sizes, activation, generator)
        self.cell = self.make_cell(self.encoder.num_features)
        for name, parameter in self.cell.named_parameters():
            if name.startswith("weight"):
                nn.init.orthogonal_(parameter, generator=generator)
            else:
                nn.init.zeros_(parameter)

    @abstractmethod
    def make_cell(self, num_in: int) -> nn.RNNBase:
        """Return the recurrent layer, such as an LSTM, with `num_in` inputs and `num_features` outputs."""

    @abstractmethod
    def unroll(self, features: Tensor, state: Mapping[str, Tensor]) -> tuple[Tensor, State]:
        """Run the recurrent layer over features [B, T, ...] from the states [B, ...], and return the outputs
        [B, T, num_features] and the last states [B, ...].
        """

    @abstractmethod
    def initial_state(self) -> dict[str, np.ndarray]:
        """Return the recurrent state at the start of an episode: a dict of arrays of zeros, without a batch axis."""

    def forward(self, obs: Any, state: Mapping[str, Tensor]) -> tuple[Tensor, State]:
        """Return features [B, T, num_features] of observations [B, T, ...], and the last recurrent states [B, ...],
        given the initial states.
        """
        features = self.encoder(obs)
        if not self.has_layers:  # which would have made them of the weights' dtype
            features = features.to(self.cell.weight_ih_l0.dtype)  # type: ignore[arg-type]
        if features.dtype is not state["h"].dtype:  # states are recorded as float32
            state = {name: part.to(features.dtype) for name, part in state.items()}
        return self.unroll(features, state)


class LSTMMemory(Memory):
    """Recurrent encoder with an LSTM layer. Its state is {"h": [B, size], "c": [B, size]}."""

    def make_cell(self, num_in: int) -> nn.RNNBase:
        return nn.LSTM(num_in, self.num_features, batch_first=True)

    def unroll(self, features: Tensor, state: Mapping[str, Tensor]) -> tuple[Tensor, State]:
        outputs, (h, c) = self.cell(features, (state["h"][None].contiguous(), state["c"][None].contiguous()))
        return outputs, {"h": h[0], "c": c[0]}

    def initial_state(self) -> dict[str, np.ndarray]:
        return {name: np.zeros(self.num_features, np.float32) for name in ("h", "c")}


class GRUMemory(Memory):
    """Recurrent encoder with a GRU layer. Its state is {"h": [B, size]}."""

    def make_cell(self, num_in: int) -> nn.RNNBase:
        return nn.GRU(num_in, self.num_features, batch_first=True)

    def unroll(self, features: Tensor, state: Mapping[str, Tensor]) -> tuple[Tensor, State]:
        outputs, h = self.cell(features, state["h"][None].contiguous())
        return outputs, {"h": h[0]}

    def initial_state(self) -> dict[str, np.ndarray]:
        return {"h": np.zeros(self.num_features, np.float32)}

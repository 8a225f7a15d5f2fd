"""Networks: what policies are made of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from connectors.distributions import ActionDistribution, DiagonalGaussian
from episodes.errors import InvalidArgument

__all__ = [
    "ACTION_GAIN",
    "VALUE_GAIN",
    "GaussianHead",
    "Memory",
    "action_head",
    "flat",
    "flat_size",
    "hidden_layers",
    "linear",
    "lstm",
]

_HIDDEN_GAIN = math.sqrt(2.0)
ACTION_GAIN = 0.01  # the first policy is nearly uniform
VALUE_GAIN = 1.0


class Memory(nn.Module):
    """Features [B, T, state_size] of what was seen up to each step."""

    def __init__(
        self, sizes: Sequence[int], state_size: int, activation: type[nn.Module], generator: torch.Generator | None
    ) -> None:
        super().__init__()
        self.encoder = nn.Sequential(*hidden_layers(sizes, activation, generator))
        self.lstm = lstm(sizes[-1], state_size, generator)

    def initial_state(self) -> dict[str, np.ndarray]:
        return {name: np.zeros(self.lstm.hidden_size, np.float32) for name in ("h", "c")}

    def forward(self, obs: Tensor, state: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        features, (h, c) = self.lstm(self.encoder(obs), (state["h"][None], state["c"][None]))
        return features, {"h": h[0], "c": c[0]}


class GaussianHead(nn.Module):
    """Means from the features, and deviations that are parameters of their own, the same in every state."""

    def __init__(self, num_features: int, num_actions: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.mean = linear(num_features, num_actions, ACTION_GAIN, generator)
        self.log_std = nn.Parameter(torch.zeros(num_actions))

    def forward(self, features: Tensor) -> Tensor:
        mean = self.mean(features)
        return torch.cat([mean, self.log_std.expand_as(mean)], dim=-1)


def action_head(num_features: int, distribution: ActionDistribution, generator: torch.Generator | None) -> nn.Module:
    if isinstance(distribution, DiagonalGaussian):
        return GaussianHead(num_features, distribution.num_inputs // 2, generator)
    return linear(num_features, distribution.num_inputs, ACTION_GAIN, generator)


def hidden_layers(
    sizes: Sequence[int], activation: type[nn.Module], generator: torch.Generator | None
) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for num_in, num_out in pairwise(sizes):
        layers += [linear(num_in, num_out, _HIDDEN_GAIN, generator), activation()]
    return layers


def linear(num_in: int, num_out: int, gain: float, generator: torch.Generator | None) -> nn.Linear:
    """A linear layer with orthogonal weights and no bias to begin with."""
    layer = nn.Linear(num_in, num_out)
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


def lstm(num_in: int, state_size: int, generator: torch.Generator | None) -> nn.LSTM:
    lstm = nn.LSTM(num_in, state_size, batch_first=True)
    for name, parameter in lstm.named_parameters():
        if name.startswith("weight"):
            nn.init.orthogonal_(parameter, generator=generator)
        else:
            nn.init.zeros_(parameter)
    return lstm


def flat_size(space: gym.Space) -> int:
    if not isinstance(space, gym.spaces.Box):
        raise InvalidArgument(
            f"observation_space {space}: this policy reads arrays of numbers (a Box); put FlattenObservations into the "
            "env-to-module pipeline and give the policy the pipeline's observation_space."
        )
    return math.prod(space.shape)


def flat(obs: Tensor, num_leading: int) -> Tensor:
    """Observations [*leading, ...] as rows [*leading, k] of floats."""
    if not obs.is_floating_point():
        obs = obs.float()
    if obs.ndim == num_leading:
        return obs.unsqueeze(-1)
    return obs if obs.ndim == num_leading + 1 else obs.flatten(num_leading)

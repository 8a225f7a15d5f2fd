"""Policies: what turns a batch of observations into action distributions and values.

A policy sees one shape of data only, a batch `{column: tensor}`, and answers with another one. It never samples:
drawing actions from `action_dist_inputs` is the runner's business, so the same call serves acting and learning.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from connectors.distributions import ActionDistribution, DiagonalGaussian, distribution_for
from episodes.columns import Columns
from episodes.errors import InvalidArgument

__all__ = ["LSTMPolicy", "MLPPolicy", "Policy"]

_HIDDEN_GAIN = math.sqrt(2.0)
_ACTION_GAIN = 0.01  # the first policy is nearly uniform
_VALUE_GAIN = 1.0


class Policy(nn.Module, ABC):
    """A `connectors.Policy` that is a network: all that pipelines and runners may ask, and what algorithms ask besides.

    It has an action head and a value head, over the spaces it was made for.
    """

    def __init__(self, observation_space: gym.Space, action_space: gym.Space) -> None:
        super().__init__()
        self.observation_space = observation_space
        self.action_space = action_space
        self.distribution: ActionDistribution = distribution_for(action_space)

    @abstractmethod
    def forward(self, batch: Mapping[str, Any], explore: bool | None = None) -> dict[str, Any]:
        """`action_dist_inputs` [B, num_inputs] of a batch with `obs` [B, ...].

        With `explore` a bool the policy is acting, and says only what acting needs; with None it is learning, and
        `vf_preds` [B] come along. One with a memory takes and gives `[B, T, ...]`, and a `state_out` [B, ...] for the
        `state_in` [B, ...] of the batch.
        """

    @abstractmethod
    def compute_values(self, batch: Mapping[str, Any]) -> Tensor:
        """Values [B] of `obs` [B, ...] (with a memory: [B, T] of [B, T, ...] and `state_in` [B, ...])."""

    def get_initial_state(self) -> dict[str, Any]:
        """The state at an episode's start, nested arrays without a batch axis; empty for a policy without a memory."""
        return {}

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def compute_action(self, observation: Any, *, explore: bool = False) -> Any:
        """The action, as numpy, for one observation without a batch axis: drawn with `explore`, else the likeliest.

        By hand, for policies without a memory; runners go through their pipelines. The action is the distribution's
        own, not yet brought into the bounds of a Box.
        """
        if self.get_initial_state():
            raise InvalidArgument(
                f"compute_action: {type(self).__name__} carries a state; sample with a runner instead."
            )
        obs = torch.as_tensor(np.asarray(observation), dtype=torch.float32, device=self.device)[None]
        with torch.no_grad():
            inputs = self({Columns.OBS: obs}, explore=explore)[Columns.ACTION_DIST_INPUTS]
        actions = self.distribution.sample(inputs) if explore else self.distribution.mode(inputs)
        return _first_row(actions)


class MLPPolicy(Policy):
    """Two separate perceptrons, one for actions and one for values, over flat observations."""

    def __init__(
        self,
        observation_space: gym.Space,
        action_space: gym.Space,
        *,
        hidden_sizes: Sequence[int] = (64, 64),
        activation: type[nn.Module] = nn.Tanh,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(observation_space, action_space)
        sizes = (_flat_size(observation_space), *hidden_sizes)
        self.actor = nn.Sequential(
            *_hidden_layers(sizes, activation, generator), _action_head(sizes[-1], self.distribution, generator)
        )
        self.critic = nn.Sequential(
            *_hidden_layers(sizes, activation, generator), _linear(sizes[-1], 1, _VALUE_GAIN, generator)
        )

    def forward(self, batch: Mapping[str, Any], explore: bool | None = None) -> dict[str, Any]:
        obs = _flat(batch[Columns.OBS], 1)
        outputs = {Columns.ACTION_DIST_INPUTS: self.actor(obs)}
        if explore is None:
            outputs[Columns.VF_PREDS] = self.critic(obs).squeeze(-1)
        return outputs

    def compute_values(self, batch: Mapping[str, Any]) -> Tensor:
        return self.critic(_flat(batch[Columns.OBS], 1)).squeeze(-1)


class LSTMPolicy(Policy):
    """Two separate memories, one for actions and one for values: a perceptron and an LSTM each.

    The state holds `h` and `c` of both. The value's memory goes along while acting too, so that every recorded state is
    one from which values can be computed later.
    """

    def __init__(
        self,
        observation_space: gym.Space,
        action_space: gym.Space,
        *,
        hidden_sizes: Sequence[int] = (64,),
        state_size: int = 64,
        activation: type[nn.Module] = nn.Tanh,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(observation_space, action_space)
        sizes = (_flat_size(observation_space), *hidden_sizes)
        self.actor_memory = _Memory(sizes, state_size, activation, generator)
        self.critic_memory = _Memory(sizes, state_size, activation, generator)
        self.actor = _action_head(state_size, self.distribution, generator)
        self.critic = _linear(state_size, 1, _VALUE_GAIN, generator)

    def get_initial_state(self) -> dict[str, Any]:
        return {"actor": self.actor_memory.initial_state(), "critic": self.critic_memory.initial_state()}

    def forward(self, batch: Mapping[str, Any], explore: bool | None = None) -> dict[str, Any]:
        obs, state = _flat(batch[Columns.OBS], 2), batch[Columns.STATE_IN]
        acting, actor_state = self.actor_memory(obs, state["actor"])
        valuing, critic_state = self.critic_memory(obs, state["critic"])
        outputs = {
            Columns.ACTION_DIST_INPUTS: self.actor(acting),
            Columns.STATE_OUT: {"actor": actor_state, "critic": critic_state},
        }
        if explore is None:
            outputs[Columns.VF_PREDS] = self.critic(valuing).squeeze(-1)
        return outputs

    def compute_values(self, batch: Mapping[str, Any]) -> Tensor:
        valuing, _ = self.critic_memory(_flat(batch[Columns.OBS], 2), batch[Columns.STATE_IN]["critic"])
        return self.critic(valuing).squeeze(-1)


class _Memory(nn.Module):
    """Features [B, T, state_size] of what was seen up to each step."""

    def __init__(
        self, sizes: Sequence[int], state_size: int, activation: type[nn.Module], generator: torch.Generator | None
    ) -> None:
        super().__init__()
        self.encoder = nn.Sequential(*_hidden_layers(sizes, activation, generator))
        self.lstm = _lstm(sizes[-1], state_size, generator)

    def initial_state(self) -> dict[str, np.ndarray]:
        return {name: np.zeros(self.lstm.hidden_size, np.float32) for name in ("h", "c")}

    def forward(self, obs: Tensor, state: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        features, (h, c) = self.lstm(self.encoder(obs), (state["h"][None], state["c"][None]))
        return features, {"h": h[0], "c": c[0]}


class _GaussianHead(nn.Module):
    """Means from the features, and deviations that are parameters of their own, the same in every state."""

    def __init__(self, num_features: int, num_actions: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.mean = _linear(num_features, num_actions, _ACTION_GAIN, generator)
        self.log_std = nn.Parameter(torch.zeros(num_actions))

    def forward(self, features: Tensor) -> Tensor:
        mean = self.mean(features)
        return torch.cat([mean, self.log_std.expand_as(mean)], dim=-1)


def _action_head(num_features: int, distribution: ActionDistribution, generator: torch.Generator | None) -> nn.Module:
    if isinstance(distribution, DiagonalGaussian):
        return _GaussianHead(num_features, distribution.num_inputs // 2, generator)
    return _linear(num_features, distribution.num_inputs, _ACTION_GAIN, generator)


def _hidden_layers(
    sizes: Sequence[int], activation: type[nn.Module], generator: torch.Generator | None
) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for num_in, num_out in pairwise(sizes):
        layers += [_linear(num_in, num_out, _HIDDEN_GAIN, generator), activation()]
    return layers


def _linear(num_in: int, num_out: int, gain: float, generator: torch.Generator | None) -> nn.Linear:
    """A linear layer with orthogonal weights and no bias to begin with."""
    layer = nn.Linear(num_in, num_out)
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


def _lstm(num_in: int, state_size: int, generator: torch.Generator | None) -> nn.LSTM:
    lstm = nn.LSTM(num_in, state_size, batch_first=True)
    for name, parameter in lstm.named_parameters():
        if name.startswith("weight"):
            nn.init.orthogonal_(parameter, generator=generator)
        else:
            nn.init.zeros_(parameter)
    return lstm


def _flat_size(space: gym.Space) -> int:
    if not isinstance(space, gym.spaces.Box):
        raise InvalidArgument(
            f"observation_space {space}: this policy reads arrays of numbers (a Box); put FlattenObservations into the "
            "env-to-module pipeline and give the policy the pipeline's observation_space."
        )
    return math.prod(space.shape)


def _flat(obs: Tensor, num_leading: int) -> Tensor:
    """Observations [*leading, ...] as rows [*leading, k] of floats."""
    if not obs.is_floating_point():
        obs = obs.float()
    if obs.ndim == num_leading:
        return obs.unsqueeze(-1)
    return obs if obs.ndim == num_leading + 1 else obs.flatten(num_leading)


def _first_row(actions: Any) -> Any:
    if isinstance(actions, dict):
        return {key: _first_row(part) for key, part in actions.items()}
    if isinstance(actions, tuple):
        return tuple(_first_row(part) for part in actions)
    return actions[0].cpu().numpy()

"""Policies that know what each action is worth, and act greedily by it but for a share of chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, log, log1p
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from episodes.columns import Columns
from episodes.errors import InvalidArgument
from learners.networks import VALUE_GAIN, Memory, flat, flat_size, hidden_layers, linear
from learners.policies.policy import Policy

__all__ = ["LSTMQPolicy", "QPolicy"]


class QPolicy(Policy):
    """A perceptron that says what each of n actions is worth, over flat observations.

    Acting with `explore` it is epsilon-greedy: with probability `epsilon` any action is drawn, else the best is taken;
    recorded log-probabilities are those of that choice. Without `explore` it takes the best.

    Args:
        dueling: the worth of an action is a value of the state and its advantage (Wang et al., 2016,
            https://arxiv.org/abs/1511.06581).

    Attributes:
        epsilon: 0..1, set by the algorithm as it goes along.
    """

    def __init__(
        self,
        observation_space: gym.Space,
        action_space: gym.Space,
        *,
        hidden_sizes: Sequence[int] = (64, 64),
        activation: type[nn.Module] = nn.ReLU,
        dueling: bool = False,
        epsilon: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> None:
        if not isinstance(action_space, gym.spaces.Discrete):
            raise InvalidArgument(f"{type(self).__name__} chooses one of n actions; {action_space} is not Discrete")
        super().__init__(observation_space, action_space)
        self.epsilon = epsilon
        self.start, self.num_actions = int(action_space.start), int(action_space.n)
        sizes = (flat_size(observation_space), *hidden_sizes)
        self.body = nn.Sequential(*hidden_layers(sizes, activation, generator))
        self.head = linear(sizes[-1], self.num_actions, VALUE_GAIN, generator)
        self.value = linear(sizes[-1], 1, VALUE_GAIN, generator) if dueling else None

    def q_values(self, batch: Mapping[str, Any]) -> Tensor:
        """What each action is worth, [B, n]."""
        return self.worth_of(self.body(flat(batch[Columns.OBS], 1)))

    def worth_of(self, features: Tensor) -> Tensor:
        """What each action is worth [..., n] of features [..., k]."""
        worth = self.head(features)
        if self.value is None:
            return worth
        return self.value(features) + worth - worth.mean(-1, keepdim=True)

    def forward(self, batch: Mapping[str, Any], explore: bool | None = None) -> dict[str, Any]:
        values = self.q_values(batch)
        if explore is None:
            return {"q_values": values}
        return {Columns.ACTION_DIST_INPUTS: self.epsilon_greedy(values) if explore else values}

    def epsilon_greedy(self, values: Tensor) -> Tensor:
        """Log-probabilities [B, n]."""
        by_chance = self.epsilon / self.num_actions
        other = log(by_chance) if by_chance else -inf
        best = log1p(by_chance - self.epsilon) if by_chance < 1 else 0.0
        return torch.full_like(values, other).scatter_(-1, values.argmax(-1, keepdim=True), best)

    def get_extra_state(self) -> dict[str, float]:
        return {"epsilon": self.epsilon}

    def set_extra_state(self, state: dict[str, float]) -> None:
        self.epsilon = state["epsilon"]


class LSTMQPolicy(QPolicy):
    """A `QPolicy` with a memory: a perceptron and an LSTM, over flat observations [B, T, ...]."""

    def __init__(
        self,
        observation_space: gym.Space,
        action_space: gym.Space,
        *,
        hidden_sizes: Sequence[int] = (64,),
        state_size: int = 64,
        activation: type[nn.Module] = nn.ReLU,
        dueling: bool = False,
        epsilon: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> None:
        options: dict[str, Any] = {"dueling": dueling, "epsilon": epsilon, "generator": generator}
        super().__init__(observation_space, action_space, hidden_sizes=(state_size,), **options)
        self.body = nn.Identity()
        sizes = (flat_size(observation_space), *hidden_sizes)
        self.memory = Memory(sizes, state_size, activation, generator)

    def get_initial_state(self) -> dict[str, Any]:
        return self.memory.initial_state()

    def forward(self, batch: Mapping[str, Any], explore: bool | None = None) -> dict[str, Any]:
        features, state = self.memory(flat(batch[Columns.OBS], 2), batch[Columns.STATE_IN])
        values = self.worth_of(features)
        outputs = (
            {"q_values": values}
            if explore is None
            else {Columns.ACTION_DIST_INPUTS: self.epsilon_greedy(values) if explore else values}
        )
        return {**outputs, Columns.STATE_OUT: state}

    def unrolled(self, obs: Tensor, state: Mapping[str, Tensor], first: Tensor) -> Tensor:
        """What each action is worth [B, W, n] at observations [B, W, ...], begun with states [B, ...].

        A row begins in the column `first` [B]; what stands before it is not looked at.
        """
        width, rows = obs.shape[1], torch.arange(len(obs), device=obs.device)[:, None]
        columns = torch.arange(width, device=obs.device)
        features, _ = self.memory(flat(obs, 2)[rows, (columns + first[:, None]) % width], state)
        return self.worth_of(features[rows, (columns - first[:, None]) % width])

"""Policies with an action head and a value head: what policy gradients train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from episodes.columns import Columns
from learners.networks import VALUE_GAIN, Memory, action_head, flat, flat_size, hidden_layers, linear
from learners.policies.policy import Policy

__all__ = ["LSTMPolicy", "MLPPolicy"]


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
        sizes = (flat_size(observation_space), *hidden_sizes)
        self.actor = nn.Sequential(
            *hidden_layers(sizes, activation, generator), action_head(sizes[-1], self.distribution, generator)
        )
        self.critic = nn.Sequential(
            *hidden_layers(sizes, activation, generator), linear(sizes[-1], 1, VALUE_GAIN, generator)
        )

    def forward(self, batch: Mapping[str, Any], explore: bool | None = None) -> dict[str, Any]:
        obs = flat(batch[Columns.OBS], 1)
        outputs = {Columns.ACTION_DIST_INPUTS: self.actor(obs)}
        if explore is None:
            outputs[Columns.VF_PREDS] = self.critic(obs).squeeze(-1)
        return outputs

    def compute_values(self, batch: Mapping[str, Any]) -> Tensor:
        return self.critic(flat(batch[Columns.OBS], 1)).squeeze(-1)


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
        sizes = (flat_size(observation_space), *hidden_sizes)
        self.actor_memory = Memory(sizes, state_size, activation, generator)
        self.critic_memory = Memory(sizes, state_size, activation, generator)
        self.actor = action_head(state_size, self.distribution, generator)
        self.critic = linear(state_size, 1, VALUE_GAIN, generator)

    def get_initial_state(self) -> dict[str, Any]:
        return {"actor": self.actor_memory.initial_state(), "critic": self.critic_memory.initial_state()}

    def forward(self, batch: Mapping[str, Any], explore: bool | None = None) -> dict[str, Any]:
        obs, state = flat(batch[Columns.OBS], 2), batch[Columns.STATE_IN]
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
        valuing, _ = self.critic_memory(flat(batch[Columns.OBS], 2), batch[Columns.STATE_IN]["critic"])
        return self.critic(valuing).squeeze(-1)

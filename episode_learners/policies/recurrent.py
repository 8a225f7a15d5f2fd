"""Recurrent actor-critic policies, with LSTMs or GRUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium as gym
import torch
from torch import Tensor, nn

from connectors.distributions import ActionDistribution
from episode_learners.networks.heads import action_head, legal_inputs, state_values
from episode_learners.networks.layers import VALUE_GAIN, linear
from episode_learners.networks.recurrent_encoders import GRUMemory, LSTMMemory, Memory
from episode_learners.policies.policy import Policy
from episodes.columns import Columns

__all__ = ["GRUPolicy", "LSTMPolicy", "RecurrentPolicy"]


class RecurrentPolicy(Policy):
    """Base class of recurrent actor-critic policies, with separate recurrent encoders for actions and values.

    Observations can be in any space, and can have an "action_mask". The recurrent state contains the states of both
    encoders. The critic's encoder also runs while acting, so that values can be computed from each recorded state.

    Args:
        observation_space: space of the policy's input.
        action_space: the environment's action space.
        hidden_sizes: sizes of the hidden layers before each recurrent layer.
        state_size: size of the state of each recurrent layer.
        activation: class of the activations.
        distribution: the action distribution; by default that of the action space, see `Policy`.
        generator: random generator of the initial weights.
    """

    memory: ClassVar[type[Memory]]

    def __init__(
        self,
        observation_space: gym.Space,
        action_space: gym.Space,
        *,
        hidden_sizes: Sequence[int] = (64,),
        state_size: int = 64,
        activation: type[nn.Module] = nn.Tanh,
        distribution: ActionDistribution | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(observation_space, action_space, distribution)
        options: Any = (observation_space, hidden_sizes, state_size, activation, generator)
        self.actor_memory, self.critic_memory = self.memory(*options), self.memory(*options)
        self.actor = action_head(state_size, self.distribution, generator)
        self.critic = linear(state_size, 1, VALUE_GAIN, generator)

    def get_initial_state(self) -> dict[str, Any]:
        return {"actor": self.actor_memory.initial_state(), "critic": self.critic_memory.initial_state()}

    def forward(self, batch: Mapping[str, Any], explore: bool | None = None) -> dict[str, Any]:
        """Return the distribution inputs [B, T, ...] and the last recurrent states for sequences of observations
        [B, T, ...]. While learning (`explore=None`), also return the values.
        """
        obs, state = batch[Columns.OBS], batch[Columns.STATE_IN]
        acting, actor_state = self.actor_memory(obs, state["actor"])
        valuing, critic_state = self.critic_memory(obs, state["critic"])
        outputs = {
            Columns.ACTION_DIST_INPUTS: legal_inputs(self.distribution, self.actor(acting), obs),
            Columns.STATE_OUT: {"actor": actor_state, "critic": critic_state},
        }
        if explore is None:
            outputs[Columns.VF_PREDS] = state_values(self.critic, valuing)
        return outputs

    def compute_values(self, batch: Mapping[str, Any]) -> Tensor:
        valuing, _ = self.critic_memory(batch[Columns.OBS], batch[Columns.STATE_IN]["critic"])
        return state_values(self.critic, valuing)


class LSTMPolicy(RecurrentPolicy):
    """Recurrent actor-critic policy with two LSTMs, one for actions and one for values."""

    memory = LSTMMemory


class GRUPolicy(RecurrentPolicy):
    """Recurrent actor-critic policy with two GRUs, one for actions and one for values."""

    memory = GRUMemory

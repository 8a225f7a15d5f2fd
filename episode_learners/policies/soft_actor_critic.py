"""`SACPolicy`: a policy for soft actor-critic, with an actor for bounded actions and two critics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from connectors.distributions import SquashedGaussian
from episode_learners.networks.layers import (
    ACTION_GAIN,
    VALUE_GAIN,
    flat,
    flat_size,
    hidden_layers,
    linear,
)
from episode_learners.policies.policy import Policy
from episodes.columns import Columns
from episodes.tracks.policy_box import bounded_parts
from episodes.tracks.space_kinds import is_box, rejected_space

__all__ = ["SACPolicy"]


class SACPolicy(Policy):
    """Policy for soft actor-critic: an actor with bounded continuous actions (squashed Gaussian), and two critics, all
    over flattened observations.

    Actions are in -1..1. The module-to-env pipeline scales them to the bounds of the action space.

    Args:
        observation_space: space of the policy's input, a Box.
        action_space: a Box of floats with two finite bounds in each dimension.
        hidden_sizes: sizes of the hidden layers of the actor and of each critic.
        activation: class of the activations.
        generator: random generator of the initial weights.

    Raises:
        InvalidArgument: the action space is not a Box with finite bounds, or the observation space is not a Box.
    """

    def __init__(
        self,
        observation_space: gym.Space,
        action_space: gym.Space,
        *,
        hidden_sizes: Sequence[int] = (256, 256),
        activation: type[nn.Module] = nn.ReLU,
        generator: torch.Generator | None = None,
    ) -> None:
        if not (is_box(action_space) and np.logical_and(*bounded_parts(action_space)).all()):
            name, advice = type(self).__name__, "take a policy that has other actions"
            if is_box(action_space):
                advice = "give it finite bounds in each dimension, or take a policy that has other actions"
            raise rejected_space(name, action_space, "a Box with finite bounds", advice)
        super().__init__(observation_space, action_space)
        self.distribution = self.squashed = SquashedGaussian(action_space.shape)
        num_seen, num_actions = flat_size(observation_space), self.squashed.num_inputs // 2
        sizes, valued = (num_seen, *hidden_sizes), (num_seen + num_actions, *hidden_sizes)
        head = linear(sizes[-1], 2 * num_actions, ACTION_GAIN, generator)
        self.actor = nn.Sequential(*hidden_layers(sizes, activation, generator), head)
        self.critics = nn.ModuleList(
            nn.Sequential(*hidden_layers(valued, activation, generator), linear(valued[-1], 1, VALUE_GAIN, generator))
            for _ in range(2)
        )

    def forward(self, batch: Mapping[str, Any], explore: bool | None = None) -> dict[str, Any]:
        return {Columns.ACTION_DIST_INPUTS: self.actor(flat(batch[Columns.OBS], 1))}


def lowest_of(critics: nn.ModuleList, obs: Tensor, actions: Tensor) -> Tensor:
    """Return, for each action of a batch [B, ...], the lowest Q-value that any critic gives to it, [B]."""
    first, *remaining = values_of(critics, obs, actions)
    for values in remaining:
        first = torch.min(first, values)
    return first


def values_of(critics: nn.ModuleList, obs: Tensor, actions: Tensor) -> list[Tensor]:
    """Return a list with the Q-values [B] that each critic gives to the actions [B, ...]."""
    both = torch.cat([flat(obs, 1), flat(actions, 1)], -1)
    return [critic(both).squeeze(-1) for critic in critics]

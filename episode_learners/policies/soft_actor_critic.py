"""The policy of soft actor-critic: an actor over bounded actions, and two critics of what it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from connectors.distributions import SquashedGaussian
from episode_learners.networks.backpropagation import Layer, PlainLayers
from episode_learners.networks.layers import (
    ACTION_GAIN,
    VALUE_GAIN,
    Perceptron,
    flat,
    flat_size,
    hidden_layers,
    linear,
)
from episode_learners.policies.policy import Policy
from episodes.columns import Columns
from episodes.errors import InvalidArgument

__all__ = ["SACPolicy"]


class SACPolicy(Policy):
    """Acts in -1..1, which the module-to-env pipeline spreads over the action space's bounds; flat observations.

    Args:
        action_space: a Box of floats with two finite bounds in each dimension.
    """

    _plain: tuple[PlainLayers, ...] = (PlainLayers((), ()),)  # what was found at the last look

    def __init__(
        self,
        observation_space: gym.Space,
        action_space: gym.Space,
        *,
        hidden_sizes: Sequence[int] = (256, 256),
        activation: type[nn.Module] = nn.ReLU,
        generator: torch.Generator | None = None,
    ) -> None:
        if not (isinstance(action_space, gym.spaces.Box) and np.isfinite([action_space.low, action_space.high]).all()):
            raise InvalidArgument(f"{type(self).__name__} needs a Box with finite bounds to act in, not {action_space}")
        super().__init__(observation_space, action_space)
        self.distribution = self.squashed = SquashedGaussian(action_space.shape)
        num_seen, num_actions = flat_size(observation_space), self.squashed.num_inputs // 2
        sizes, valued = (num_seen, *hidden_sizes), (num_seen + num_actions, *hidden_sizes)
        head = linear(sizes[-1], 2 * num_actions, ACTION_GAIN, generator)
        self.actor = Perceptron(*hidden_layers(sizes, activation, generator), head)
        self.critics = nn.ModuleList(
            Perceptron(*hidden_layers(valued, activation, generator), linear(valued[-1], 1, VALUE_GAIN, generator))
            for _ in range(2)
        )

    def forward(self, batch: Mapping[str, Any], explore: bool | None = None) -> dict[str, Any]:
        return {Columns.ACTION_DIST_INPUTS: self.actor(flat(batch[Columns.OBS], 1))}

    def plain_layers(self, obs: Any) -> list[list[Layer]] | None:
        """The layers of the actor and of each critic for such observations [B, k]; None where there is more to them."""
        if type(self) is not SACPolicy or type(obs) is not Tensor or obs.ndim != 2:
            return None
        if not all(part.are_there for part in self._plain):
            vars(self)["_plain"] = self._looked_at()
        found = [part.now(obs.dtype, learned=True) for part in self._plain]
        layers = [part for part in found if part is not None]
        return layers if len(layers) == len(found) else None

    def _looked_at(self) -> tuple[PlainLayers, ...]:
        parts: Any = (self.actor, *self.critics)
        owners = (self, self.critics)
        return tuple(PlainLayers((*owners, part), part if type(part) is Perceptron else ()) for part in parts)


def lowest_of(critics: nn.ModuleList, obs: Tensor, actions: Tensor) -> Tensor:
    """The lowest of what the critics say [B] that actions [B, ...] are worth."""
    first, *others = values_of(critics, obs, actions)
    for other in others:
        first = torch.min(first, other)
    return first


def values_of(critics: nn.ModuleList, obs: Tensor, actions: Tensor) -> list[Tensor]:
    """What each critic says [B] that actions [B, ...] are worth."""
    both = torch.cat([flat(obs, 1), flat(actions, 1)], -1)
    return [critic(both).squeeze(-1) for critic in critics]

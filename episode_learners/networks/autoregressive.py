"""`Autoregressive`: a distribution of composite actions in which each part depends on the parts before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from connectors.distributions import ActionDistribution, distribution_for
from episode_learners.networks.encoders import encoder_for
from episode_learners.networks.heads import action_head
from episode_learners.networks.layers import HIDDEN_GAIN, in_full_precision, linear
from episodes.tracks.space_kinds import (
    SpaceKind,
    choices_of,
    is_nested,
    joined_parts,
    kind_of,
    parts_of,
    rejected_space,
)

__all__ = ["Autoregressive"]


class Autoregressive(nn.Module, ActionDistribution):
    """Distribution of composite actions, in which each part is sampled given the earlier parts: p(a | x) p(b | x, a)
    p(c | x, a, b).

    The parts are those of a Dict or Tuple space, or the numbers of a MultiDiscrete, in order. The inputs are features
    [..., num_inputs] of the policy's head. The layers from the features and earlier parts to the distribution of each
    part are parameters of this module. As `policy.distribution` they are trained with the policy.

    The mode is the most likely first part, then the most likely second part given the first, and so on. The entropy is
    the sum of the parts' entropies along one sample, because the exact entropy would need all actions.

    Args:
        action_space: a Dict, Tuple or MultiDiscrete.
        num_inputs: the number of features.
        generator: random generator of the initial weights.

    Raises:
        InvalidArgument: the action space has no parts.

    >>> pair = Autoregressive(spaces.MultiDiscrete([3, 2]), 8)
    >>> pair.sample(torch.zeros(5, 8)).shape, pair.log_prob(torch.zeros(5, 8), torch.zeros(5, 2)).shape
    (torch.Size([5, 2]), torch.Size([5]))
    """

    def __init__(
        self, action_space: gym.Space, num_inputs: int = 64, *, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.num_inputs = num_inputs
        self.action_space = action_space
        parts = list(_part_spaces(action_space))
        self._parts = [distribution_for(part) for part in parts]
        self.encoders = nn.ModuleList(encoder_for(part, ()) for part in parts)
        heads, num_before = [], 0
        for part, encoder in zip(self._parts, self.encoders, strict=True):
            first = linear(num_inputs + num_before, num_inputs, HIDDEN_GAIN, generator)
            heads.append(nn.Sequential(first, nn.Tanh(), action_head(num_inputs, part, generator)))
            num_before += int(encoder.num_features)  # type: ignore[arg-type]
        self.heads = nn.ModuleList(heads)

    def sample(self, inputs: Tensor, generator: torch.Generator | None = None) -> Any:
        walk = self._iterate_parts(inputs, lambda part, part_inputs, i: part.sample(part_inputs, generator))
        return self._combine_parts([action for _, _, action in walk], inputs)

    def mode(self, inputs: Tensor) -> Any:
        walk = self._iterate_parts(inputs, lambda part, part_inputs, i: part.mode(part_inputs))
        return self._combine_parts([action for _, _, action in walk], inputs)

    def log_prob(self, inputs: Tensor, actions: Any) -> Tensor:
        values = self._split_parts(actions)
        walk = self._iterate_parts(inputs, lambda part, part_inputs, i: values[i])
        return torch.stack([part.log_prob(part_inputs, action) for part, part_inputs, action in walk]).sum(0)

    def entropy(self, inputs: Tensor) -> Tensor:
        walk = self._iterate_parts(inputs, lambda part, part_inputs, i: part.sample(part_inputs.detach()))
        return torch.stack([part.entropy(part_inputs) for part, part_inputs, _ in walk]).sum(0)

    def _iterate_parts(
        self, inputs: Tensor, choose: Callable[[ActionDistribution, Tensor, int], Any]
    ) -> Iterator[tuple[ActionDistribution, Tensor, Any]]:
        """Yield the distribution, the inputs and the value of each part of an action, in order.

        The inputs of a part depend on the values of earlier parts. `choose` returns the value of a part.
        """
        known = [inputs]
        for i, part in enumerate(self._parts):
            part_inputs = in_full_precision(self.heads[i](torch.cat(known, -1)))
            action = choose(part, part_inputs, i)
            yield part, part_inputs, action
            known.append(self.encoders[i](action).to(inputs.dtype))

    def _combine_parts(self, actions: list[Any], inputs: Tensor) -> Any:
        """Combine the values of all action parts into actions of the action space: the inverse of `_split_parts`."""
        space = self.action_space
        if is_nested(space):
            return joined_parts(space, actions)
        return torch.stack(actions, -1).reshape(*inputs.shape[:-1], *(space.shape or ()))

    def _split_parts(self, actions: Any) -> list[Any]:
        """Split actions of the action space into a list with the values of each part."""
        space = self.action_space
        if is_nested(space):
            return [actions[key] for key in parts_of(space)]
        return list(actions.flatten(actions.ndim - len(space.shape or ())).unbind(-1))


def _part_spaces(space: gym.Space) -> Iterator[gym.Space]:
    """Yield the spaces of the parts of a Dict, Tuple or MultiDiscrete action space.

    Raises:
        InvalidArgument: the space has no parts.
    """
    match kind_of(space):
        case SpaceKind.DICT | SpaceKind.TUPLE if parts := parts_of(space):
            yield from parts.values()
        case SpaceKind.MULTI_DISCRETE:
            for first, count in zip(*map(np.ravel, choices_of(space)), strict=True):
                yield spaces.Discrete(int(count), start=int(first))
        case _:
            allowed = "a non-empty Dict or Tuple, or a MultiDiscrete,"
            raise rejected_space("Autoregressive", space, allowed, "take distribution_for(space)")

"""Layers of perceptrons, orthogonal to begin with, that take numbers of any dtype."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn
from torch.nn import functional

from episodes.errors import InvalidArgument

__all__ = [
    "ACTION_GAIN",
    "HIDDEN_GAIN",
    "VALUE_GAIN",
    "CastLinear",
    "Perceptron",
    "called",
    "flat",
    "flat_size",
    "has_hooks",
    "hidden_layers",
    "hooks_of",
    "linear",
    "parameters_of",
    "whole",
]

HIDDEN_GAIN = math.sqrt(2.0)
ACTION_GAIN = 0.01  # the first policy is nearly uniform
VALUE_GAIN = 1.0


class CastLinear(nn.Linear):
    """Takes what it is given in the dtype of its weights: observations stay float32 where a policy is bfloat16."""

    def forward(self, input: Tensor) -> Tensor:
        weight = self.weight
        if input.dtype is not weight.dtype:
            input = input.to(weight.dtype)
        return functional.linear(input, weight, self.bias)


class Perceptron(nn.Sequential):
    """Layers one behind the other, as `nn.Sequential` has them, names and all.

    Calling a module costs 4 us on the way to 10 us of arithmetic, so the layers of `hidden_layers` and `linear` are
    applied without, where nobody hooked into them.
    """

    def forward(self, input: Tensor) -> Tensor:
        is_own = False  # nobody else has it, and no gradient is computed from it: it may be changed in place
        for layer in self._modules.values():
            kind: Any = type(layer)  # another one where a layer is parametrized
            if has_hooks(layer):
                input, is_own = layer(input), False  # type: ignore[misc]
            elif kind is CastLinear:
                own = parameters_of(layer)
                weight = own["weight"]
                if input.dtype is not weight.dtype:
                    input = input.to(weight.dtype)
                input, is_own = functional.linear(input, weight, own["bias"]), True
            elif kind is nn.Tanh:  # its gradient, and that of a ReLU, is computed from what it gives
                input, is_own = (input.tanh_() if is_own else input.tanh()), False
            elif kind is nn.ReLU:
                input, is_own = (input.relu_() if is_own else input.relu()), False
            else:
                input, is_own = layer(input), False  # type: ignore[misc]
        return input


def called(module: Any, input: Tensor) -> Tensor:
    """What a call of the module gives; a perceptron's without the call, where nobody hooked into it."""
    return module.forward(input) if type(module) is Perceptron and not has_hooks(module) else module(input)


def hooks_of(module: nn.Module) -> tuple[Any, ...]:
    """Where a module keeps whoever wants to be told when it is called, or when gradients come to it: for good."""
    own = vars(module)
    forward = (own["_forward_pre_hooks"], own["_forward_hooks"])
    return *forward, own["_backward_pre_hooks"], own["_backward_hooks"]


def has_hooks(module: Any) -> bool:
    """Whether there are such. Asked once a layer, so without a tuple of them, which takes as long again."""
    own = module.__dict__
    forward = own["_forward_pre_hooks"] or own["_forward_hooks"]
    return bool(forward or own["_backward_pre_hooks"] or own["_backward_hooks"])


def parameters_of(module: nn.Module) -> dict[str, Any]:
    """A module's own parameters by name; asking the module for each takes 1 us."""
    return module.__dict__["_parameters"]


def linear(num_in: int, num_out: int, gain: float, generator: torch.Generator | None) -> nn.Linear:
    """A linear layer with orthogonal weights and no bias to begin with."""
    layer = CastLinear(num_in, num_out)
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


def hidden_layers(
    sizes: Sequence[int], activation: type[nn.Module], generator: torch.Generator | None
) -> list[nn.Module]:
    """Linear layers from sizes[0] to sizes[-1] numbers, an activation behind each.

    Raises:
        InvalidArgument: a layer is of no int from 1.
    """
    for size in sizes[1:]:
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise InvalidArgument(f"hidden_sizes has {size!r}: a layer is of an int of at least 1")
    layers: list[nn.Module] = []
    for num_in, num_out in pairwise(sizes):
        layers += [linear(num_in, num_out, HIDDEN_GAIN, generator), activation()]
    return layers


def flat_size(space: gym.Space) -> int:
    """How many numbers an item of a Box has.

    Raises:
        InvalidArgument: the space is no Box.
    """
    if not isinstance(space, gym.spaces.Box):
        raise InvalidArgument(
            f"observation_space {space}: this policy reads arrays of numbers (a Box); put FlattenObservations into the "
            "env-to-module pipeline and give the policy the pipeline's observation_space, or take an EncoderPolicy."
        )
    return math.prod(space.shape)


def flat(obs: Tensor, num_leading: int) -> Tensor:
    """Observations [*leading, ...] as rows [*leading, k] of floats."""
    if not obs.is_floating_point():
        obs = obs.float()
    if obs.ndim == num_leading:
        return obs.unsqueeze(-1)
    return obs if obs.ndim == num_leading + 1 else obs.flatten(num_leading)


def whole(outputs: Tensor) -> Tensor:
    """Outputs of half precision as float32, in which losses are computed; others as they are."""
    return outputs.float() if outputs.dtype is torch.bfloat16 or outputs.dtype is torch.float16 else outputs

"""Linear layers with orthogonal initial weights, and conversions of their inputs and outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import gymnasium as gym
import torch
from torch import Tensor, nn
from torch.nn import functional

from episodes.errors import InvalidArgument
from episodes.tracks.flattening import has_flat_form
from episodes.tracks.space_kinds import is_box, rejected_space

__all__ = [
    "ACTION_GAIN",
    "HIDDEN_GAIN",
    "VALUE_GAIN",
    "CastLinear",
    "flat",
    "flat_size",
    "hidden_layers",
    "in_full_precision",
    "linear",
]

HIDDEN_GAIN = math.sqrt(2.0)
ACTION_GAIN = 0.01  # the first policy is nearly uniform
VALUE_GAIN = 1.0


class CastLinear(nn.Linear):
    """Linear layer that first converts its input to the dtype of its weights, for example bfloat16."""

    def forward(self, input: Tensor) -> Tensor:
        weight = self.weight
        return functional.linear(input if input.dtype is weight.dtype else input.to(weight.dtype), weight, self.bias)


def linear(num_in: int, num_out: int, gain: float, generator: torch.Generator | None) -> nn.Linear:
    """Return a linear layer from `num_in` to `num_out` features, with orthogonal initial weights scaled by `gain`, and
    zero bias.
    """
    layer = CastLinear(num_in, num_out)
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


def hidden_layers(
    sizes: Sequence[int], activation: type[nn.Module], generator: torch.Generator | None
) -> list[nn.Module]:
    """Return the layers of a perceptron with the layer sizes `sizes`: a linear layer and an activation for each size
    but the first.

    Raises:
        InvalidArgument: a size is not an int of at least 1.
    """
    for size in sizes[1:]:
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise InvalidArgument(f"hidden_sizes has {size!r}: give ints of at least 1")
    layers: list[nn.Module] = []
    for num_in, num_out in pairwise(sizes):
        layers += [linear(num_in, num_out, HIDDEN_GAIN, generator), activation()]
    return layers


def flat_size(space: gym.Space) -> int:
    """Return the number of elements of one observation of a Box, which is the input size of a perceptron.

    Raises:
        InvalidArgument: the space is not a Box.
    """
    if not is_box(space):
        connector = "FlattenObservations" if has_flat_form(space) else "an ObservationPreprocessor that makes arrays"
        advice = (
            f"put {connector} into the env-to-module pipeline and give the policy the pipeline's observation_space, or "
            "take an EncoderPolicy"
        )
        raise rejected_space("observation_space", space, "a Box", advice)
    return math.prod(space.shape)


def flat(obs: Tensor, num_leading: int) -> Tensor:
    """Return observations [*leading, ...] flattened to float rows [*leading, k], given the number of leading axes."""
    if not obs.is_floating_point():
        obs = obs.float()
    if obs.ndim == num_leading:
        return obs.unsqueeze(-1)
    return obs if obs.ndim == num_leading + 1 else obs.flatten(num_leading)


def in_full_precision(outputs: Tensor) -> Tensor:
    """Return a network's outputs as float32 if they are float16 or bfloat16, so that losses are computed precisely.
    Other tensors are returned unchanged.
    """
    return outputs.float() if outputs.dtype is torch.bfloat16 or outputs.dtype is torch.float16 else outputs

"""Encoders: neural networks that map observations of any space to feature vectors.

An encoder takes observations with any leading axes, `[*leading, *shape]` in the structure of the space, and returns
features `[*leading, num_features]`. The key "action_mask" of a Dict is ignored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from episode_learners.networks.heads import ACTION_MASK
from episode_learners.networks.layers import HIDDEN_GAIN, flat, hidden_layers
from episodes.errors import InvalidArgument
from episodes.tracks.space_kinds import SpaceKind, choices_of, is_box, kind_of, parts_of, rejected_space

__all__ = ["ChoiceEncoder", "FlatEncoder", "ImageEncoder", "LeafEncoders", "encoder_for", "is_image"]

_NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # channels, kernel, stride: https://doi.org/10.1038/nature14236
_SMALL = ((16, 3, 1), (32, 3, 2))  # for images that are too small for these
_NATURE_SIDE, _SMALL_SIDE = 36, 5  # the shortest side that leaves something to look at


class FlatEncoder(nn.Sequential):
    """Multilayer perceptron that encodes observations of a Box or MultiBinary, flattened. It has one layer for each of
    `hidden_sizes`.
    """

    def __init__(
        self,
        space: gym.Space,
        hidden_sizes: Sequence[int],
        activation: type[nn.Module],
        generator: torch.Generator | None,
    ) -> None:
        shape = space.shape or ()
        sizes = (math.prod(shape), *hidden_sizes)
        super().__init__(*hidden_layers(sizes, activation, generator))
        self.num_axes, self.num_features = len(shape), sizes[-1]

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(flat(input, input.ndim - self.num_axes))


class ChoiceEncoder(nn.Module):
    """Multilayer perceptron that encodes one-hot vectors of Discrete or MultiDiscrete observations. Values outside of
    the space become zeros.
    """

    values: Tensor
    places: Tensor

    def __init__(
        self,
        space: spaces.Discrete | spaces.MultiDiscrete,
        hidden_sizes: Sequence[int],
        activation: type[nn.Module],
        generator: torch.Generator | None,
    ) -> None:
        super().__init__()
        firsts, counts = map(np.ravel, choices_of(space))
        values = np.concatenate([first + np.arange(count) for first, count in zip(firsts, counts, strict=True)])
        self.register_buffer("values", torch.from_numpy(values.astype(np.int64)), persistent=False)
        places = torch.from_numpy(np.repeat(np.arange(len(counts)), counts))
        self.register_buffer("places", places, persistent=False)
        sizes = (len(values), *hidden_sizes)
        self.layers = nn.Sequential(*hidden_layers(sizes, activation, generator))
        self.num_axes, self.num_features = len(space.shape or ()), sizes[-1]

    def forward(self, obs: Tensor) -> Tensor:
        choices = obs.reshape(*obs.shape[: obs.ndim - self.num_axes], -1)
        return self.layers((choices[..., self.places] == self.values).float())


class ImageEncoder(nn.Module):
    """Convolutional network that encodes images [H, W, C] or [C, H, W] (Mnih et al., 2015). Small images get a smaller
    network.

    The shorter of the first and last axis are the channels. Images of bytes are divided by 255.
    """

    def __init__(
        self,
        space: spaces.Box,
        hidden_sizes: Sequence[int],
        activation: type[nn.Module],
        generator: torch.Generator | None,
    ) -> None:
        super().__init__()
        self.channels_first = space.shape[0] < space.shape[-1]
        self.scale = 1 / 255 if space.dtype == np.uint8 else 1.0
        channels, *sides = space.shape if self.channels_first else (space.shape[-1], *space.shape[:-1])
        layers: list[nn.Module] = []
        for num_out, kernel, stride in _NATURE if min(sides) >= _NATURE_SIDE else _SMALL:
            convolution = nn.Conv2d(channels, num_out, kernel, stride)
            nn.init.orthogonal_(convolution.weight, HIDDEN_GAIN, generator=generator)
            nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]
            layers += [convolution, nn.ReLU()]
            channels, sides = num_out, [(side - kernel) // stride + 1 for side in sides]
        self.convolutions = nn.Sequential(*layers, nn.Flatten())
        sizes = (channels * math.prod(sides), *hidden_sizes)
        self.layers = nn.Sequential(*hidden_layers(sizes, activation, generator))
        self.num_features = sizes[-1]

    def forward(self, obs: Tensor) -> Tensor:
        """Return the features [*leading, num_features] of images [*leading, ...]."""
        leading = obs.shape[:-3]
        images = obs.reshape(-1, *obs.shape[-3:])
        images = images if self.channels_first else images.movedim(-1, 1)
        first: Any = self.convolutions[0]
        features = self.layers(self.convolutions(images.to(first.weight.dtype) * self.scale))
        return features.reshape(*leading, self.num_features)


class LeafEncoders(nn.Module):
    """Encoder of Dict or Tuple observations: a separate encoder for each part, and a layer that combines the features
    of all parts.

    Raises:
        InvalidArgument: the space has no parts besides the action mask.
    """

    def __init__(
        self,
        space: spaces.Dict | spaces.Tuple,
        hidden_sizes: Sequence[int],
        activation: type[nn.Module],
        generator: torch.Generator | None,
    ) -> None:
        super().__init__()
        parts = parts_of(space)
        self.keys = [key for key in parts if key != ACTION_MASK]
        if not self.keys:
            raise InvalidArgument(f"observation_space {space}: it has no numbers; give a space with at least one")
        encoders = [encoder_for(parts[key], hidden_sizes, activation, generator) for key in self.keys]
        sizes = (sum(encoder.num_features for encoder in encoders), *hidden_sizes[-1:])
        self.parts = nn.ModuleList(encoders)
        self.layers = nn.Sequential(*hidden_layers(sizes, activation, generator))
        self.num_features = sizes[-1]

    def forward(self, obs: Mapping[Any, Any] | tuple[Any, ...]) -> Tensor:
        return self.layers(torch.cat([part(obs[key]) for key, part in zip(self.keys, self.parts, strict=True)], -1))


Encoder = FlatEncoder | ChoiceEncoder | ImageEncoder | LeafEncoders


def encoder_for(
    space: gym.Space,
    hidden_sizes: Sequence[int] = (64, 64),
    activation: type[nn.Module] = nn.ReLU,
    generator: torch.Generator | None = None,
) -> Encoder:
    """Return a neural network that maps observations of `space`, [*leading, ...], to features [*leading, num_features].

    Images (see `is_image`) go through convolutions and then layers of `hidden_sizes`. Discrete values become
    one-hot, and other numbers are flattened. Each part of a Dict or Tuple has a separate encoder, and one layer
    follows. The network has the attribute `num_features`.

    Args:
        space: the space of the items.
        hidden_sizes: sizes of the hidden layers.
        activation: the activation module.
        generator: random generator of the initial weights.

    Raises:
        InvalidArgument: items of the space have no fixed shape, or are text.

    >>> camera = spaces.Dict({"eye": spaces.Box(0, 255, (84, 84, 3), np.uint8), "room": spaces.Discrete(4)})
    >>> encoder = encoder_for(camera, (64,))
    >>> encoder({"eye": torch.zeros(5, 2, 84, 84, 3, dtype=torch.uint8), "room": torch.zeros(5, 2)}).shape
    torch.Size([5, 2, 64])
    """
    known: Any = space
    match kind_of(space):
        case SpaceKind.DICT | SpaceKind.TUPLE:
            return LeafEncoders(known, hidden_sizes, activation, generator)
        case SpaceKind.DISCRETE | SpaceKind.MULTI_DISCRETE:
            return ChoiceEncoder(known, hidden_sizes, activation, generator)
        case SpaceKind.BOX if is_image(space):
            return ImageEncoder(known, hidden_sizes, activation, generator)
        case SpaceKind.BOX | SpaceKind.MULTI_BINARY:
            return FlatEncoder(space, hidden_sizes, activation, generator)
    allowed = "a Box, Discrete, MultiDiscrete, MultiBinary, or Dict or Tuple of these"
    advice = "put an ObservationPreprocessor into the env-to-module pipeline that makes one of them"
    raise rejected_space("observation_space", space, allowed, advice)


def is_image(space: gym.Space) -> bool:
    """Return True if a space contains images: a Box with three axes, bytes or numbers from 0 to 1, and sides of at
    least 5.
    """
    if not is_box(space) or len(space.shape) != 3:
        return False
    sides = space.shape[1:] if space.shape[0] < space.shape[-1] else space.shape[:-1]
    of_bytes = space.dtype == np.uint8
    return min(sides) >= _SMALL_SIDE and bool(of_bytes or (space.low.min() >= 0 and space.high.max() <= 1))

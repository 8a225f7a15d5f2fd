"""Spaces, policies and actors that the tests of exported and saved actors share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from connectors import Actor, distribution_for
from episode_learners import EncoderPolicy, MLPPolicy, QPolicy
from episode_learners.networks import Autoregressive
from episodes.tracks import nested

NUMBERS = spaces.Box(-5.0, 5.0, (3,), np.float32)
CHOICE, BOX = spaces.Discrete(3, start=1), spaces.Box(-2.0, 6.0, (2,), np.float32)
PARTS = spaces.Dict(
    {
        "place": NUMBERS,
        "kind": spaces.Discrete(4, start=1),
        "bits": spaces.MultiDiscrete([2, 3]),
        "on": spaces.MultiBinary(2),
    }
)
IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
MASKED = spaces.Dict({"observation": NUMBERS, "action_mask": spaces.MultiBinary(3)})
NESTED = spaces.Dict(
    {
        "go": spaces.Discrete(3, start=-1),
        "how": spaces.Tuple([BOX, spaces.MultiDiscrete([2, 4])]),
        "on": spaces.MultiBinary(2),
    }
)
SMALL: dict[str, Any] = {"hidden_sizes": (16,)}


def squashed(observation_space: Any, action_space: Any) -> MLPPolicy:
    distribution = distribution_for(action_space, squashed=True)
    return MLPPolicy(observation_space, action_space, distribution=distribution, **SMALL)


def autoregressive(observation_space: Any, action_space: Any) -> EncoderPolicy:
    return EncoderPolicy(observation_space, action_space, distribution=Autoregressive(action_space))


def sample_items(space: Any, num: int) -> list[Any]:
    """Return the same `num` items of a space in each call."""
    space.seed(1)
    return [space.sample() for _ in range(num)]


def make_actor(make: Any, observation_space: Any, action_space: Any, pieces: Sequence[Any]) -> Actor:
    """Return an actor with statistics, whose actions depend on its observations."""
    torch.manual_seed(0)
    actor = Actor(make, observation_space, action_space, pieces=pieces)
    with torch.no_grad():
        for parameter in actor.policy.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    if isinstance(actor.policy, QPolicy):
        actor.policy.epsilon = 0.3
    if actor.env_to_module.rewrites:
        actor.env_to_module.rewrite(nested.stack(sample_items(observation_space, 40)), None, True)
    return actor

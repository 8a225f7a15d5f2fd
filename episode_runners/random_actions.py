"""`sample_random_actions`: samples random, legal actions for a vector environment."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv

MASK = "action_mask"  # key of the mask [N, n] in `Dict` observations: which of n discrete actions are legal


def sample_random_actions(env: VectorEnv, observations: Any) -> Any:
    """Return random actions [N, ...] for the newest observations [N, ...] of a vector environment.
    Discrete actions obey an "action_mask" in `Dict` observations.
    """
    space = env.single_observation_space
    has_mask = isinstance(space, spaces.Dict) and MASK in space.spaces
    if has_mask and isinstance(env.single_action_space, spaces.Discrete):
        return env.action_space.sample(mask=tuple(np.asarray(observations[MASK], np.int8)))
    return env.action_space.sample()

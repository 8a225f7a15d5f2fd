"""`RandomActions`: random actions of a vector environment, legal ones where its observations say which are."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

MASK = "action_mask"  # the key of `Dict` observations [N, n] that tells which of n discrete actions are legal


class RandomActions:
    """Draws actions [N, ...] from the action space; where observations have an "action_mask", legal ones.

    A mask is looked at where the observation space is a `Dict` that has one and the actions are `Discrete`.
    """

    def __init__(self, env: gym.vector.VectorEnv) -> None:
        self._space, self._single = env.action_space, env.single_action_space
        space = env.single_observation_space
        masked = isinstance(space, gym.spaces.Dict) and MASK in space.spaces
        self.looks_at_observations = masked and isinstance(self._single, gym.spaces.Discrete)
        self._choices: Any = self._space if type(self._space) is gym.spaces.MultiDiscrete else None

    def draw(self, observations: Any) -> Any:
        """Actions [N, ...]; masks are those of the observations, as the environments themselves gave them."""
        choices = self._choices
        if not self.looks_at_observations:
            if choices is None:
                return self._space.sample()
            drawn = choices.np_random.random(choices.nvec.shape) * choices.nvec  # as it samples, in a third of the time
            return drawn.astype(choices.dtype) + choices.start
        masks = np.asarray(observations[MASK], np.int8)
        return self._space.sample(mask=tuple(masks))

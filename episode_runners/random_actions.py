"""`RandomActions`: samples random, legal actions for a vector environment."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

MASK = "action_mask"  # key of the mask [N, n] in `Dict` observations: which of n discrete actions are legal


class RandomActions:
    """Sampler of random actions [N, ...] for a vector environment.
    Discrete actions obey an "action_mask" in observations.
    """

    def __init__(self, env: gym.vector.VectorEnv) -> None:
        self._space, self._single = env.action_space, env.single_action_space
        space = env.single_observation_space
        masked = isinstance(space, gym.spaces.Dict) and MASK in space.spaces
        self.looks_at_observations = masked and isinstance(self._single, gym.spaces.Discrete)
        self._choices: Any = self._space if type(self._space) is gym.spaces.MultiDiscrete else None

    def sample(self, observations: Any) -> Any:
        """Return random actions [N, ...] for the newest observations [N, ...], which may have action masks."""
        choices = self._choices
        if not self.looks_at_observations:
            if choices is None:
                return self._space.sample()
            drawn = choices.np_random.random(choices.nvec.shape) * choices.nvec  # as `sample`, in a third of the time
            return drawn.astype(choices.dtype) + choices.start
        masks = np.asarray(observations[MASK], np.int8)
        return self._space.sample(mask=tuple(masks))

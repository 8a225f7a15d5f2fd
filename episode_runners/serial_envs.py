"""`SerialVectorEnv`: Gymnasium's `SyncVectorEnv`, whose row costs a third around the environments themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv


class SerialVectorEnv(SyncVectorEnv):
    """Environments that are stepped one after another; rows, infos and errors are those of `SyncVectorEnv`.

    Of a row of one CartPole, 20 of 30 us are spent there on what any space and mode needs: dispatch by the kind of
    space, deep copies, infos that are empty. With next-step autoreset, and observations that are plain arrays, little
    of it is needed; with others a row is stepped as there.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        is_plain = type(self.single_observation_space) is spaces.Box
        acts_plain = isinstance(self.single_action_space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete))
        self._is_plain = is_plain and acts_plain and self.copy and self.autoreset_mode is AutoresetMode.NEXT_STEP

    def step(self, actions: Any) -> Any:
        """Step each environment, or reset it where its episode has ended."""
        if not (self._is_plain and type(actions) is np.ndarray and len(actions) == self.num_envs):
            return super().step(actions)
        observations, rewards, infos = self._env_obs, self._rewards, {}
        terminations, truncations, ended = self._terminations, self._truncations, self._autoreset_envs
        for i, env in enumerate(self.envs):
            if ended[i]:
                observations[i], info = env.reset()
                rewards[i], terminations[i], truncations[i] = 0.0, False, False
            else:
                observations[i], rewards[i], terminations[i], truncations[i], info = env.step(actions[i])
            if info:
                infos = self._add_info(infos, info, i)
        self._observations = self._joined(observations)
        self._autoreset_envs = terminations | truncations
        return self._observations.copy(), rewards.copy(), terminations.copy(), truncations.copy(), infos

    def _joined(self, observations: list[Any]) -> np.ndarray:
        """The observations side by side; one of another shape is numpy's error, as in `SyncVectorEnv`."""
        first = observations[0]
        if len(observations) == 1 and type(first) is np.ndarray and first.shape == self._observations.shape[1:]:
            self._observations[0] = first
            return self._observations
        return np.stack(observations, out=self._observations)

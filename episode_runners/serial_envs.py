"""`SerialVectorEnv`: a faster version of Gymnasium's `SyncVectorEnv` that rejects a reward of None."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, cast

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import concatenate, iterate

from episodes.errors import EpisodeStateError, WrongType


class SerialVectorEnv(SyncVectorEnv):
    """Vector environment that steps its environments one after another,
    with the results of Gymnasium's `SyncVectorEnv`.

    `SyncVectorEnv` spends two thirds of a CartPole row on work that only some spaces and modes need: dispatch by the
    kind of space, deep copies, empty infos. This class skips most of this work for plain arrays.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_plain = type(self.single_observation_space) is spaces.Box and self.copy
        self._acts_plain = isinstance(self.single_action_space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete)

    def step(self, actions: Any) -> Any:
        """Step each environment.
        In next-step autoreset mode, environments that ended in the last call are reset instead.

        Raises:
            WrongType: a reward is None. Gymnasium's own vector environments turn it into NaN.
            EpisodeStateError: an environment has ended, and the autoreset mode is disabled.
        """
        if not (self._acts_plain and type(actions) is np.ndarray and len(actions) == self.num_envs):
            actions = list(iterate(self.action_space, actions))
        observations, rewards, infos = self._env_obs, self._rewards, {}
        terminations, truncations, ended = self._terminations, self._truncations, self._autoreset_envs
        mode = self.autoreset_mode
        for i, env in enumerate(self.envs):
            if ended[i] and mode is AutoresetMode.NEXT_STEP:
                observations[i], info = env.reset()
                rewards[i], terminations[i], truncations[i] = 0.0, False, False
            else:
                if ended[i] and mode is AutoresetMode.DISABLED:
                    raise EpisodeStateError(f"environment {i} has ended; reset it before the next step")
                observation, reward, terminations[i], truncations[i], info = env.step(actions[i])
                if reward is None:
                    raise WrongType("the reward is None; step must return a number")
                observations[i], rewards[i] = observation, reward
                if mode is AutoresetMode.SAME_STEP and (terminations[i] or truncations[i]):
                    infos = self._add_info(infos, {"final_obs": observation, "final_info": info}, i)
                    observations[i], info = env.reset()
            if info:
                infos = self._add_info(infos, info, i)
        self._autoreset_envs = terminations | truncations
        if self._is_plain:
            self._observations = self._stacked(observations)
            row = self._observations.copy()
        else:
            self._observations = concatenate(self.single_observation_space, observations, self._observations)
            row = deepcopy(self._observations) if self.copy else self._observations
        return row, rewards.copy(), terminations.copy(), truncations.copy(), infos

    def _stacked(self, observations: list[Any]) -> np.ndarray:
        """Stack the environments' observations into one array [N, ...].

        Raises:
            ValueError: the observations have different shapes (numpy's error).
        """
        first, row = observations[0], cast(np.ndarray, self._observations)
        if len(observations) == 1 and type(first) is np.ndarray and first.shape == row.shape[1:]:
            row[0] = first
            return row
        return np.stack(observations, out=row)

"""`SerialVectorEnv` and `CheckedEnv`: environments whose results are checked before they are stacked."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import concatenate, iterate

from episodes.errors import EpisodeStateError, WrongType
from episodes.tracks.casting import REAL_TYPES, checked_reward
from episodes.tracks.copies import copied
from episodes.tracks.fitting import check_fits

_BOOLS = (bool, np.bool_)


class CheckedEnv(gym.Wrapper):
    """Environment wrapper that raises an error if an observation does not fit its space, or a reward is no number.

    An `AsyncVectorEnv` casts observations into shared memory, where 0.5 becomes 0 and 300 becomes 44. This wrapper
    checks them before, in the process of the environment.

    Args:
        env: the environment.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment and check the observation.

        Raises:
            ShapeMismatch: the observation does not fit the space.
        """
        observation, infos = self.env.reset(seed=seed, options=options)
        check_fits(observation, self.env.observation_space, lambda: "reset", "observations")
        return observation, infos

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment and check its result.

        Raises:
            ShapeMismatch: the observation does not fit the space, or the reward is an array.
            WrongType: the reward is not a number, or a flag is not a bool.
        """
        observation, reward, terminated, truncated, infos = self.env.step(action)
        check_fits(observation, self.env.observation_space, lambda: "step", "observations")
        reward = checked_reward(reward, lambda: "step")
        terminated, truncated = as_flag("terminated", terminated), as_flag("truncated", truncated)
        if terminated or truncated:  # a same-step autoreset sends them after `reset`, which may reuse their arrays
            observation, infos = copied(observation), copied(infos)
        return observation, reward, terminated, truncated, infos


def as_flag(name: str, flag: Any) -> bool:
    """Return an ending flag of an environment as a bool.

    Raises:
        WrongType: the flag is neither a bool nor 0 or 1.
    """
    if type(flag) not in _BOOLS and (np.ndim(flag) or np.asarray(flag).dtype.kind not in "biuf" or flag not in (0, 1)):
        raise WrongType(f"step: {name}={flag!r}; step must return (observation, a number, bool, bool, dict)")
    return bool(flag)


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
            WrongType: a reward is not a number, or a flag not a bool. Gymnasium's own vector environments turn None
                into NaN and False.
            ShapeMismatch: an observation does not fit the space, or a reward is an array.
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
                observation, reward, terminated, truncated, info = env.step(actions[i])
                if type(reward) not in REAL_TYPES:
                    reward = checked_reward(reward, lambda: "step")
                if type(terminated) is not bool or type(truncated) is not bool:
                    terminated, truncated = as_flag("terminated", terminated), as_flag("truncated", truncated)
                terminations[i], truncations[i] = terminated, truncated
                observations[i], rewards[i] = observation, reward
                if mode is AutoresetMode.SAME_STEP and (terminations[i] or truncations[i]):
                    last = copied({"final_obs": observation, "final_info": info})  # `reset` may reuse its arrays
                    infos = self._add_info(infos, last, i)
                    observations[i], info = env.reset()
            if info:
                infos = self._add_info(infos, info, i)
        self._autoreset_envs = terminations | truncations
        if self._is_plain:
            self._observations = self._stacked(observations)
            row = self._observations.copy()
        else:
            for i, observation in enumerate(observations):  # noqa: B007 # `i` names the environment in errors
                check_fits(observation, self.single_observation_space, lambda: "step", "observations")
            self._observations = concatenate(self.single_observation_space, observations, self._observations)
            row = deepcopy(self._observations) if self.copy else self._observations
        return row, rewards.copy(), terminations.copy(), truncations.copy(), infos

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """Reset the environments and check their observations.

        Raises:
            ShapeMismatch: an observation does not fit the space.
        """
        result = super().reset(seed=seed, options=options)
        for i, observation in enumerate(self._env_obs):  # noqa: B007 # `i` names the environment in errors
            check_fits(observation, self.single_observation_space, lambda: "reset", "observations")
        return result

    def _stacked(self, observations: list[Any]) -> np.ndarray:
        """Stack the environments' observations into one array [N, ...].

        Raises:
            ShapeMismatch: an observation does not fit the space.
        """
        row = cast(np.ndarray, self._observations)
        dtype, shape = row.dtype, row.shape[1:]
        for i, observation in enumerate(observations):  # `i` names the environment in errors
            if type(observation) is not np.ndarray or observation.dtype is not dtype or observation.shape != shape:
                check_fits(observation, self.single_observation_space, lambda: "step", "observations")
            row[i] = observation
        return row

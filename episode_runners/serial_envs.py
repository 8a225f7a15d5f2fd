"""`SerialVectorEnv`, and checks of what environments return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import concatenate, iterate

from episode_runners.restarts import EnvPlace, EnvReplacement, RestartedEnv
from episodes.errors import EpisodeStateError, TrackMismatch, WrongType
from episodes.tracks.casting import REAL_TYPES, checked_reward
from episodes.tracks.copies import copied
from episodes.tracks.fitting import check_fits
from episodes.tracks.space_kinds import SpaceKind, exact_kind_of, kind_of

_BOOLS = (bool, np.bool_)
_STEP = "(observation, a number, bool, bool, dict)"


def checked_reset(result: object, space: gym.Space) -> tuple[Any, dict[str, Any]]:
    """Return what `reset` of an environment returned, after a check.

    A later cast into shared memory would hide misfits: 0.5 becomes 0 and 300 becomes 44.

    Raises:
        TrackMismatch: there are not two parts.
        WrongType: the infos are not a dict.
        ShapeMismatch: the observation does not fit the space.
    """
    observation, infos = _parts("reset", result, "(observation, dict)", 2)
    check_fits(observation, space, lambda: "reset", "observations")
    return observation, infos


def checked_step(result: object, space: gym.Space) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
    """Return what `step` of an environment returned, after a check.

    Raises:
        TrackMismatch: there are not five parts.
        ShapeMismatch: the observation does not fit the space, or the reward is an array.
        WrongType: the reward is not a number, a flag is not a bool, or the infos are not a dict.
    """
    observation, reward, terminated, truncated, infos = _parts("step", result, _STEP, 5)
    check_fits(observation, space, lambda: "step", "observations")
    reward = checked_reward(reward, lambda: "step")
    terminated, truncated = as_flag("terminated", terminated), as_flag("truncated", truncated)
    if terminated or truncated:  # a same-step autoreset sends them after `reset`, which may reuse their arrays
        observation, infos = copied(observation), copied(infos)
    return observation, reward, terminated, truncated, infos


def _parts(call: str, result: object, wanted: str, num_parts: int) -> Any:
    """Return the result of an environment's `reset` or `step` if it has `num_parts` parts, of which the last is a dict.

    Raises:
        TrackMismatch: it has not.
        WrongType: the last part is not a dict.
    """
    if not isinstance(result, (tuple, list)) or len(result) != num_parts:
        returned = f"{len(result)} items" if isinstance(result, (tuple, list)) else f"a {type(result).__name__}"
        raise TrackMismatch(f"{call} returned {returned}; its {call} must return {wanted}")
    if not isinstance(result[-1], dict):
        raise WrongType(f"{call}: infos are a {type(result[-1]).__name__}; its {call} must return {wanted}")
    return result


def as_flag(name: str, flag: Any) -> bool:
    """Return an ending flag of an environment as a bool.

    Raises:
        WrongType: the flag is neither a bool nor 0 or 1.
    """
    if type(flag) not in _BOOLS and (np.ndim(flag) or np.asarray(flag).dtype.kind not in "biuf" or flag not in (0, 1)):
        raise WrongType(f"step: {name}={flag!r}; step must return {_STEP}")
    return bool(flag)


class SerialVectorEnv(SyncVectorEnv):
    """Vector environment that steps its environments one after another,
    with the results of Gymnasium's `SyncVectorEnv`.

    `SyncVectorEnv` spends two thirds of a CartPole row on work that only some spaces and modes need: dispatch by the
    kind of space, deep copies, empty infos. This class skips most of this work for plain arrays.

    Args:
        env_fns: functions that make the environments.
        restart_failed: replace an environment that raises an error (next-step autoreset only).
        kwargs: other arguments of `SyncVectorEnv`.

    Attributes:
        replaced: as in `ProcessVectorEnv`.
        replacements: all replacements.
    """

    def __init__(
        self, env_fns: Sequence[Callable[[], gym.Env]], *, restart_failed: bool = False, **kwargs: Any
    ) -> None:
        self.restart_failed, self._makers = restart_failed, env_fns
        self.replaced: list[int] = []
        self.replacements: list[EnvReplacement] = []
        if restart_failed:
            places = [EnvPlace(i, make, self.replacements) for i, make in enumerate(env_fns)]
            env_fns = [partial(RestartedEnv, make, place) for make, place in zip(env_fns, places, strict=True)]
        super().__init__(env_fns, **kwargs)
        self._is_plain = exact_kind_of(self.single_observation_space) is SpaceKind.BOX and self.copy
        self._acts_plain = kind_of(self.single_action_space).is_array

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
        self.replaced = []
        for i, env in enumerate(self.envs):
            if ended[i] and mode is AutoresetMode.NEXT_STEP:
                observations[i], info = env.reset()
                rewards[i], terminations[i], truncations[i] = 0.0, False, False
            else:
                if ended[i] and mode is AutoresetMode.DISABLED:
                    raise EpisodeStateError(f"environment {i} has ended; reset it before the next step")
                try:
                    result = env.step(actions[i])
                except Exception as error:
                    if not self.restart_failed:
                        raise
                    result = self._replace(i, error)
                observation, reward, terminated, truncated, info = result
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
        if self.restart_failed:
            for i in self._autoreset_envs.nonzero()[0].tolist():
                cast(RestartedEnv, self.envs[i]).place.note_end()
        if self._is_plain:
            self._observations = self._stacked(observations)
            row = self._observations.copy()
        else:
            for i, observation in enumerate(observations):  # noqa: B007 # `i` names the environment in errors
                check_fits(observation, self.single_observation_space, lambda: "step", "observations")
            self._observations = concatenate(self.single_observation_space, observations, self._observations)
            row = deepcopy(self._observations) if self.copy else self._observations
        return row, rewards.copy(), terminations.copy(), truncations.copy(), infos

    def _replace(self, i: int, error: Exception) -> Any:
        """Replace environment `i`, and return its row: the first observation, which is the result of no step."""
        observation, info = cast(RestartedEnv, self.envs[i]).replace(error)
        self.replaced.append(i)
        return observation, 0.0, False, False, info

    def with_num_envs(self, num_envs: int) -> SerialVectorEnv:
        """Return a vector environment of other environments of the same kind."""
        makers = self._makers[:num_envs]
        return SerialVectorEnv(makers, autoreset_mode=self.autoreset_mode, restart_failed=self.restart_failed)

    def reset(self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None) -> Any:
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

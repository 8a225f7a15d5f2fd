"""`RunnerEnvs`: the vector environment of a single-agent runner, with its resets and its newest row."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from episode_runners.dropped_envs import close_when_dropped, makes_envs
from episode_runners.process_envs import ProcessVectorEnv
from episode_runners.serial_envs import SerialVectorEnv
from episode_runners.vector_envs import EnvLike, autoreset_mode_of, close_vector_env, env_like, make_vector_env
from episodes.errors import InvalidArgument
from episodes.recorder.boundaries import final_observations_of
from episodes.tracks.copies import copied
from episodes.tracks.spaces import as_rows

__all__ = ["RunnerEnvs"]


class RunnerEnvs:
    """Vector environment that a runner steps, with its autoreset mode, its seed and its newest row.

    Args:
        runner: the runner. Environments made here are closed when it is dropped.
        env: a Gymnasium id, a callable that makes an environment, or a vector environment.
        num_envs: number of environments to make, 1 by default.
        mode: autoreset mode of environments made here, or of a vector environment that does not state its own.
        options: other arguments of `make_vector_env`.

    Attributes:
        env: the vector environment.
        mode: its autoreset mode.
        forget: cancels the closing of the environments when the runner is dropped, or None for those of the caller.
        all: the indices of all environments, int [N].
        restarting: the environments, if failed ones are replaced, else None.
        reset_seed: seed of the next reset of all environments, or None.
        observations: observations [N, ...] of the newest row, as the environments returned them.
        row: the newest result of `step`, or (observations, infos) of a reset. It can be invalid.

    Raises:
        InvalidArgument: an argument is invalid for `make_vector_env`, or `restart_failed` below a vector wrapper.
    """

    __slots__ = ("_made_of", "all", "env", "forget", "mode", "observations", "reset_seed", "restarting", "row")

    def __init__(
        self,
        runner: Any,
        env: EnvLike,
        num_envs: int | None,
        mode: AutoresetMode | str | None,
        options: dict[str, Any],
    ) -> None:
        self._made_of = env, {**options, "autoreset_mode": mode}
        wanted_mode = None if isinstance(env, gym.vector.VectorEnv) else mode
        self.env = make_vector_env(env, num_envs, autoreset_mode=wanted_mode, **options)
        is_made = isinstance(env, str) or makes_envs(env)
        self.forget = close_when_dropped(runner, [self.env]) if is_made else None
        self.mode = autoreset_mode_of(self.env, mode)
        self.all = np.arange(self.env.num_envs)
        self.reset_seed: int | None = None
        self.observations: Any = None
        self.row: Any = None
        inner = self.env.unwrapped
        self.restarting: ProcessVectorEnv | SerialVectorEnv | None = None
        if isinstance(inner, (ProcessVectorEnv, SerialVectorEnv)) and inner.restart_failed:
            if inner is not self.env:
                raise InvalidArgument(
                    f"restart_failed=True below {self.env}: a vector wrapper takes the first observation of a new "
                    "environment for a step; wrap each environment in the callable instead"
                )
            self.restarting = inner

    def seed(self, seed: int | None) -> None:
        """Set the seed of the next reset of all environments, and of random actions."""
        self.reset_seed = seed
        self.env.action_space.seed(seed)

    def reset(self) -> dict[str, Any]:
        """Reset all environments, and return the infos."""
        self.row = self.env.reset(seed=self.reset_seed)
        observations, infos = self.row
        self.reset_seed = None
        self.observations = self._as_rows(observations)
        return infos

    def reset_where(self, done: np.ndarray) -> dict[str, Any]:
        """Reset the environments flagged in `done`, bool [N], and return the infos."""
        observations, infos = self.env.reset(options={"reset_mask": done.copy()})
        self.observations = self._as_rows(observations)
        return infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, dict[str, Any]]:
        """Take one step with the actions [N, ...], and return rewards [N], both end flags [N] and the infos."""
        self.row = self.env.step(copied(actions))  # environments may clip or scale them in place
        observations, rewards, terminateds, truncateds, infos = self.row
        self.observations = observations if type(observations) is np.ndarray else self._as_rows(observations)
        return rewards, terminateds, truncateds, infos

    def last_observations(self, infos: dict[str, Any], done: np.ndarray) -> Any:
        """Return the last observations [k, ...] of the k episodes whose environments are flagged in `done`, bool [N].
        None for k = 0.
        """
        envs = np.flatnonzero(done)
        return final_observations_of(infos, envs, self.env.single_observation_space) if len(envs) else None

    def _as_rows(self, observations: Any) -> Any:
        """Convert observations of the vector environment to nested arrays [N, ...]."""
        return as_rows(observations, self.env.single_observation_space)

    def like(self, num_envs: int | None) -> tuple[EnvLike, dict[str, Any]]:
        """Return the arguments of a runner for environments that are made like these: `env`, and the others by name.

        Raises:
            InvalidArgument: the environments were given as objects.
        """
        env, options = self._made_of
        num_envs = self.env.num_envs if num_envs is None else num_envs
        env_again = env_like(env, num_envs)
        return env_again, {**options, "num_envs": None if isinstance(env_again, gym.vector.VectorEnv) else num_envs}

    def close(self) -> None:
        """Close the environments."""
        close_vector_env(self.env)

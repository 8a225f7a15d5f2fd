"""Gymnasium wrappers that write all episodes of an environment to a data set on disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from episodes.data_types import Space
from episodes.errors import EpisodeStateError, InvalidArgument
from episodes.recorder.env_turns import EnvTurns
from episodes.recorder.vector_recorder import VectorRecorder
from episodes.single_agent import SingleAgentEpisode
from episodes.storage.header import to_storable_spec
from episodes.storage.writer import EpisodeWriter
from episodes.tracks.copies import copied
from episodes.tracks.spaces import irregular_part, varying_shapes_error

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

CHUNK_BYTES = 1 << 24  # size of the observations in memory at which a chunk is written
MOST_STEPS = 10_000


class RecordEpisodes(gym.Wrapper):
    """Gymnasium wrapper that writes all episodes of the environment to a data set on disk.

    An episode is written when it ends. A long episode is written in several chunks. An episode that is interrupted by a
    reset or by `close` is written as a cut chunk. `writer.flush()` makes written episodes survive a killed process. The
    data set stores the environment's spec, or only its id if JSON cannot represent the spec.

    For a vector environment the constructor returns a `RecordVectorEpisodes`.

    Args:
        env: an environment, or a vector environment in any of the three autoreset modes.
        path: the data set; an existing one is appended to.
        chunk_steps: largest number of steps in memory (of vector steps for a vector environment). None: as many as have
            16 MiB of observations.
        options: further arguments of `EpisodeWriter`, such as `compression`.

    Attributes:
        writer: the `EpisodeWriter`.

    Raises:
        InvalidArgument: `chunk_steps` is below 1, or a vector environment has no autoreset mode; and those of
            `EpisodeWriter`.
        ShapeMismatch: items of a space have no common shape, as those of Sequence, Graph and OneOf.

    >>> import tempfile
    >>> from episodes.storage import EpisodeDataset
    >>> with tempfile.TemporaryDirectory() as path:
    ...     env = RecordEpisodes(gym.make("CartPole-v1", max_episode_steps=7), path)
    ...     done = env.reset(seed=3) is None
    ...     while not done:
    ...         *_, terminated, truncated, infos = env.step(0 if env.unwrapped.state[2] < 0 else 1)
    ...         done = terminated or truncated
    ...     env.close()
    ...     EpisodeDataset(path)[0]
    SingleAgentEpisode(...7 steps...)
    """

    def __new__(cls, env: gym.Env | VectorEnv, *args: Any, **options: Any) -> Any:
        if isinstance(env, VectorEnv):
            return RecordVectorEpisodes(env, *args, **options)
        return super().__new__(cls)

    def __init__(self, env: gym.Env, path: str | Path, *, chunk_steps: int | None = None, **options: Any) -> None:
        super().__init__(env)
        self.writer = _writer(path, env.observation_space, env.action_space, env.spec, options)
        self._chunk_steps = _chunk_steps(chunk_steps, env.observation_space, 1)
        self._episode: SingleAgentEpisode | None = None
        self._num_steps = 0  # of the current chunk
        self._turns = EnvTurns([self], is_wrapper=True)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment, and begin to record a new episode. An unfinished previous episode is
        written up to its last step."""
        self._turns.begin()
        try:
            self._write_rest()
            observation, infos = self.env.reset(seed=seed, options=options)
        finally:
            self._turns.end()
        episode = SingleAgentEpisode(observation_space=self.env.observation_space, action_space=self.env.action_space)
        if seed is not None:
            episode.custom_data["seed"] = int(seed)
        episode.add_env_reset(observation, infos)
        self._episode, self._num_steps = episode, 0
        return observation, infos

    def step(self, action: object) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment and record the step. An episode is written when it ends, a long one in several chunks.

        Raises:
            EpisodeStateError: there is no ongoing episode, or a runner, a wrapper or `evaluate` has used the same
                environment object since the last step.
        """
        episode = self._episode
        if episode is None:
            raise EpisodeStateError(
                "there is no episode to record: call reset() before the first step, and after an end"
            )
        copied_action = copied(action)  # before an environment clips it in place
        self._turns.resume()
        try:
            observation, reward, terminated, truncated, infos = result = self.env.step(action)
        finally:
            self._turns.end()
        episode.add_env_step(observation, copied_action, reward, infos, terminated=terminated, truncated=truncated)
        if episode.is_done:
            self._episode = None
            self.writer.add([episode.to_numpy()])
            return result
        self._num_steps += 1
        if self._num_steps >= self._chunk_steps:
            self._episode, self._num_steps = episode.cut(), 0
            self.writer.add([episode.to_numpy()])
        return result

    def close(self) -> None:
        """Write the unfinished episode (if any) up to its last step, finish the data set, and close the environment."""
        self._write_rest()
        self.writer.close()
        super().close()

    def _write_rest(self) -> None:
        episode, self._episode = self._episode, None
        if episode is not None and self._num_steps:
            self.writer.add([episode.to_numpy()])


class RecordVectorEpisodes(gym.vector.VectorWrapper):
    """Gymnasium vector wrapper that writes the episodes of all its environments to a data set on disk. It has the
    arguments of `RecordEpisodes`.

    Raises:
        InvalidArgument: the environment's metadata has no autoreset mode; and as in `RecordEpisodes`.
    """

    def __init__(self, env: VectorEnv, path: str | Path, *, chunk_steps: int | None = None, **options: Any) -> None:
        super().__init__(env)
        mode = getattr(env.unwrapped, "autoreset_mode", None) or env.metadata.get("autoreset_mode")
        if mode is None:
            raise InvalidArgument(f"{env} does not declare its autoreset mode: put an AutoresetMode into its metadata")
        observed, action_space = env.single_observation_space, env.single_action_space
        self.writer = _writer(path, observed, action_space, env.spec, options)
        self._recorder = VectorRecorder(env.num_envs, observed, action_space, autoreset_mode=AutoresetMode(mode))
        self._chunk_steps = _chunk_steps(chunk_steps, observed, env.num_envs)
        self._num_rows = 0  # recorded vector steps that are not written yet
        self._turns = EnvTurns([self], is_wrapper=True)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or only the environments in `options["reset_mask"]`, and
        begin to record new episodes."""
        mask = (options or {}).get("reset_mask")  # read it first: Gymnasium removes it from the options
        self._turns.begin() if mask is None else self._turns.resume()
        try:
            observations, infos = self.env.reset(seed=seed, options=options)
        finally:
            self._turns.end()
        self._recorder.reset(observations, infos, mask)
        return observations, infos

    def step(self, actions: object) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments and record the steps. Recorded steps are written to disk in chunks.

        Raises:
            EpisodeStateError: a runner, a wrapper or `evaluate` has used the same environment objects since the last
                step.
        """
        copied_actions = copied(actions)
        self._turns.resume()
        try:
            result = self.env.step(actions)
        finally:
            self._turns.end()
        observations, rewards, terminated, truncated, infos = result
        self._recorder.step(observations, copied_actions, rewards, terminated, truncated, infos)
        self._num_rows += 1
        if self._num_rows >= self._chunk_steps:
            self._write()
        return result

    def close(self, **options: Any) -> None:
        """Write unfinished episodes up to their last steps, finish the data set, and close the environments."""
        self._write()
        self.writer.close()
        super().close(**options)

    def _write(self) -> None:
        if self._num_rows:
            self._num_rows = 0
            self.writer.add(self._recorder.take())


def _writer(
    path: str | Path, observed: spaces.Space, action_space: spaces.Space, spec: EnvSpec | None, options: dict[str, Any]
) -> EpisodeWriter:
    """Return a writer to `path` for an environment's episodes. `options`, of the user, override the environment's
    settings.

    Raises:
        ShapeMismatch: items of a space vary in shape, as those of Sequence, Graph and OneOf do.
    """
    for name, space in (("observations", observed), ("actions", action_space)):
        part = irregular_part(space)
        if part is not None:
            raise varying_shapes_error(name, part)
    facts = {"observation_space": observed, "action_space": action_space, "env_spec": to_storable_spec(spec)}
    return EpisodeWriter(path, **facts | options)


def _chunk_steps(chunk_steps: int | None, space: spaces.Space, num_envs: int) -> int:
    """Return after how many steps a chunk is written: the user's `chunk_steps`, or as many as `CHUNK_BYTES` of
    observations allow.

    Raises:
        InvalidArgument: `chunk_steps` is less than 1.
    """
    if chunk_steps is not None:
        if chunk_steps < 1:
            raise InvalidArgument(f"chunk_steps={chunk_steps}: give at least 1")
        return chunk_steps
    return max(1, min(MOST_STEPS, CHUNK_BYTES // (_item_bytes(space) * num_envs)))


def _item_bytes(space: Space) -> int:
    """Return the approximate size in bytes of one item of a Gymnasium space."""
    parts = getattr(space, "spaces", None)
    if parts is not None:
        return sum(map(_item_bytes, parts.values() if isinstance(parts, dict) else parts)) or 1
    shape = getattr(space, "shape", None) or ()
    return max(8, int(np.prod(shape)) * (np.dtype(space.dtype).itemsize if space.dtype is not None else 8))

"""`ReplayFeed`: what a runner's environments do goes straight into a replay buffer, a block a vector step."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from episodes.errors import UnknownKey, WrongType
from episodes.replay import EpisodeReplayBuffer


class ReplayFeed:
    """Writes vector steps into a buffer, and counts the steps and the whole episodes. No Python work per environment.

    Attributes:
        buffer: that is fed.
        keys: of the extra model outputs that are stored.
    """

    def __init__(
        self,
        buffer: EpisodeReplayBuffer,
        num_envs: int,
        autoreset_mode: AutoresetMode,
        observation_space: gym.Space | None = None,
        action_space: gym.Space | None = None,
    ) -> None:
        if not isinstance(buffer, EpisodeReplayBuffer):
            raise WrongType(
                f"cannot feed a {type(buffer).__name__}: give an EpisodeReplayBuffer, or add what sample() gives"
            )
        self.buffer = buffer
        self.keys: Collection[str] = ()
        spaces = {"observation_space": observation_space, "action_space": action_space}
        self._recorder = buffer.recorder(num_envs, autoreset_mode=autoreset_mode, **spaces)
        self._resets_next_step = autoreset_mode is AutoresetMode.NEXT_STEP
        self._returns = np.zeros(num_envs)  # of the ongoing episodes
        self._lengths = np.zeros(num_envs, np.int64)
        self._begun = np.zeros(0, np.intp)  # environments whose next row is a reset, not a step
        self._num_steps = 0
        self._ended: list[tuple[np.ndarray, np.ndarray]] = []

    @property
    def is_reset(self) -> bool:
        """Whether steps may follow, see `ReplayRecorder.is_reset`."""
        return self._recorder.is_reset

    def reset(self, observations: Any, infos: dict[str, Any], reset_mask: np.ndarray | None = None) -> None:
        """Begin new episodes everywhere or where the mask [N] is True."""
        self._recorder.reset(observations, infos, reset_mask)
        where = slice(None) if reset_mask is None else reset_mask
        self._returns[where] = 0.0
        self._lengths[where] = 0
        if reset_mask is None:
            self._begun = self._begun[:0]

    def step(
        self,
        observations: Any,
        actions: Any,
        rewards: np.ndarray,
        terminateds: np.ndarray,
        truncateds: np.ndarray,
        infos: dict[str, Any],
        extra_model_outputs: dict[str, Any],
        *,
        final_observations: Any = None,
    ) -> None:
        """Store a vector step, as `ReplayRecorder.step` takes it; of the extra model outputs, those of `keys`."""
        missing = [key for key in self.keys if key not in extra_model_outputs]
        if missing:
            raise UnknownKey(f"no extra model output {missing[0]!r} to store; there are {list(extra_model_outputs)}")
        stored = {key: extra_model_outputs[key] for key in self.keys}
        row = (observations, actions, rewards, terminateds, truncateds, infos, stored)
        self._recorder.step(*row, final_observations=final_observations)
        begun = self._begun
        self._num_steps += len(self._returns) - len(begun)
        self._returns += rewards
        self._lengths += 1
        done = terminateds | truncateds
        if len(begun):
            self._returns[begun] = 0.0
            self._lengths[begun] = 0
            done[begun] = False
        self._end(done.nonzero()[0])

    def _end(self, envs: np.ndarray) -> None:
        if len(envs):
            self._ended.append((self._returns[envs], self._lengths[envs]))
            self._returns[envs] = 0.0
            self._lengths[envs] = 0
        self._begun = envs if self._resets_next_step else envs[:0]

    def take(self) -> tuple[int, np.ndarray, np.ndarray]:
        """The steps since the last take, and the returns [k] and lengths [k] of the whole episodes that ended."""
        nothing = (self._returns[:0], self._lengths[:0])
        returns, lengths = (np.concatenate(parts) for parts in zip(nothing, *self._ended, strict=True))
        num_steps, self._num_steps = self._num_steps, 0
        self._ended = []
        return num_steps, returns, lengths

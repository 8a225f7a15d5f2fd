"""How many functions of the library run in a vector step: its cost beside policy and environment, on any machine.

Each is about 0.1 us. Whoever needs one more raises a number here on purpose.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import episodes
from episode_runners import SingleAgentEnvRunner
from episodes.replay import EpisodeReplayBuffer

LIBRARY = tuple(
    str(Path(episodes.__file__).parents[1] / room) for room in ("episodes", "connectors", "episode_runners")
)


class Endless(gym.vector.VectorEnv):
    """Environments whose episodes never end."""

    metadata = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.single_observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
        self.single_action_space = gym.spaces.Discrete(2)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros((self.num_envs, 4), np.float32), {}

    def step(self, actions: Any) -> tuple[Any, ...]:
        flags = np.zeros(self.num_envs, bool)
        return np.zeros((self.num_envs, 4), np.float32), np.ones(self.num_envs), flags, flags.copy(), {}


def even(batch: Any, explore: bool | None = None) -> dict[str, Any]:
    return {"action_dist_inputs": torch.zeros(len(batch["obs"]), 2)}


def calls_of(work: Callable[[], object]) -> int:
    """How many functions of the library the work calls."""
    count, before = 0, sys.getprofile()

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(LIBRARY)

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def test_a_vector_step_of_sample_calls_few_functions() -> None:
    runner = SingleAgentEnvRunner(Endless(4), even, seed=0)
    runner.sample(num_timesteps=4 * 512)  # blocks have grown
    short, long = (calls_of(lambda rows=rows: runner.sample(num_timesteps=4 * rows)) for rows in (100, 500))
    assert (long - short) / 400 <= 18


def test_a_vector_step_of_sample_into_calls_few_functions() -> None:
    runner, buffer = SingleAgentEnvRunner(Endless(4), even, seed=0), EpisodeReplayBuffer(100_000, seed=0)
    runner.sample_into(buffer, num_timesteps=4 * 512)
    short, long = (
        calls_of(lambda rows=rows: runner.sample_into(buffer, num_timesteps=4 * rows)) for rows in (100, 500)
    )
    assert (long - short) / 400 <= 18


@pytest.mark.parametrize("num_envs", [1, 8])
def test_a_call_of_sample_into_for_one_row_calls_few_functions(num_envs: int) -> None:
    runner, buffer = SingleAgentEnvRunner(Endless(num_envs), even, seed=0), EpisodeReplayBuffer(100_000, seed=0)
    runner.sample_into(buffer, num_timesteps=512 * num_envs)
    one = [calls_of(lambda: runner.sample_into(buffer, num_timesteps=num_envs)) for _ in range(50)]
    assert np.median(one) <= 30

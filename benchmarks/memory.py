"""Memory benchmarks: bytes per transition in a replay buffer, measured with tracemalloc."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.figure import Counted, Figure, Side, Size, at_most

WIDTH = 256  # float32: 1 kB an observation
STORED = 20_000
FRAME = (84, 84)
NUM_FRAMES = 5_000
STACK = 4
SCALARS = 8 + 4 + 1 + 1  # action, reward, two endings


def measure_allocation(make: Callable[[], Any]) -> tuple[int, Any]:
    """Return how many bytes remain allocated after `make()`, and the object that it created. An earlier call warms
    up.
    """
    make()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        made = make()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before, made
    finally:
        tracemalloc.stop()


def buffer_of(observations: np.ndarray, episode_length: int) -> Any:
    """Return a replay buffer with the given observations, stored as episodes of `episode_length` steps."""
    from episodes import SingleAgentEpisode
    from episodes.replay import EpisodeReplayBuffer

    length = min(episode_length, len(observations) - 1)
    count = len(observations) // (length + 1)
    low, high = (0, 255) if observations.dtype == np.uint8 else (-np.inf, np.inf)
    space = gym.spaces.Box(low, high, observations.shape[1:], observations.dtype.type)
    buffer = EpisodeReplayBuffer(count * length, seed=0)
    for i in range(count):
        rows = observations[i * (length + 1) : (i + 1) * (length + 1)]
        actions, rewards = np.zeros(length, np.int64), np.zeros(length, np.float32)
        buffer.add([SingleAgentEpisode.from_arrays(rows, actions, rewards, terminated=True, observation_space=space)])
    return buffer


def whole_episodes(size: Size) -> Counted:
    """Measure the bytes per transition of a replay buffer to which episodes of 200 steps are added."""
    observations = np.zeros((size(STORED) + 1, WIDTH), np.float32)
    spent, buffer = measure_allocation(lambda: buffer_of(observations, 200))
    return Counted(spent / len(buffer))


def step_by_step(size: Size) -> Counted:
    """Measure the bytes per transition of a replay buffer that 64 environments fill step by step."""
    from episodes.replay import EpisodeReplayBuffer

    stored = size(STORED)
    num_envs = min(64, stored // 2)
    observations = np.zeros((num_envs, WIDTH), np.float32)
    ended, rewards, actions = np.zeros(num_envs, bool), np.zeros(num_envs), np.zeros(num_envs, np.int64)

    def fill() -> Any:
        """Return a new replay buffer that was filled with vector steps."""
        buffer = EpisodeReplayBuffer(stored, seed=0)
        recorder = buffer.recorder(num_envs, autoreset_mode=gym.vector.AutoresetMode.NEXT_STEP)
        recorder.reset(observations, {})
        while len(buffer) < stored:
            recorder.step(observations, actions, rewards, ended, ended, {})
        return buffer

    spent, buffer = measure_allocation(fill)
    return Counted(spent / len(buffer))


def frames(size: Size) -> Counted:
    """Measure the bytes per transition of a replay buffer that stores each frame once and samples stacks of 4
    frames.
    """
    rows = np.zeros((size(NUM_FRAMES) + 1, *FRAME), np.uint8)
    spent, buffer = measure_allocation(lambda: buffer_of(rows, size(NUM_FRAMES)))
    return Counted(spent / len(buffer))


def both_observations(size: Size) -> Counted:
    """Compute the bytes per transition of a buffer that stores observation and next observation of each step."""
    return Counted(2 * 4 * WIDTH + SCALARS)


def stacks_twice(size: Size) -> Counted:
    """Compute the bytes per transition of a buffer that stores observation and next observation as stacks of 4
    frames.
    """
    return Counted(2 * STACK * FRAME[0] * FRAME[1] + SCALARS)


def sampled_episodes(size: Size) -> Counted:
    """Measure the bytes per episode that sampling of 16 episodes allocates."""
    buffer = buffer_of(np.zeros((size(STORED) + 1, WIDTH), np.float32), 200)
    buffer.sample_episodes(16)
    return Counted(measure_allocation(lambda: buffer.sample_episodes(16))[0] / 16)


def copied_episodes(size: Size) -> Counted:
    """Compute the bytes of a copied episode of 200 steps."""
    length = min(200, size(STORED))
    return Counted(length * (4 * WIDTH + SCALARS))


TWICE = Side("both stored", both_observations)

FIGURES = (
    Figure("memory/observations of 1 kB", Side("ours", whole_episodes), TWICE, at_most(0.55), "bytes"),
    Figure("memory/64 envs, step by step", Side("ours", step_by_step), TWICE, at_most(0.55), "bytes"),
    Figure("memory/frame stacks", Side("ours", frames), Side("stacks stored", stacks_twice), at_most(0.15), "bytes"),
    Figure(
        "memory/sample_episodes",
        Side("ours", sampled_episodes),
        Side("copies", copied_episodes),
        at_most(0.05),
        "bytes",
    ),
)

"""Benchmark of `VectorRecorder`, which converts the steps of a vector environment to a pack of episodes."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.figure import Figure, Side, Size, Timed, at_most

ROWS = 64
NUM_ENVS = 4096
NUM_TRACKS = 5  # of what a step gives, infos aside


def rollout(num_envs: int, rows: int) -> tuple[Any, Any, list[tuple[Any, ...]]]:
    """Step CartPole's vector environment `rows` times with random actions. Return the environment, the result of its
    reset, and all step results.
    """
    envs = gym.make_vec("CartPole-v1", num_envs=num_envs, vectorization_mode="vector_entry_point")
    envs.action_space.seed(0)
    first = envs.reset(seed=0)
    steps = []
    for _ in range(rows):
        actions = envs.action_space.sample()
        observations, *results = envs.step(actions)
        steps.append((np.array(observations), actions, *results))
    return envs, first, steps


def vector_steps(num_envs: int) -> list[tuple[np.ndarray, ...]]:
    """Return 64 vector steps of CartPole as transitions: observations, next observations, actions, rewards and both
    flags.
    """
    _, (before, _), steps = rollout(num_envs, ROWS)
    rows = []
    for observations, actions, rewards, terminateds, truncateds, _ in steps:
        rows.append((before, observations, actions, rewards, terminateds, truncateds))
        before = observations
    return rows


def ours(size: Size) -> Timed:
    """Time recording of 64 vector steps with `VectorRecorder` (reset, steps and `take`), per environment step."""
    from episodes import VectorRecorder

    envs, (observations, infos), steps = rollout(size(NUM_ENVS), ROWS)
    mode = envs.metadata["autoreset_mode"]
    spaces = (envs.single_observation_space, envs.single_action_space)
    recorder = VectorRecorder(envs.num_envs, *spaces, autoreset_mode=mode)

    def run() -> Any:
        recorder.reset(observations, infos)
        for step in steps:
            recorder.step(*step)
        return recorder.take()

    return Timed(run, run().num_steps)


def bare_arrays(size: Size) -> Timed:
    """Time the least work for recording, per environment step: copy each vector step into arrays [64, 4096, ...], and
    transpose them.
    """
    _, _, steps = rollout(size(NUM_ENVS), ROWS)
    rows = [step[:NUM_TRACKS] for step in steps]
    blocks = [np.empty((ROWS, *part.shape), part.dtype) for part in rows[0]]
    num_resets = sum(int(np.logical_or(*row[-2:]).sum()) for row in rows[:-1])  # the row after an ending is no step

    def run() -> list[np.ndarray]:
        for t, row in enumerate(rows):
            for block, part in zip(blocks, row, strict=True):
                block[t] = part
        return [block.swapaxes(0, 1).copy() for block in blocks]

    return Timed(run, ROWS * len(rows[0][0]) - num_resets)


FIGURES = (Figure("recording/4096 environments", Side("ours", ours), Side("numpy", bare_arrays), at_most(2), "us"),)

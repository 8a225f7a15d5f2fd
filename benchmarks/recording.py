"""The recorder alone: rows of a vector environment in, a pack out."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.figure import Figure, Side, Size, Timed, at_most, limit

ROWS = 64


def rollout(num_envs: int, rows: int) -> tuple[Any, Any, list[tuple[Any, ...]]]:
    """CartPole's own vector environment under random actions: itself, what its reset gave, and what each step gave."""
    envs = gym.make_vec("CartPole-v1", num_envs=num_envs, vectorization_mode="vector_entry_point")
    envs.action_space.seed(0)
    first = envs.reset(seed=0)
    steps = []
    for _ in range(rows):
        actions = envs.action_space.sample()
        observations, *rest = envs.step(actions)
        steps.append((np.array(observations), actions, *rest))
    return envs, first, steps


def ours(size: Size) -> Timed:
    """Reset, step after step, and one take; per real step of an environment."""
    from episodes.recorder import VectorRecorder

    envs, (observations, infos), steps = rollout(size(4096), ROWS)
    mode = envs.metadata["autoreset_mode"]
    spaces = (envs.single_observation_space, envs.single_action_space)
    recorder = VectorRecorder(envs.num_envs, *spaces, autoreset_mode=mode)

    def run() -> Any:
        recorder.reset(observations, infos)
        for step in steps:
            recorder.step(*step)
        return recorder.take()

    return Timed(run, run().num_steps)


FIGURES = (Figure("recording/4096 environments", Side("ours", ours), limit("bar", 0.1e-6), at_most(1), "us"),)

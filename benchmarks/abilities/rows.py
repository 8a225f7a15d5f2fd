"""Test episodes for the checks of replay features, and tests of the samples. Observation k is the number k, which
identifies its step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch

OBSERVATION_SPACE = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
ACTION_SPACE = gym.spaces.Discrete(2)
STARTS = (0, 100)  # the first observation of each episode
LENGTH = 10
DRAWS = 1000
NUM_ENVS = 64
NUM_ROWS = 100
ENOUGH = 60  # distinct times among 256 draws of 100: 92 are expected of independent ones


@dataclass(frozen=True, slots=True)
class Step:
    """Single step of a test episode, with observation, next observation and flags."""

    obs: np.ndarray  # [1]
    new_obs: np.ndarray  # [1]
    terminated: bool
    truncated: bool


def steps(start: int, ending: str) -> Iterator[Step]:
    """Yield the 10 steps of a test episode, with observations `start` to `start + 10`, whose last step is "terminated"
    or "truncated".
    """
    for k in range(start, start + LENGTH):
        last = k == start + LENGTH - 1
        yield Step(
            np.array([k], np.float32),
            np.array([k + 1], np.float32),
            terminated=last and ending == "terminated",
            truncated=last and ending == "truncated",
        )


def has_all_steps(first: np.ndarray) -> bool:
    """Return True if the sampled observations `first` include every step of the first test episode."""
    return set(np.ravel(first).astype(int).tolist()) >= set(range(LENGTH))


def has_right_next_observations(first: np.ndarray, last: np.ndarray) -> bool:
    """Return True if all steps of the test episodes were sampled, each with the right next observation. `first` and
    `last` are the observations before and after the sampled steps.
    """
    pairs = set(zip(np.ravel(first).astype(int).tolist(), np.ravel(last).astype(int).tolist(), strict=True))
    return pairs == {(k, k + 1) for start in STARTS for k in range(start, start + LENGTH)}


def are_independent(times: np.ndarray) -> bool:
    """Return True if 256 samples from environments that started together have many different times, as independent
    samples do.
    """
    return len(set(np.ravel(times).astype(int).tolist())) >= ENOUGH


def are_inside_one_episode(sequences: np.ndarray, mask: np.ndarray | None = None) -> bool:
    """Return True if each sampled sequence of observations [B, T] has steps of a single episode. Positions where `mask`
    is False are ignored.
    """
    episodes = sequences // STARTS[1]
    if mask is not None:
        episodes = np.where(mask, episodes, episodes[:, :1])
    return bool((episodes == episodes[:, :1]).all())


def ignores_global_seeds(draw: Callable[[], Any]) -> bool:
    """Return True if `draw`, which creates a buffer and samples from it, returns the same samples for different global
    random seeds.
    """
    drawn = []
    for seed in (0, 1):
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
        drawn.append(np.asarray(draw()))
    return bool(np.array_equal(*drawn))

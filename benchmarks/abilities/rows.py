"""Episodes that the replay checks store: observation k is the number k, which identifies its step."""

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
    """A step of an episode. Each array has the shape [1]."""

    obs: np.ndarray  # [1]
    new_obs: np.ndarray  # [1]
    terminated: bool
    truncated: bool


def steps(start: int, ending: str) -> Iterator[Step]:
    """Yield an episode of 10 steps from observation `start` to `start + 10`, terminated or truncated."""
    for k in range(start, start + LENGTH):
        last = k == start + LENGTH - 1
        yield Step(
            np.array([k], np.float32),
            np.array([k + 1], np.float32),
            terminated=last and ending == "terminated",
            truncated=last and ending == "truncated",
        )


def all_there(first: np.ndarray) -> bool:
    """Return True if every step of the first episode was sampled."""
    return set(np.ravel(first).astype(int).tolist()) >= set(range(LENGTH))


def every_next_is_right(first: np.ndarray, last: np.ndarray) -> bool:
    """Return True if each sampled step has its own next observation, and the last steps of episodes were sampled."""
    pairs = set(zip(np.ravel(first).astype(int).tolist(), np.ravel(last).astype(int).tolist(), strict=True))
    return pairs == {(k, k + 1) for start in STARTS for k in range(start, start + LENGTH)}


def independent(times: np.ndarray) -> bool:
    """Return True if 256 samples from environments that started together have many different times."""
    return len(set(np.ravel(times).astype(int).tolist())) >= ENOUGH


def inside_one_episode(sequences: np.ndarray, mask: np.ndarray | None = None) -> bool:
    """Return True if each of the sampled sequences [B, T] has steps of one episode only."""
    episodes = sequences // STARTS[1]
    if mask is not None:
        episodes = np.where(mask, episodes, episodes[:, :1])
    return bool((episodes == episodes[:, :1]).all())


def same_after_other_draws(draw: Callable[[], Any]) -> bool:
    """Return True if `draw`, which creates a buffer, samples the same steps for different global random seeds."""
    drawn = []
    for seed in (0, 1):
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
        drawn.append(np.asarray(draw()))
    return bool(np.array_equal(*drawn))

"""Data of the replay benchmarks: random episodes of 200 steps, also as arrays of transitions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.data import Steps, steps

STORED = 100_000
LENGTH = 200
BATCH = 256
PRIORITY_ALPHA = 0.6
PRIORITY_BETA = 0.4


def stored_episodes(num_steps: int) -> list[Steps]:
    """Return terminated episodes of 200 steps, with `num_steps` steps in total."""
    length = min(LENGTH, num_steps)
    return [steps(length, seed) for seed in range(num_steps // length)]


@dataclass(frozen=True, slots=True)
class Transitions:
    """Arrays of transitions with observations and next observations, and priorities, one row per step."""

    obs: np.ndarray  # [S, 4]
    new_obs: np.ndarray  # [S, 4]
    actions: np.ndarray  # [S]
    rewards: np.ndarray  # [S]
    terminateds: np.ndarray  # [S]
    truncateds: np.ndarray  # [S]
    priorities: np.ndarray  # [S]
    new_priorities: np.ndarray  # [BATCH], for updates of what was drawn


def transitions(num_steps: int) -> Transitions:
    """Return the steps of `stored_episodes(num_steps)` as arrays of transitions, with random priorities."""
    episodes = stored_episodes(num_steps)
    terminateds = np.zeros(sum(map(len, episodes)), bool)
    terminateds[np.cumsum([len(episode) for episode in episodes]) - 1] = True
    rng = np.random.default_rng(1)
    return Transitions(
        obs=np.concatenate([episode.observations[:-1] for episode in episodes]),
        new_obs=np.concatenate([episode.observations[1:] for episode in episodes]),
        actions=np.concatenate([episode.actions for episode in episodes]),
        rewards=np.concatenate([episode.rewards for episode in episodes]),
        terminateds=terminateds,
        truncateds=np.zeros_like(terminateds),
        priorities=rng.random(len(terminateds)) + 0.1,
        new_priorities=rng.random(BATCH) + 0.1,
    )

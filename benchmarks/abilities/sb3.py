"""Checks of replay features in Stable-Baselines3: `NStepReplayBuffer` and `ReplayBuffer`."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from benchmarks.abilities import rows


def fill(buffer: Any, ending: str) -> Any:
    """Add the two test episodes to a Stable-Baselines3 buffer, ending in "terminated" or "truncated", and return the
    buffer.
    """
    for start in rows.STARTS:
        for step in rows.steps(start, ending):
            done = np.array([step.terminated or step.truncated])
            info = {"TimeLimit.truncated": step.truncated}
            buffer.add(step.obs[None], step.new_obs[None], np.zeros((1, 1)), np.ones(1), done, [info])
    return buffer


def uniform_buffer(ending: str, num_envs: int = 1, **options: Any) -> Any:
    """Return Stable-Baselines3's `ReplayBuffer`, with the test episodes if it is for one environment, else empty."""
    from stable_baselines3.common.buffers import ReplayBuffer

    arguments = (1000 * num_envs, rows.OBSERVATION_SPACE, rows.ACTION_SPACE)
    buffer = ReplayBuffer(*arguments, device="cpu", n_envs=num_envs, **options)
    return fill(buffer, ending) if num_envs == 1 else buffer


def n_step_draws_reach_the_end() -> bool:
    """Return True if n-step samples of Stable-Baselines3 include the last steps of an episode."""
    from stable_baselines3.common.buffers import NStepReplayBuffer

    buffer = NStepReplayBuffer(1000, rows.OBSERVATION_SPACE, rows.ACTION_SPACE, device="cpu", n_steps=3)
    return rows.has_all_steps(fill(buffer, "terminated").sample(rows.DRAWS).observations.numpy())


def time_limits_keep_their_observation() -> bool:
    """Return True if Stable-Baselines3 stores each observation once, and still returns the last observation of a
    truncated episode.
    """
    buffer = uniform_buffer("truncated", optimize_memory_usage=True, handle_timeout_termination=False)
    drawn = buffer.sample(rows.DRAWS)
    return rows.has_right_next_observations(drawn.observations.numpy(), drawn.next_observations.numpy())


def environments_are_drawn_independently() -> bool:
    """Return True if Stable-Baselines3 samples steps of parallel environments independently of each other."""
    n = rows.NUM_ENVS
    buffer = uniform_buffer("terminated", n)
    for t in range(rows.NUM_ROWS):
        observations = np.full((n, 1), t, np.float32)
        buffer.add(observations, observations + 1, np.zeros((n, 1)), np.ones(n), np.zeros(n, bool), [{}] * n)
    return rows.are_independent(buffer.sample(256).observations.numpy())


def a_restored_buffer_draws_the_same() -> bool:
    """Return True if an unpickled Stable-Baselines3 buffer returns the same samples as the original."""
    buffer = uniform_buffer("terminated")
    copy = pickle.loads(pickle.dumps(buffer))
    return np.array_equal(buffer.sample(20).observations, copy.sample(20).observations)


def one_seed_fixes_all_draws() -> bool:
    """Return True if the samples of a new Stable-Baselines3 buffer do not depend on numpy's and torch's global random
    state.
    """
    return rows.ignores_global_seeds(lambda: uniform_buffer("terminated").sample(50).observations)


def an_add_that_fails_changes_nothing() -> bool:
    """Return True if adding an observation of another shape raises an error and leaves the Stable-Baselines3 buffer
    unchanged.
    """
    buffer = uniform_buffer("terminated")
    before = buffer.size()
    wrong = np.zeros((1, 7))
    try:
        buffer.add(wrong, wrong, np.zeros((1, 1)), np.ones(1), np.zeros(1, bool), [{}])
    except Exception:
        return buffer.size() == before
    return False

"""Checks of replay features in Tianshou: `ReplayBuffer`, with `ignore_obs_next` to store observations once."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from benchmarks.abilities import rows


def filled_buffer(ending: str, **options: Any) -> Any:
    """Return Tianshou's `ReplayBuffer` with the two test episodes."""
    from tianshou.data import ReplayBuffer

    return add_episodes(ReplayBuffer(1000, **options), ending)


def add_episodes(buffer: Any, ending: str) -> Any:
    """Add the two test episodes to a Tianshou buffer, ending in "terminated" or "truncated", and return the buffer."""
    from tianshou.data import Batch

    for start in rows.STARTS:
        for step in rows.steps(start, ending):
            flags: dict[str, Any] = {"terminated": step.terminated, "truncated": step.truncated}
            buffer.add(Batch(obs=step.obs, act=0, rew=1.0, obs_next=step.new_obs, info=Batch(), **flags))
    return buffer


def vector_row(t: int, num_envs: int) -> Any:
    """Return a Tianshou batch with one step of each environment, in which all environments observe the number `t`."""
    from tianshou.data import Batch

    no = np.zeros(num_envs, bool)
    observations: Any = np.full((num_envs, 1), t)
    arrays: dict[str, Any] = {"act": np.zeros(num_envs), "rew": np.ones(num_envs), "terminated": no, "truncated": no}
    return Batch(obs=observations, obs_next=observations + 1, info=Batch(), **arrays)


def n_step_draws_reach_the_end() -> bool:
    """Return True if Tianshou samples all steps of an episode, from which its algorithms compute n-step returns."""
    return rows.has_all_steps(filled_buffer("terminated").sample(rows.DRAWS)[0].obs)


def time_limits_keep_their_observation() -> bool:
    """Return True if Tianshou stores each observation once, and still returns the last observation of a truncated
    episode.
    """
    drawn = filled_buffer("truncated", ignore_obs_next=True).sample(rows.DRAWS)[0]
    return rows.has_right_next_observations(drawn.obs, drawn.obs_next)


def environments_are_drawn_independently() -> bool:
    """Return True if Tianshou samples steps of parallel environments independently of each other."""
    from tianshou.data import VectorReplayBuffer

    n = rows.NUM_ENVS
    buffer: Any = VectorReplayBuffer(n * rows.NUM_ROWS, n)
    for t in range(rows.NUM_ROWS):
        buffer.add(vector_row(t, n), buffer_ids=np.arange(n))
    return rows.are_independent(buffer.sample(256)[0].obs)


def a_restored_buffer_draws_the_same() -> bool:
    """Return True if an unpickled Tianshou buffer returns the same samples as the original."""
    buffer = filled_buffer("terminated")
    copy = pickle.loads(pickle.dumps(buffer))
    return np.array_equal(buffer.sample(20)[1], copy.sample(20)[1])


def one_seed_fixes_all_draws() -> bool:
    """Return True if samples of a seeded prioritized Tianshou buffer do not depend on numpy's and torch's global random
    state.
    """
    from tianshou.data import PrioritizedReplayBuffer

    def draw() -> np.ndarray:
        """Return the indices of 50 samples of a new prioritized Tianshou buffer with seed 3."""
        buffer: Any = PrioritizedReplayBuffer(1000, alpha=0.6, beta=0.4, random_seed=3)
        return add_episodes(buffer, "terminated").sample(50)[1]

    return rows.ignores_global_seeds(draw)


def a_changed_beta_changes_the_weights() -> bool:
    """Return True if a change of beta changes the importance weights of Tianshou's samples, for two environments."""
    from tianshou.data import PrioritizedVectorReplayBuffer

    buffer: Any = PrioritizedVectorReplayBuffer(100, 2, alpha=1.0, beta=0.0)
    for t in range(rows.LENGTH):
        buffer.add(vector_row(t, 2), buffer_ids=np.arange(2))
    _, indices = buffer.sample(0)
    buffer.update_weight(indices[:5], np.full(5, 0.1))
    buffer.set_beta(1.0)
    return len(np.unique(buffer.sample(100)[0].weight)) > 1


def an_add_that_fails_changes_nothing() -> bool:
    """Return True if adding an observation of another shape raises an error and leaves the Tianshou buffer
    unchanged.
    """
    from tianshou.data import Batch

    buffer = filled_buffer("terminated")
    before = len(buffer)
    flags: dict[str, Any] = {"terminated": False, "truncated": False}
    try:
        buffer.add(Batch(obs=np.zeros(7), act=0, rew=1.0, obs_next=np.zeros(7), **flags))
    except Exception:
        return len(buffer) == before
    return False

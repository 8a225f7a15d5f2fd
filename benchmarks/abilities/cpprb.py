"""Checks of replay features in cpprb: `ReplayBuffer`, also with `Nstep`, and with `next_of` to store observations
once.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.abilities import rows

COLUMNS = {"obs": {"shape": 1}, "act": {}, "rew": {}, "done": {}}
BOTH = {**COLUMNS, "next_obs": {"shape": 1}}


def buffer_of(columns: dict[str, Any], **options: Any) -> Any:
    """Return an empty cpprb `ReplayBuffer` with these columns."""
    import cpprb

    return cpprb.ReplayBuffer(rows.NUM_ENVS * rows.NUM_ROWS, columns, **options)


def fill(buffer: Any, ending: str) -> Any:
    """Add the two test episodes to a cpprb buffer, ending in "terminated" or "truncated", and return the buffer."""
    for start in rows.STARTS:
        for step in rows.steps(start, ending):
            buffer.add(obs=step.obs, act=0, rew=1, next_obs=step.new_obs, done=float(step.terminated))
        buffer.on_episode_end()
    return buffer


def n_step_draws_reach_the_end() -> bool:
    """Return True if n-step samples of cpprb include the last steps of an episode."""
    n_step = {"size": 3, "gamma": 0.9, "rew": "rew", "next": "next_obs"}
    return rows.has_all_steps(fill(buffer_of(BOTH, Nstep=n_step), "terminated").sample(rows.DRAWS)["obs"])


def time_limits_keep_their_observation() -> bool:
    """Return True if cpprb stores each observation once, and still returns the last observation of a truncated
    episode.
    """
    drawn = fill(buffer_of(COLUMNS, next_of="obs"), "truncated").sample(rows.DRAWS)
    return rows.has_right_next_observations(drawn["obs"], drawn["next_obs"])


def environments_are_drawn_independently() -> bool:
    """Return True if cpprb samples steps of parallel environments independently of each other."""
    buffer = buffer_of({"obs": {"shape": 1}})
    for t in range(rows.NUM_ROWS):
        buffer.add(obs=np.full((rows.NUM_ENVS, 1), t))
    return rows.are_independent(buffer.sample(256)["obs"])


def a_restored_buffer_draws_the_same() -> bool:
    """Return True if a saved and loaded cpprb buffer returns the same samples as the original."""
    buffer, copy = fill(buffer_of(BOTH), "terminated"), buffer_of(BOTH)
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "transitions.npz")
        buffer.save_transitions(file)
        copy.load_transitions(file)
    return np.array_equal(buffer.sample(20)["obs"], copy.sample(20)["obs"])


def prioritized_buffer() -> Any:
    """Return a cpprb `PrioritizedReplayBuffer` with the test episodes."""
    import cpprb

    return fill(cpprb.PrioritizedReplayBuffer(1000, BOTH, alpha=1.0), "terminated")


def one_seed_fixes_all_draws() -> bool:
    """Return True if the samples of a new prioritized cpprb buffer do not depend on numpy's and torch's global random
    state.
    """
    return rows.ignores_global_seeds(lambda: prioritized_buffer().sample(50)["obs"])


def a_changed_beta_changes_the_weights() -> bool:
    """Return True if a change of beta changes the importance weights of cpprb's samples."""
    buffer = prioritized_buffer()
    buffer.update_priorities(np.arange(5), np.full(5, 0.1))
    counts = [len(np.unique(buffer.sample(100, beta=beta)["weights"])) for beta in (0.0, 1.0)]
    return counts[0] == 1 < counts[1]

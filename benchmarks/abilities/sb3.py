"""Replay checks of Stable-Baselines3: `NStepReplayBuffer` and `ReplayBuffer`."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from benchmarks.abilities import rows


def filled(buffer: Any, ending: str) -> Any:
    for start in rows.STARTS:
        for step in rows.steps(start, ending):
            done = np.array([step.terminated or step.truncated])
            info = {"TimeLimit.truncated": step.truncated}
            buffer.add(step.obs[None], step.new_obs[None], np.zeros((1, 1)), np.ones(1), done, [info])
    return buffer


def plain(ending: str, num_envs: int = 1, **options: Any) -> Any:
    from stable_baselines3.common.buffers import ReplayBuffer

    arguments = (1000 * num_envs, rows.OBSERVATION_SPACE, rows.ACTION_SPACE)
    buffer = ReplayBuffer(*arguments, device="cpu", n_envs=num_envs, **options)
    return filled(buffer, ending) if num_envs == 1 else buffer


def n_step_draws_reach_the_end() -> bool:
    from stable_baselines3.common.buffers import NStepReplayBuffer

    buffer = NStepReplayBuffer(1000, rows.OBSERVATION_SPACE, rows.ACTION_SPACE, device="cpu", n_steps=3)
    return rows.all_there(filled(buffer, "terminated").sample(rows.DRAWS).observations.numpy())


def time_limits_keep_their_observation() -> bool:
    buffer = plain("truncated", optimize_memory_usage=True, handle_timeout_termination=False)
    drawn = buffer.sample(rows.DRAWS)
    return rows.every_next_is_right(drawn.observations.numpy(), drawn.next_observations.numpy())


def environments_are_drawn_independently() -> bool:
    n = rows.NUM_ENVS
    buffer = plain("terminated", n)
    for t in range(rows.NUM_ROWS):
        observations = np.full((n, 1), t, np.float32)
        buffer.add(observations, observations + 1, np.zeros((n, 1)), np.ones(n), np.zeros(n, bool), [{}] * n)
    return rows.independent(buffer.sample(256).observations.numpy())


def a_restored_buffer_draws_the_same() -> bool:
    buffer = plain("terminated")
    copy = pickle.loads(pickle.dumps(buffer))
    return np.array_equal(buffer.sample(20).observations, copy.sample(20).observations)


def one_seed_fixes_all_draws() -> bool:
    return rows.same_after_other_draws(lambda: plain("terminated").sample(50).observations)


def an_add_that_fails_changes_nothing() -> bool:
    buffer = plain("terminated")
    before = buffer.size()
    wrong = np.zeros((1, 7))
    try:
        buffer.add(wrong, wrong, np.zeros((1, 1)), np.ones(1), np.zeros(1, bool), [{}])
    except Exception:
        return buffer.size() == before
    return False

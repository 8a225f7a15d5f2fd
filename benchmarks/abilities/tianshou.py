"""Tianshou: `ReplayBuffer`, with `ignore_obs_next` to store observations once, and `VectorReplayBuffer`."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from benchmarks.abilities import rows


def filled(ending: str, **more: Any) -> Any:
    from tianshou.data import Batch, ReplayBuffer

    buffer: Any = ReplayBuffer(1000, **more)
    for start in rows.STARTS:
        for step in rows.steps(start, ending):
            flags: dict[str, Any] = {"terminated": step.terminated, "truncated": step.truncated}
            buffer.add(Batch(obs=step.obs, act=0, rew=1.0, obs_next=step.new_obs, info=Batch(), **flags))
    return buffer


def n_step_draws_reach_the_end() -> bool:
    """Its n-step returns are computed by the algorithm, from any step that the buffer draws."""
    return rows.all_there(filled("terminated").sample(rows.DRAWS)[0].obs)


def time_limits_keep_their_observation() -> bool:
    drawn = filled("truncated", ignore_obs_next=True).sample(rows.DRAWS)[0]
    return rows.every_next_is_right(drawn.obs, drawn.obs_next)


def environments_are_drawn_independently() -> bool:
    from tianshou.data import Batch, VectorReplayBuffer

    n = rows.NUM_ENVS
    buffer: Any = VectorReplayBuffer(n * rows.NUM_ROWS, n)
    flags: dict[str, Any] = {"terminated": np.zeros(n, bool), "truncated": np.zeros(n, bool)}
    for t in range(rows.NUM_ROWS):
        row = Batch(
            obs=np.full((n, 1), t),
            act=np.zeros(n),
            rew=np.ones(n),
            obs_next=np.full((n, 1), t + 1),
            info=Batch(),
            **flags,
        )
        buffer.add(row, buffer_ids=np.arange(n))
    return rows.independent(buffer.sample(256)[0].obs)


def a_restored_buffer_draws_the_same() -> bool:
    buffer = filled("terminated")
    copy = pickle.loads(pickle.dumps(buffer))
    return np.array_equal(buffer.sample(20)[1], copy.sample(20)[1])

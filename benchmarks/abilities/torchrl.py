"""Replay checks of TorchRL: `ReplayBuffer` over a `LazyTensorStorage`, with `MultiStepTransform` and `SliceSampler`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from benchmarks.abilities import rows
from benchmarks.figure import NotHere


def buffer_of(batch_size: int, **options: Any) -> Any:
    from torchrl.data import LazyTensorStorage, ReplayBuffer

    return ReplayBuffer(storage=LazyTensorStorage(rows.NUM_ENVS * rows.NUM_ROWS), batch_size=batch_size, **options)


def episode(start: int) -> Any:
    from tensordict import TensorDict

    observations = torch.arange(start, start + rows.LENGTH + 1, dtype=torch.float32)[:, None]
    done = torch.arange(rows.LENGTH)[:, None] == rows.LENGTH - 1
    entries: dict[Any, Any] = {
        "observation": observations[:-1],
        "action": torch.zeros(rows.LENGTH, 1),
        ("next", "observation"): observations[1:],
        ("next", "reward"): torch.ones(rows.LENGTH, 1),
        ("next", "done"): done,
        ("next", "terminated"): done,
    }
    return TensorDict(entries, batch_size=[rows.LENGTH])


def filled(buffer: Any) -> Any:
    for start in rows.STARTS:
        buffer.extend(episode(start))
    return buffer


def n_step_draws_reach_the_end() -> bool:
    from torchrl.envs.transforms import MultiStepTransform

    buffer = filled(buffer_of(rows.DRAWS, transform=MultiStepTransform(n_steps=3, gamma=0.9)))
    return rows.all_there(buffer.sample()["observation"].numpy())


def environments_are_drawn_independently() -> bool:
    from tensordict import TensorDict

    buffer = buffer_of(256)
    for t in range(rows.NUM_ROWS):
        observations = torch.full((rows.NUM_ENVS, 1), float(t))
        buffer.extend(TensorDict({"observation": observations}, batch_size=[rows.NUM_ENVS]))
    return rows.independent(buffer.sample()["observation"].numpy())


def sequences_stay_in_their_episode() -> bool:
    from torchrl.data import SliceSampler

    sampler = SliceSampler(slice_len=4, end_key=("next", "done"))
    drawn = filled(buffer_of(800, sampler=sampler)).sample()
    return rows.inside_one_episode(drawn["observation"].numpy().reshape(200, 4))


def a_restored_buffer_draws_the_same() -> bool:
    buffer, copy = filled(buffer_of(20)), buffer_of(20)
    buffer.set_rng(torch.Generator().manual_seed(0))
    copy.load_state_dict(buffer.state_dict())
    return np.array_equal(buffer.sample()["observation"], copy.sample()["observation"])


def one_seed_fixes_all_draws() -> bool:
    from torchrl.data.replay_buffers.samplers import PrioritizedSampler

    def draw() -> np.ndarray:
        try:
            sampler = PrioritizedSampler(1000, alpha=0.6, beta=0.4)
        except RuntimeError as error:
            raise NotHere("this build of TorchRL has no trees") from error
        buffer = filled(buffer_of(50, sampler=sampler, generator=torch.Generator().manual_seed(3)))
        return buffer.sample()["observation"].numpy()

    return rows.same_after_other_draws(draw)

"""Checks of replay features in TorchRL: `ReplayBuffer` over a `LazyTensorStorage`, with `MultiStepTransform` and
`SliceSampler`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from benchmarks.abilities import rows
from benchmarks.figure import NotHere


def buffer_of(batch_size: int, **options: Any) -> Any:
    """Return an empty TorchRL `ReplayBuffer` that samples `batch_size` steps."""
    from torchrl.data import LazyTensorStorage, ReplayBuffer

    return ReplayBuffer(storage=LazyTensorStorage(rows.NUM_ENVS * rows.NUM_ROWS), batch_size=batch_size, **options)


def make_episode(start: int) -> Any:
    """Return the terminated test episode that begins with observation `start` as a TensorDict."""
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


def fill(buffer: Any) -> Any:
    """Add the two test episodes to a TorchRL buffer, and return the buffer."""
    for start in rows.STARTS:
        buffer.extend(make_episode(start))
    return buffer


def n_step_draws_reach_the_end() -> bool:
    """Return True if n-step samples of TorchRL include the last steps of an episode."""
    from torchrl.envs.transforms import MultiStepTransform

    buffer = fill(buffer_of(rows.DRAWS, transform=MultiStepTransform(n_steps=3, gamma=0.9)))
    return rows.has_all_steps(buffer.sample()["observation"].numpy())


def environments_are_drawn_independently() -> bool:
    """Return True if TorchRL samples steps of parallel environments independently of each other."""
    from tensordict import TensorDict

    buffer = buffer_of(256)
    for t in range(rows.NUM_ROWS):
        observations = torch.full((rows.NUM_ENVS, 1), float(t))
        buffer.extend(TensorDict({"observation": observations}, batch_size=[rows.NUM_ENVS]))
    return rows.are_independent(buffer.sample()["observation"].numpy())


def sequences_stay_in_their_episode() -> bool:
    """Return True if no sequence sampled by TorchRL contains steps of two episodes."""
    from torchrl.data import SliceSampler

    sampler = SliceSampler(slice_len=4, end_key=("next", "done"))
    drawn = fill(buffer_of(800, sampler=sampler)).sample()
    return rows.are_inside_one_episode(drawn["observation"].numpy().reshape(200, 4))


def a_restored_buffer_draws_the_same() -> bool:
    """Return True if a TorchRL buffer restored from `state_dict` returns the same samples as the original."""
    buffer, copy = fill(buffer_of(20)), buffer_of(20)
    buffer.set_rng(torch.Generator().manual_seed(0))
    copy.load_state_dict(buffer.state_dict())
    return np.array_equal(buffer.sample()["observation"], copy.sample()["observation"])


def one_seed_fixes_all_draws() -> bool:
    """Return True if samples of a seeded prioritized TorchRL buffer do not depend on numpy's and torch's global random
    state.

    Raises:
        NotHere: this build of TorchRL lacks the data structure of prioritized sampling.
    """
    from torchrl.data.replay_buffers.samplers import PrioritizedSampler

    def draw() -> np.ndarray:
        """Return the observations of 50 samples of a new prioritized TorchRL buffer with seed 3."""
        try:
            sampler = PrioritizedSampler(1000, alpha=0.6, beta=0.4)
        except RuntimeError as error:
            raise NotHere("this build of TorchRL has no trees") from error
        buffer = fill(buffer_of(50, sampler=sampler, generator=torch.Generator().manual_seed(3)))
        return buffer.sample()["observation"].numpy()

    return rows.ignores_global_seeds(draw)

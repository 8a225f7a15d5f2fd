"""GPU benchmarks: copying batches to the GPU. Without a GPU, the results have a note instead."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from benchmarks.batches import EXTRAS, ReadyValues, ppo_steps
from benchmarks.data import ACTION_SPACE, OBSERVATION_SPACE, our_episode
from benchmarks.figure import Figure, NotHere, Side, Size, Timed, at_least
from benchmarks.peers import RLLIB, pipelines

ROWS = 4096
FRAME = (84, 84)


def cuda() -> torch.device:
    """Return the GPU device.

    Raises:
        NotHere: the machine has no GPU.
    """
    if not torch.cuda.is_available():
        raise NotHere("no GPU here")
    return torch.device("cuda")


def columns(rows: int) -> dict[str, np.ndarray]:
    """Return the columns of a random train batch with `rows` frames [84, 84] as observations."""
    rng = np.random.default_rng(0)
    return {
        "obs": rng.integers(0, 256, (rows, *FRAME), np.uint8),
        "actions": rng.integers(0, 6, rows),
        "action_dist_inputs": rng.standard_normal((rows, 6), np.float32),
        **{key: rng.standard_normal(rows, np.float32) for key in ("rewards", "action_logp", "advantages")},
    }


def staged_copy(size: Size) -> Timed:
    """Time copying a train batch to the GPU with `NumpyToTensor`, per byte."""
    from connectors import NumpyToTensor

    piece = NumpyToTensor(device=cuda())
    batch = columns(size(ROWS))

    def run() -> None:
        piece(batch=dict(batch))
        torch.cuda.synchronize()

    return Timed(run, sum(column.nbytes for column in batch.values()))


def pinned_copy(size: Size) -> Timed:
    """Time copying the same number of bytes from ordinary memory to a pinned buffer and then to the GPU, per byte."""
    device = cuda()
    num_bytes = sum(column.nbytes for column in columns(size(ROWS)).values())
    source = torch.zeros(num_bytes, dtype=torch.uint8)
    pinned = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(num_bytes, dtype=torch.uint8, device=device)

    def run() -> None:
        pinned.copy_(source)
        target.copy_(pinned, non_blocking=True)
        torch.cuda.synchronize()

    return Timed(run, num_bytes)


def our_batch(size: Size) -> Timed:
    """Time this library's PPO train batch of 4,000 steps, with tensors on the GPU."""
    from connectors import learner_pipeline

    episodes = [our_episode(steps) for steps in ppo_steps(size)]
    pipeline = learner_pipeline(OBSERVATION_SPACE, ACTION_SPACE, device=cuda())
    module = ReadyValues()

    def run() -> Any:
        batch = pipeline(rl_module=module, batch={}, episodes=episodes)
        torch.cuda.synchronize()
        return batch[EXTRAS[0]]

    return Timed(run)


def rllib_batch(size: Size) -> Timed:
    """Time RLlib's PPO train batch of 4,000 steps, with tensors on the GPU."""
    return pipelines.train_batch(size, make_steps=ppo_steps, device=cuda())


FIGURES = (
    Figure("gpu/copy", Side("ours", staged_copy), Side("pinned copy", pinned_copy), at_least(0.8), "GB/s"),
    Figure("gpu/batch", Side("ours", our_batch), Side("RLlib", rllib_batch, RLLIB), at_least(8), "ms"),
)

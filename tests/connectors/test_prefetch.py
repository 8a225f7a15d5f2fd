"""`Prefetch` returns batches of a thread in order, raises its errors, and leaves no thread running."""

from __future__ import annotations

import gc
import threading
import time
from itertools import islice

import numpy as np
import pytest
import torch

from connectors.prefetch import Prefetch
from episodes import Batch
from episodes.errors import EpisodeStateError, InvalidArgument
from episodes.replay import PrioritizedEpisodeReplayBuffer
from episodes.single_agent import SingleAgentEpisode

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def filled(num_steps: int = 200) -> PrioritizedEpisodeReplayBuffer:
    values = np.arange(num_steps + 1.0)
    buffer = PrioritizedEpisodeReplayBuffer(num_steps, seed=0)
    buffer.add(SingleAgentEpisode.from_arrays(values, values[:-1].astype(np.int64), values[1:]))
    return buffer


def num_threads() -> int:
    return sum(thread.name == "prefetch" for thread in threading.enumerate())


@pytest.mark.parametrize("device", DEVICES)
def test_batches_are_on_device_while_priorities_change(device: str) -> None:
    buffer = filled()
    with Prefetch(lambda: buffer.sample(32), device=device) as batches:
        for batch in islice(batches, 50):
            assert batch.obs.device.type == device
            assert batch.obs.dtype == torch.float32
            assert torch.equal(batch.obs + 1, batch.new_obs)
            assert torch.equal(batch.obs.long(), batch.actions)
            assert isinstance(batch.indices, np.ndarray)
            buffer.update_priorities(batch.indices, np.where(batch.indices == 7, 1e6, 1e-6))
    assert num_threads() == 0
    assert (buffer.sample(32).indices == 7).mean() > 0.5


def test_batches_without_device_equal_buffer_samples() -> None:
    buffer, same = filled(), filled()
    with Prefetch(lambda: buffer.sample(8), depth=3) as batches:
        for batch, expected in zip(batches, [same.sample(8) for _ in range(20)], strict=False):
            assert np.array_equal(batch.obs, expected.obs)


def test_prefetch_passes_options_to_sample() -> None:
    buffer, same = filled(), filled()
    with Prefetch.of(buffer, 8, device="cpu", n_step=3, gamma=1.0) as batches:
        expected = same.sample(8, n_step=3, gamma=1.0)
        batch = next(batches)
    assert batch.rewards.tolist() == expected.rewards.tolist()
    assert batch.n_step.tolist() == expected.n_step.tolist()


@pytest.mark.parametrize("depth", [1, 4])
def test_depth_limits_prefetched_batches(depth: int) -> None:
    drawn: list[int] = []

    def draw() -> Batch:
        drawn.append(len(drawn))
        return Batch(number=np.array([drawn[-1]]))

    with Prefetch(draw, depth=depth) as batches:
        assert [int(next(batches).number[0]) for _ in range(5)] == [0, 1, 2, 3, 4]
        until = time.monotonic() + 60
        while len(drawn) < 5 + depth and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.05)
        assert len(drawn) == 5 + depth


def test_thread_error_arrives_after_earlier_batches() -> None:
    numbers = iter([1, 2])

    def draw() -> Batch:
        try:
            return Batch(number=np.array([next(numbers)]))
        except StopIteration:
            raise EpisodeStateError("nothing is stored to draw from") from None

    batches = Prefetch(draw)
    assert [int(next(batches).number[0]) for _ in range(2)] == [1, 2]
    for _ in range(2):
        with pytest.raises(EpisodeStateError, match="nothing is stored"):
            next(batches)
    batches.close()
    assert num_threads() == 0


def test_closed_or_dropped_prefetch_stops_its_thread() -> None:
    buffer = filled()
    batches = Prefetch(lambda: buffer.sample(4))
    next(batches)
    batches.close()
    batches.close()
    with pytest.raises(EpisodeStateError, match="closed"):
        next(batches)
    assert num_threads() == 0
    forgotten = Prefetch(lambda: buffer.sample(4))
    next(forgotten)
    del forgotten
    gc.collect()
    until = time.monotonic() + 60
    while num_threads() and time.monotonic() < until:
        time.sleep(0.01)
    assert num_threads() == 0


@pytest.mark.parametrize("depth", [0, True, 1.5])
def test_depth_that_is_not_a_count_is_rejected(depth: int) -> None:
    with pytest.raises(InvalidArgument, match="depth="):
        Prefetch(lambda: Batch(), depth=depth)

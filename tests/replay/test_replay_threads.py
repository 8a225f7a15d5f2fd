"""One thread adds while others draw: no row mixes two steps."""

from __future__ import annotations

import copy
import pickle
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from time import monotonic
from typing import Any

import numpy as np
import pytest

from episodes.replay import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer
from episodes.single_agent import SingleAgentEpisode

WIDTH = 5  # numbers of an observation: too many to lie beside its steps


@pytest.fixture(autouse=True)
def impatient_threads() -> Iterator[None]:
    """Threads take turns a hundred times as often as usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-5)
    yield
    sys.setswitchinterval(before)


def episode(start: float, length: int) -> SingleAgentEpisode:
    values = start + np.arange(length + 1.0)
    observations = np.repeat(values[:, None], WIDTH, axis=1)
    return SingleAgentEpisode.from_arrays(observations, values[:-1], values[1:], terminated=True)


def num_mixed(batch: Any) -> int:
    """Rows whose columns are not of one step."""
    mixed = (batch.obs[..., 0] != batch.actions) | (batch.obs != batch.obs[..., :1]).any(-1)
    if "new_obs" in batch:
        mixed |= (batch.new_obs[..., 0] != batch.actions + 1) | (batch.rewards != batch.actions + 1)
    return int(np.count_nonzero(mixed & batch.get("loss_mask", True)))


def under_fire(buffer: EpisodeReplayBuffer, seconds: float) -> tuple[int, int]:
    """One thread adds, vector steps and episodes in turn, and two draw; how many rows they drew, and how many mixed."""
    buffer.add(episode(0.0, 60))
    over, errors, drawn, mixed = threading.Event(), [], [0], [0]

    def add() -> None:
        recorder = buffer.recorder(4, autoreset_mode="NextStep")
        time, none = 1000.0, np.zeros(4, bool)
        while not over.is_set():
            recorder.reset(np.full((4, WIDTH), time))
            for _ in range(30):
                recorder.step(np.full((4, WIDTH), time + 1), np.full(4, time), np.full(4, time + 1), none, none)
                time += 1
            buffer.add([episode(time + 10, 7), episode(time + 30, 3)])
            time += 100

    def draw() -> None:
        while True:  # once at least, however late it begins
            batch = buffer.sample(64)
            if isinstance(buffer, PrioritizedEpisodeReplayBuffer):
                buffer.update_priorities(batch.indices, np.ones(64))
            sequences = buffer.sample_sequences(8, 4, burn_in=2, keys=["obs", "actions"])
            mixed[0] += num_mixed(batch) + num_mixed(sequences)
            drawn[0] += 64
            if over.is_set():
                return

    def watched(work: Any) -> None:
        try:
            work()
        except Exception as error:
            errors.append(error)
            over.set()

    threads = [threading.Thread(target=watched, args=(work,)) for work in (add, draw, draw)]
    for thread in threads:
        thread.start()
    over.wait(seconds)
    over.set()
    for thread in threads:
        thread.join()
    return drawn[0], mixed[0] + len(errors)


@contextmanager
def without_lock(buffer: EpisodeReplayBuffer) -> Iterator[None]:
    buffer.lock = buffer.ring.lock = nullcontext()  # type: ignore[assignment]
    yield


@pytest.mark.parametrize("kind", [EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer])
def test_no_row_mixes_two_steps_while_a_thread_adds(kind: type[EpisodeReplayBuffer]) -> None:
    num_drawn, num_wrong = under_fire(kind(100, seed=0), 2.0)
    assert num_drawn > 0
    assert num_wrong == 0


def test_it_is_the_lock_that_keeps_rows_whole() -> None:
    began, num_wrong = monotonic(), 0
    while not num_wrong and monotonic() - began < 60:
        buffer = EpisodeReplayBuffer(100, seed=0)
        with without_lock(buffer):
            num_wrong = under_fire(buffer, 0.5)[1]
    assert num_wrong


def test_a_buffer_with_its_lock_is_copied_and_pickled_while_a_thread_adds() -> None:
    buffer = EpisodeReplayBuffer(50, seed=0)
    buffer.add(episode(0.0, 20))
    with buffer.lock:
        copies = [copy.deepcopy(buffer), pickle.loads(pickle.dumps(buffer))]
    for other in copies:
        assert other.lock is not buffer.lock
        assert num_mixed(other.sample(50)) == 0
        other.add(episode(100.0, 5))
        assert len(other) == 25

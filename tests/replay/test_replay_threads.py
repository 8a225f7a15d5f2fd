"""Threads that add steps during sampling: no sampled row mixes two steps."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import count
from typing import Any

import numpy as np
import pytest

from episodes.history import History, HistorySpaces
from episodes.multi_agent import MultiAgentEpisode
from episodes.replay import (
    EpisodeReplayBuffer,
    MultiAgentEpisodeReplayBuffer,
    MultiAgentPrioritizedEpisodeReplayBuffer,
    PrioritizedEpisodeReplayBuffer,
)
from episodes.single_agent import SingleAgentEpisode

WIDTH = 5  # numbers of an observation: too many to lie beside its steps


@pytest.fixture(autouse=True)
def impatient_threads() -> Iterator[None]:
    """Make threads switch a hundred times as often as usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-5)
    yield
    sys.setswitchinterval(before)


def episode(start: float, length: int) -> SingleAgentEpisode:
    values = start + np.arange(length + 1.0)
    observations = np.repeat(values[:, None], WIDTH, axis=1)
    return SingleAgentEpisode.from_arrays(observations, values[:-1], values[1:], terminated=True)


def num_mixed(batch: Any) -> int:
    """Return the number of rows whose columns belong to different steps."""
    mixed = (batch.obs[..., 0] != batch.actions) | (batch.obs != batch.obs[..., :1]).any(-1)
    if "new_obs" in batch:
        mixed |= (batch.new_obs[..., 0] != batch.actions + 1) | (batch.rewards != batch.actions + 1)
    return int(np.count_nonzero(mixed & batch.get("loss_mask", True)))


class AddingThread:
    """A buffer into which one thread adds while two draw, and how many rows were drawn and mixed.

    Args:
        add: adds something, at every call something else.
        draw: gives how many rows it drew, and how many of them mixed steps.
    """

    def __init__(self, add: Callable[[], None], draw: Callable[[], tuple[int, int]]) -> None:
        self._add, self._draw = add, draw
        self._over, self._counting = threading.Event(), threading.Lock()
        self.num_drawn = self.num_mixed = 0
        self.errors: list[Exception] = []

    def last(self, seconds: float) -> AddingThread:
        """Let it go on for so long."""
        threads = [
            threading.Thread(target=self._watched, args=(work,)) for work in (self._adds, self._draws, self._draws)
        ]
        for thread in threads:
            thread.start()
        self._over.wait(seconds)
        self._over.set()
        for thread in threads:
            thread.join()
        return self

    def _adds(self) -> None:
        while not self._over.is_set():
            self._add()

    def _draws(self) -> None:
        drawn = mixed = 0
        while True:  # once at least, however late it begins
            added = self._draw()
            drawn, mixed = drawn + added[0], mixed + added[1]
            if self._over.is_set():
                break
        with self._counting:
            self.num_drawn, self.num_mixed = self.num_drawn + drawn, self.num_mixed + mixed

    def _watched(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self.errors.append(error)
            self._over.set()


def of_one_agent(buffer: EpisodeReplayBuffer) -> AddingThread:
    """Return a buffer, and a function that adds vector steps and episodes in turn."""
    buffer.add(episode(0.0, 60))
    recorder, none, times = buffer.recorder(4, autoreset_mode="NextStep"), np.zeros(4, bool), count(1000.0, 100.0)

    def add() -> None:
        time = next(times)
        recorder.reset(np.full((4, WIDTH), time))
        for _ in range(30):
            recorder.step(np.full((4, WIDTH), time + 1), np.full(4, time), np.full(4, time + 1), none, none)
            time += 1
        buffer.add([episode(time + 10, 7), episode(time + 30, 3)])

    def draw() -> tuple[int, int]:
        batch = buffer.sample(64)
        if isinstance(buffer, PrioritizedEpisodeReplayBuffer):
            buffer.update_priorities(batch.indices, np.ones(64))
        sequences = buffer.sample_sequences(8, 4, burn_in=2, keys=["obs", "actions"])
        return 64, num_mixed(batch) + num_mixed(sequences)

    return AddingThread(add, draw)


def game(start: float, length: int) -> MultiAgentEpisode:
    """Return a game of agents "a" and "b", which act at each step. Their numbers differ by 0.5."""
    observations = lambda t: {"a": np.full(WIDTH, start + t), "b": np.full(WIDTH, start + t + 0.5)}  # noqa: E731
    made = MultiAgentEpisode(agent_to_module_mapping_fn=lambda agent, episode: agent)
    made.add_env_reset(observations=observations(0))
    for t in range(length):
        actions = {"a": start + t, "b": start + t + 0.5}
        rewards = {agent: value + 1 for agent, value in actions.items()}
        made.add_env_step(observations(t + 1), actions, rewards, terminateds={"__all__": t == length - 1})
    return made


def of_two_agents(buffer: MultiAgentEpisodeReplayBuffer) -> AddingThread:
    """Return a buffer, and a function that adds whole games, and chunks of an ongoing game."""
    buffer.add(game(0.0, 60))
    times = count(1000.0, 100.0)

    def add() -> None:
        time = next(times)
        chunk = game(time + 50, 20)
        buffer.add([game(time, 5), chunk[:8]])
        buffer.add(chunk[8:])

    def draw() -> tuple[int, int]:
        batches = buffer.sample(32)
        if isinstance(buffer, MultiAgentPrioritizedEpisodeReplayBuffer):
            indices = {module_id: batch.indices for module_id, batch in batches.items()}
            buffer.update_priorities(indices, dict.fromkeys(indices, np.ones(32)))
        together = buffer.sample_synchronized(32)
        both = together["a"].loss_mask & together["b"].loss_mask
        mixed = int(np.count_nonzero((together["a"].actions + 0.5 != together["b"].actions) & both))
        return 96, mixed + sum(num_mixed(batch) for drawn in (batches, together) for batch in drawn.values())

    return AddingThread(add, draw)


@contextmanager
def without_lock(buffer: EpisodeReplayBuffer) -> Iterator[None]:
    buffer.lock = buffer.flush_ring().lock = nullcontext()  # type: ignore[assignment]
    yield


@pytest.mark.parametrize(
    ("kind", "played"),
    [
        (EpisodeReplayBuffer, of_one_agent),
        (PrioritizedEpisodeReplayBuffer, of_one_agent),
        (MultiAgentEpisodeReplayBuffer, of_two_agents),
        (MultiAgentPrioritizedEpisodeReplayBuffer, of_two_agents),
    ],
)
def test_sample_never_mixes_steps_while_thread_adds(kind: Any, played: Callable[[Any], AddingThread]) -> None:
    fire = played(kind(100, seed=0)).last(1.0)
    assert not fire.errors
    assert fire.num_drawn > 0
    assert fire.num_mixed == 0


class Interleaved:
    """Views that let a thread add steps in the middle of a sample, between observations and actions."""

    given, lookback = HistorySpaces(), 0

    def __init__(self, add: Callable[[], None], patience: float) -> None:
        self.adding, self._patience = threading.Thread(target=add), patience
        self.added_meanwhile: bool | None = None

    def __call__(self, history: History) -> dict[str, Any]:
        observations = history.observations(1)[:, 0].copy()
        self.adding.start()
        self.adding.join(self._patience)
        self.added_meanwhile = not self.adding.is_alive()
        return {"obs": observations}


def filled_by_episodes(buffer: EpisodeReplayBuffer) -> Callable[[], None]:
    """Fill the buffer. Return a function that replaces its episodes."""
    buffer.add(episode(0.0, 100))
    return lambda: buffer.add([episode(1000.0, 60), episode(2000.0, 60)])


def filled_by_rows(buffer: EpisodeReplayBuffer) -> Callable[[], None]:
    """Fill the buffer by vector steps. Return a function that replaces the steps."""
    recorder, none, times = buffer.recorder(4, autoreset_mode="NextStep"), np.zeros(4, bool), count(1.0)
    recorder.reset(np.zeros((4, WIDTH)))

    def add() -> None:
        for _, time in zip(range(50), times, strict=False):
            recorder.step(np.full((4, WIDTH), time), np.full(4, time - 1), np.full(4, time), none, none)

    add()
    return add


FILLED = pytest.mark.parametrize("filled", [filled_by_episodes, filled_by_rows])


@FILLED
def test_add_during_sample_waits_for_lock(filled: Callable[[Any], Callable[[], None]]) -> None:
    buffer = EpisodeReplayBuffer(100, seed=0)
    views = Interleaved(filled(buffer), patience=0.2)  # as long as one likes: who adds cannot come through
    before = buffer.num_added
    batch = buffer.sample(64, views=views, keys=["obs", "actions"])
    assert views.added_meanwhile is False
    assert num_mixed(batch) == 0
    views.adding.join(60)
    assert buffer.num_added >= before + 100


@FILLED
def test_without_lock_sampled_rows_mix_steps(filled: Callable[[Any], Callable[[], None]]) -> None:
    buffer = EpisodeReplayBuffer(100, seed=0)
    views = Interleaved(filled(buffer), patience=60)
    with without_lock(buffer):
        batch = buffer.sample(64, views=views, keys=["obs", "actions"])
    assert views.added_meanwhile is True
    assert num_mixed(batch) == 64

"""Interrupts at any instruction of a writer or ledger: each item is queued or written, never lost and never twice."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from episodes import SingleAgentEpisode
from episodes.errors import ChunkMismatch
from episodes.storage import EpisodeDataset, EpisodeWriter, GameDataset, check
from episodes.storage.ledger import Ledger
from episodes.storage.ledger.ledger_reader import LedgerReader
from tests.interrupts import Breaking
from tests.storage.test_games import game

ROOMS = ("/episodes/storage/",)


class Stop(BaseException):
    """Interrupt, as Ctrl-C raises it."""


def episode(number: int, rng: np.random.Generator) -> SingleAgentEpisode:
    """Return an episode of one of the kinds that a writer treats differently: small, large, with infos, with text."""
    steps = int(rng.choice([1, 3, 40, 60_000], p=[0.4, 0.3, 0.27, 0.03]))
    infos = [{"k": i} for i in range(steps + 1)] if rng.random() < 0.1 and steps < 50 else None
    data = np.zeros(steps + 1, np.float64), np.arange(steps), np.ones(steps)
    return SingleAgentEpisode.from_arrays(*data, terminated=True, id_=str(number), infos=infos)


class WriterProgram:
    """Random program of adds and flushes to a data set, and what must be in it afterwards."""

    def __init__(self, path: Path, rng: np.random.Generator) -> None:
        self.path, self.rng, self.owner = path, rng, EpisodeWriter(path, shard_bytes=200_000)
        self.given = 0

    def step(self) -> tuple[Callable[[], Any], list[str]]:
        """Return a call, and the ids that it adds."""
        if self.rng.random() < 0.3:
            return self.owner.flush, []
        episodes = [episode(self.given + i, self.rng) for i in range(self.rng.integers(1, 4))]
        self.given += len(episodes)
        return (lambda: self.owner.add(episodes)), [str(each.id_) for each in episodes]

    def stored(self) -> list[str]:
        assert not check(self.path).problems
        return [str(each.id_) for each in EpisodeDataset(self.path, verify=True)]


class GameProgram(WriterProgram):
    """Random program of adds and flushes of games whose agents are of three kinds."""

    def step(self) -> tuple[Callable[[], Any], list[str]]:
        if self.rng.random() < 0.3:
            return self.owner.flush, []
        games = [game(self.given + i) for i in range(self.rng.integers(1, 3))]
        self.given += len(games)
        if self.rng.random() < 0.2:
            next(iter(games[0].agent_episodes.values())).custom_data["large"] = np.zeros(200_000)  # written at once
        return (lambda: self.owner.add(games)), [str(each.id_) for each in games]

    def stored(self) -> list[str]:
        assert not check(self.path).problems
        dataset = GameDataset(self.path)
        assert not dataset.incomplete
        return [str(each.id_) for each in dataset]


class LedgerProgram:
    """Random program of notes and flushes to a ledger, and what must be in it afterwards."""

    def __init__(self, path: Path, rng: np.random.Generator) -> None:
        self.path, self.rng, self.owner = path, rng, Ledger(path, every=3)
        self.given = 0

    def step(self) -> tuple[Callable[[], Any], list[str]]:
        """Return a call, and the number of the update that it notes."""
        if self.rng.random() < 0.3:
            return self.rng.choice([self.owner.flush, self.owner.close]), []
        self.given += 1
        number, rows = self.given, {"obs": np.full((2, 1), self.given, np.float32)}
        return (lambda: self.owner.note(number, rows)), [str(number)]

    def stored(self) -> list[str]:
        return [str(update.update) for update in LedgerReader(self.path)]


def run(make: Callable[..., Any], path: Path, seed: int) -> bool:
    """Run a program with one interrupt, and compare what it stored with what was given.

    A first run counts the instructions of the interrupted call, so that each of them is equally likely. Half of the
    interrupted calls are made again.

    Returns:
        Whether the call was interrupted.
    """
    at = seed % 12
    counter = Breaking(Stop, -1, rooms=ROOMS)
    play(make(path.with_suffix(".counted"), np.random.default_rng(seed)), at, counter)
    program = make(path, np.random.default_rng(seed))
    breaking = Breaking(Stop, 1 + seed * 7919 % max(counter.num_seen, 1), rooms=ROOMS)
    certain, uncertain = play(program, at, breaking, again=seed % 2 == 0 and make is not LedgerProgram)
    stored = program.stored()
    assert len(stored) == len(set(stored)), "an item was written twice"
    assert set(certain) <= set(stored), "an item is lost"
    assert set(stored) - set(certain) in (set(), set(uncertain)), "a part of a call was written"
    return breaking.left == -1


def play(program: Any, at: int, breaking: Breaking, *, again: bool = False) -> tuple[list[str], list[str]]:
    """Run 15 calls of a program and close it. The call with the index `at` may be interrupted, and is then made again
    with `again`. If the interrupted call has added its items, the second one is rejected.

    Returns:
        The items of the calls that returned, and of the interrupted one.
    """
    certain: list[str] = []
    uncertain: list[str] = []
    for i in range(15):
        call, items = program.step()
        if i == at and breaking.run(call):
            if again:
                with suppress(ChunkMismatch):
                    call()
                certain += items
            else:
                uncertain += items
        else:
            if i != at:
                call()
            certain += items
    program.owner.close()
    return certain, uncertain


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python ignores them in `__del__`
@pytest.mark.parametrize("make", [WriterProgram, GameProgram, LedgerProgram])
def test_interrupted_call_neither_loses_nor_doubles(make: Any, tmp_path: Path) -> None:
    count = 20 if make is GameProgram else 120
    assert sum(run(make, tmp_path / str(seed), seed) for seed in range(count)) > count * 2 / 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python ignores them in `__del__`
@pytest.mark.parametrize("make", [WriterProgram, GameProgram, LedgerProgram])
def test_interrupted_call_neither_loses_nor_doubles_often(make: Any, tmp_path: Path) -> None:
    assert sum(run(make, tmp_path / str(seed), seed) for seed in range(1000, 3500)) > 2000


@pytest.mark.parametrize("steps", [1, 60_000])
def test_interrupted_add_can_be_made_again(steps: int, tmp_path: Path) -> None:
    """At every seventh place where a signal can interrupt it: the episode is written once."""
    first, then = (
        SingleAgentEpisode.from_arrays(np.zeros(steps + 1), np.arange(steps), np.ones(steps), terminated=True, id_=id_)
        for id_ in "ab"
    )
    at = 0
    is_interrupted = True
    while is_interrupted:
        at += 7
        path = tmp_path / str(at)
        with EpisodeWriter(path) as writer:
            writer.add([first])
            is_interrupted = Breaking(Stop, at, rooms=ROOMS, where_signals_come=True).run(lambda: writer.add([then]))
            with suppress(ChunkMismatch):
                writer.add([then])
        assert [each.id_ for each in EpisodeDataset(path)] == ["a", "b"]
    assert at > 20

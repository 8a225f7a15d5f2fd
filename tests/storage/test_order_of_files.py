"""The order of files follows from the directory. No clock decides it."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from episodes import SingleAgentEpisode
from episodes.storage import EpisodeDataset, EpisodeWriter, compact, merge
from episodes.storage.ledger import Ledger
from episodes.storage.ledger.ledger_reader import LedgerReader


def write(path: Path, number: int) -> None:
    with EpisodeWriter(path) as writer:
        writer.add(SingleAgentEpisode.from_arrays(np.zeros(3), [0, 1], [1.0, 1.0], id_=str(number)))


def note(path: Path, number: int) -> None:
    with Ledger(path) as ledger:
        ledger.note(number, {"obs": np.zeros((2, 1))})


def ids(path: Path) -> list[int]:
    return [int(str(each.id_)) for each in EpisodeDataset(path)]


@pytest.fixture(params=["forward", "backward", "still"])
def clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes forward, backward, or stands still, as on several machines."""
    step, now = {"forward": 1, "backward": -1, "still": 0}[request.param] * 3600 * 10**9, [time.time_ns()]

    def time_ns() -> int:
        now[0] += step
        return now[0]

    monkeypatch.setattr(time, "time_ns", time_ns)
    monkeypatch.setattr(time, "time", lambda: time_ns() / 1e9)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("place", ["writers", "compacted", "merged", "merged, then written"])
def test_episodes_are_in_the_order_of_writing(place: str, tmp_path: Path) -> None:
    path = tmp_path / "data"
    for number in range(4):
        write(path, number)
    if place == "compacted":
        compact(path)
        write(path, 4)
        compact(path)
        write(path, 5)
    elif place.startswith("merged"):
        for source in range(2):
            for i in range(3):
                write(tmp_path / str(source), 4 + 3 * source + i)
            merge(path, tmp_path / str(source))
        if place.endswith("written"):
            write(path, 10)
    assert ids(path) == list(range(len(EpisodeDataset(path))))


@pytest.mark.usefixtures("clock")
def test_resumed_ledger_replaces_updates_in_the_order_of_writing(tmp_path: Path) -> None:
    for number in (1, 2, 3, 2, 3):
        note(tmp_path, number)
    ledger = LedgerReader(tmp_path)
    assert [update.update for update in ledger] == [1, 2, 3]
    assert [place.shard for place in ledger._places] == [0, 3, 4]

"""The progress of a run on a terminal and in a log file."""

from __future__ import annotations

import io
import re

import pytest

from episode_learners.trainers.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the output of a run of three epochs on a stream of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setattr("sys.stderr", stream)
    with Progress(15_360, 0, True) as progress:
        for epoch in (1, 2, 3):
            progress.begin(epoch, 3)
            for _ in range(5):
                progress.note({"mean_return": 487.25, "policy_loss": -0.01234})
                progress.add(1024)
            progress.note({"mean_return": 500.0}, "test")
    return stream.getvalue()


def test_bar_at_80_columns_shows_loss_and_test_score(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = re.split(r"[\r\n]", run(Terminal(), monkeypatch))
    bars = [frame for frame in frames if "<" in frame and "epoch 3/3" in frame]
    assert bars
    assert all(len(bar.rstrip()) <= 80 for bar in bars)
    assert re.search(r"100% .*, test 500\.0, loss -0\.0123, return 487\.2 \S+/s", bars[-1])  # with the whole unit


def test_lines_of_epochs_are_on_terminals_and_in_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "epoch 3/3: 15,360 steps, test 500.0, loss -0.0123, return 487.2"
    assert line in re.split(r"[\r\n]", run(Terminal(), monkeypatch))
    log = run(io.StringIO(), monkeypatch).splitlines()
    assert len(log) == 3
    assert log[-1] == line

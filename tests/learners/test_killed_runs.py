"""Runs that are killed, in the middle of an epoch or of a checkpoint, and go on as if they had never stopped.

A child process imports everything once and forks for each run, which kills itself at a given place.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch

from episode_learners.trainers import checkpoint
from tests.learners.test_trainers import MAKERS, Notes

ROOT = Path(__file__).parents[2]
EPOCHS = 3
CONFIG = {"max_epochs": EPOCHS, "checkpoint_every": 1}
PLACES = ("epoch", "checkpoint")  # where a run is killed: in the middle of the last one


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class KillsInTheMiddle:
    """A hook that kills its own process after the second epoch: after an update, or while a checkpoint is written."""

    def __init__(self, place: str) -> None:
        self.place = place

    def on_update(self, trainer: Any, metrics: dict[str, float]) -> None:
        if trainer.num_epochs == EPOCHS - 1 and self.place == "epoch":
            killed()

    def on_epoch(self, trainer: Any) -> None:
        if trainer.num_epochs == EPOCHS and self.place == "checkpoint":
            checkpoint.os = _HalfWay()  # type: ignore[attr-defined]


class _HalfWay:
    """The module `os` where a file is cut in half when it is to be kept, and nothing comes after that."""

    def fsync(self, descriptor: int) -> None:
        os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
        os.fsync(descriptor)
        killed()


def run_all(folder: Path) -> None:
    """A process for each run; each has to be killed, and leaves its checkpoints in a folder of its own."""
    torch.set_num_threads(1)
    for name, make in MAKERS.items():
        for place in PLACES:
            child = os.fork()
            if not child:
                try:
                    make(config=CONFIG, folder=folder / name / place, hooks=[KillsInTheMiddle(place)]).run()
                except BaseException:
                    traceback.print_exc()
                os._exit(1)
            _, status = os.waitpid(child, 0)
            if not os.WIFSIGNALED(status):
                raise SystemExit(f"{name}, {place}: ended with {status} before it was killed")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What killed runs have left, by algorithm and place."""
    folder = tmp_path_factory.mktemp("killed")
    command = (
        f"from pathlib import Path; from tests.learners.test_killed_runs import run_all; run_all(Path({str(folder)!r}))"
    )
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("name", MAKERS)
def test_a_killed_run_goes_on_as_if_it_had_never_stopped(name: str, folders: Path, tmp_path: Path) -> None:
    notes = Notes()
    whole: Any = MAKERS[name](config=CONFIG, folder=tmp_path, hooks=[notes])
    result = whole.run()
    for place in PLACES:
        left, later = folders / name / place, Notes()
        assert [path.suffix for path in sorted(left.iterdir())][:2] == [".pt", ".pt"]
        resumed: Any = MAKERS[name](seed=7, config=CONFIG, folder=left, hooks=[later])
        assert resumed.resume()
        assert resumed.num_epochs == EPOCHS - 1
        again = resumed.run()
        assert later.updates
        assert later.updates == notes.updates[-len(later.updates) :]
        assert again.last_test.returns.tolist() == result.last_test.returns.tolist()
        assert (again.num_steps, again.num_updates) == (result.num_steps, result.num_updates)
        weights = resumed.algorithm.state_dict()
        for key, value in whole.algorithm.state_dict().items():
            assert not isinstance(value, torch.Tensor) or torch.equal(value, weights[key]), key

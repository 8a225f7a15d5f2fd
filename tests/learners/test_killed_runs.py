"""Runs that are killed during an epoch or a checkpoint continue exactly like uninterrupted runs.

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

import numpy as np
import pytest
import torch

from episode_learners.loggers import CSVLogger
from episode_learners.trainers import checkpoint
from episode_learners.trainers.checkpoint import load_checkpoint
from episodes.storage import files
from episodes.storage.ledger import difference
from episodes.storage.ledger.ledger_reader import LedgerReader
from tests.learners import test_league, test_multi_agent_trainers, test_trainers
from tests.learners.test_trainers import Notes
from tests.learners.weights import assert_same_weights

MAKERS = {**test_trainers.MAKERS, **test_multi_agent_trainers.MAKERS, "league": test_league.trainer}
ROOT = Path(__file__).parents[2]
EPOCHS = 3
CONFIG = {"max_epochs": EPOCHS, "checkpoint_every": 1}
PLACES = ("epoch", "checkpoint")  # where a run is killed: in the middle of the last one


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class KillsInTheMiddle:
    """Hook that kills its process after the second epoch, after an update or while a checkpoint is written."""

    def __init__(self, place: str) -> None:
        self.place = place

    def on_update(self, trainer: Any, metrics: dict[str, float]) -> None:
        if trainer.num_epochs == EPOCHS - 1 and self.place == "epoch":
            killed()

    def on_epoch(self, trainer: Any) -> None:
        if trainer.num_epochs == EPOCHS and self.place == "checkpoint":
            checkpoint.put = _put_half  # type: ignore[attr-defined]


def _put_half(path: Path, data: memoryview, **options: Any) -> None:
    """Write half of a file as `put` begins, and kill the process."""
    monkey = os.write

    def half(descriptor: int, part: Any) -> int:
        monkey(descriptor, part[: len(part) // 2])
        os.fsync(descriptor)
        killed()
        return 0

    files.os.write = half  # type: ignore[attr-defined]
    files.put(path, data, **options)


def run_all(folder: Path) -> None:
    """Start a process for each run, and check that each is killed and leaves its checkpoints."""
    torch.set_num_threads(1)
    config = {**CONFIG, "max_epochs": 1}  # a run imports modules: here, and not in each child
    test_trainers.ppo_trainer(config=config, folder=folder, ledger=folder / "ledger").run()
    for name, make in MAKERS.items():
        for place in PLACES:
            child = os.fork()
            if not child:
                try:
                    left, hooks = folder / name / place, [KillsInTheMiddle(place)]
                    make(config=CONFIG, folder=left, ledger=left / "ledger", hooks=hooks).run()
                except BaseException:
                    traceback.print_exc()
                os._exit(1)
            _, status = os.waitpid(child, 0)
            if not os.WIFSIGNALED(status):
                raise SystemExit(f"{name}, {place}: ended with {status} before it was killed")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folders of killed runs by algorithm and place."""
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
def test_killed_run_resumed_equals_uninterrupted_run(name: str, folders: Path, tmp_path: Path) -> None:
    notes = Notes()
    whole: Any = MAKERS[name](config=CONFIG, folder=tmp_path, ledger=tmp_path / "ledger", hooks=[notes])
    result = whole.run()
    assert len(list(tmp_path.glob("checkpoint-*.pt"))) == 2
    for place in PLACES:
        left, later = folders / name / place, Notes()
        assert [path.suffix for path in sorted(left.glob("[!.]*"))][:2] == [".pt", ".pt"]
        resumed: Any = MAKERS[name](seed=7, config=CONFIG, folder=left, ledger=left / "ledger", hooks=[later])
        assert resumed.resume()
        assert resumed.num_epochs == EPOCHS - 1
        resumed_result = resumed.run()
        assert later.updates
        assert later.updates == notes.updates[-len(later.updates) :]
        assert resumed_result.last_test.returns.tolist() == result.last_test.returns.tolist()
        for count in ("num_steps", "num_updates", "best_score"):
            assert getattr(resumed_result, count) == getattr(result, count)
        assert len(LedgerReader(left)) == len(LedgerReader(tmp_path)) > 0
        assert difference(tmp_path, left) is None
        if name == "league":
            assert_equal(resumed.hooks[0].get_state(), whole.hooks[0].get_state(), name)
        assert_same_weights(whole.algorithm, resumed.algorithm)


RANDOM = ("recurrent PPO", "SAC", "DQN and PPO", "R2D2 and DQN", "league")
KILLS = 6  # of each


def run_with_kills(name: str, folder: Path, seed: int) -> None:
    """Run to the end in child processes, the first `KILLS` of which are killed after random times."""
    rng = np.random.default_rng(seed)
    folder.mkdir()
    torch.optim.SGD([torch.zeros(1)])
    for attempt in range(KILLS + 1):
        child = os.fork()
        if not child:
            try:
                if attempt < KILLS:
                    signal.setitimer(signal.ITIMER_REAL, float(rng.uniform(0.02, 0.4)))  # the default action is to die
                with CSVLogger(folder) as logger:
                    options: dict[str, Any] = {"folder": folder, "logger": logger, "ledger": folder / "ledger"}
                    trainer: Any = MAKERS[name](seed=attempt, config=LONG, **options)
                    if not trainer.resume():
                        logger.resume(-1)
                        torch.manual_seed(0)
                        trainer = MAKERS[name](seed=0, config=LONG, **options)
                    trainer.run()
                trainer.save_epoch()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) if attempt < KILLS else status == 0, (name, attempt, status)
        rng.uniform()


LONG = {"max_epochs": 60, "checkpoint_every": 1, "num_test_episodes": 1}


@pytest.mark.slow
@pytest.mark.parametrize("name", RANDOM)
def test_run_killed_at_random_moments_equals_uninterrupted_run(name: str, tmp_path: Path) -> None:
    """Compare all state at the end: weights, counts, buffers, ratings and curves, after 30 kills in total."""
    code = (
        "from pathlib import Path; import torch; torch.set_num_threads(1); from tests.learners import test_killed_runs;"
        f"test_killed_runs.run_with_kills({name!r}, Path({str(tmp_path / 'killed')!r}), {len(name)})"
    )
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    with CSVLogger(tmp_path / "whole") as logger:
        torch.manual_seed(0)
        folder = tmp_path / "whole"
        whole: Any = MAKERS[name](config=LONG, folder=folder, logger=logger, ledger=folder / "ledger")
        whole.run()
    states = [load_checkpoint(max((tmp_path / one).glob("checkpoint-*.pt"))) for one in ("whole", "killed")]
    for state in states:
        del state["counts"]["seconds"]
    assert_equal(*states, name)
    assert difference(tmp_path / "whole", tmp_path / "killed") is None
    for scope in ("train", "update", "test"):
        rows = [CSVLogger(tmp_path / one).rows(scope) for one in ("whole", "killed")]
        timeless = [[{k: v for k, v in row.items() if "second" not in k} for row in table] for table in rows]
        assert timeless[0] == timeless[1]


def assert_equal(one: Any, other: Any, place: str) -> None:
    """Compare nested values, arrays and tensors."""
    assert type(one) is type(other), place
    if isinstance(one, dict):
        assert one.keys() == other.keys(), place
        for key in one.keys() - {"prefixes"}:  # of the random ids of agents' episodes
            assert_equal(one[key], other[key], f"{place}/{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), place
        for i, (left, right) in enumerate(zip(one, other, strict=True)):
            assert_equal(left, right, f"{place}/{i}")
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other), place
    elif isinstance(one, np.ndarray):
        assert np.array_equal(one, other, equal_nan=one.dtype.kind == "f"), place
    else:
        assert one == other or one != one, place

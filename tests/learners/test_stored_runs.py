"""`episodes runs`, `episodes diff` and `--best` with real training runs: status, results, settings that differ."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from episode_learners.__main__ import main
from episode_learners.loggers import CSVLogger
from episodes.command.app import app
from episodes.storage.ownership import Owner
from episodes.storage.runs import LOCK, StoredRun, is_run, write_status
from tests.learners.test_best_policies import MAKERS
from tests.learners.test_command_line import SHORT
from tests.learners.test_trainers import ppo_trainer


class Does:
    """Hook that calls a function of the trainer after the first epoch, and records the status of the run before."""

    def __init__(self, act: Callable[[Any], object]) -> None:
        self.act, self.seen = act, ""

    def on_epoch(self, trainer: Any) -> None:
        if trainer.num_epochs == 1:
            self.seen = StoredRun.read(trainer.folder).status
            self.act(trainer)


def fail(trainer: Any) -> None:
    raise ValueError("broken\x1b")


def interrupt(trainer: Any) -> None:
    raise KeyboardInterrupt


ENDS = {
    "finished": (lambda trainer: None, "finished"),
    "stopped": (lambda trainer: trainer.stop(), "stopped by stop_fn"),
    "interrupted": (interrupt, "interrupted"),
    "failed": (fail, "failed: ValueError: broken\x1b"),
    "killed": (lambda trainer: os._exit(7), "killed"),
}


@pytest.mark.parametrize("name", ENDS)
def test_status_of_a_run_that_runs_ends_and_is_resumed(name: str, tmp_path: Path) -> None:
    act, status = ENDS[name]
    config = {"max_epochs": 2, "checkpoint_every": 1}
    hook = Does(act)
    trainer = ppo_trainer(config=config, folder=tmp_path, hooks=[hook])
    if name == "killed":
        child = os.fork()
        if not child:
            trainer.run()
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    else:
        try:
            trainer.run()
        except ValueError:
            assert name == "failed"
        assert hook.seen == "running"
    run = StoredRun.read(tmp_path)
    assert run.status == status
    assert run.settings["trainer.max_epochs"] == "2"
    if name in ("finished", "stopped"):
        assert (run.num_epochs, run.num_steps, run.num_updates) == (
            trainer.num_epochs,
            trainer.num_steps,
            trainer.num_updates,
        )
        assert (run.best_score, run.best_epoch) == (trainer.best_score, trainer.best_epoch)
        assert trainer.last_test is not None
        assert run.last_score == trainer.last_test.mean_return
        assert run.seconds == pytest.approx(trainer.seconds)
    resumed = ppo_trainer(seed=1, config=config, folder=tmp_path)
    resumed.resume()
    resumed.is_stopped = False
    resumed.run()
    again = StoredRun.read(tmp_path)
    assert again.status == "finished"
    assert again.num_epochs == 2
    assert again.last_score is not None  # also if the resumed run had nothing to do


@pytest.mark.parametrize("name", ["DQN", "SAC", "DQN and PPO", "several offline", "league"])
def test_trainers_of_each_kind_store_their_status(name: str, tmp_path: Path) -> None:
    MAKERS[name](config={"max_epochs": 1}, folder=tmp_path).run()
    run = StoredRun.read(tmp_path)
    assert (run.status, run.num_epochs) == ("finished", 1)
    assert run.best_score is not None
    assert any(setting.startswith("algorithm.") for setting in run.settings)


def test_run_without_tests_has_no_scores(tmp_path: Path) -> None:
    ppo_trainer(config={"max_epochs": 1, "num_test_episodes": 0}, folder=tmp_path).run()
    run = StoredRun.read(tmp_path)
    assert (run.status, run.best_score, run.last_score) == ("finished", None, None)


def test_reading_a_run_never_stops_its_trainer(tmp_path: Path) -> None:
    """Resume a killed run while another thread reads its status all the time."""
    write_status(tmp_path, settings={}, stopped_by=None)
    seen, is_over = set(), threading.Event()

    def look() -> None:
        while not is_over.is_set():
            seen.add(StoredRun.read(tmp_path).status)

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for _ in range(300):
            owner = Owner("a trainer", tmp_path / LOCK, refusal="refused")
            owner.claim()
            owner.release()
    finally:
        is_over.set()
        reader.join()
    assert seen <= {"running", "killed"}


def command(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(map(str, words)))
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    return result.exit_code, result.output


def test_runs_of_the_command_line_are_listed_compared_and_evaluated(tmp_path: Path, capsys: Any) -> None:
    settings, runs = tmp_path / "short.toml", tmp_path / "runs"
    settings.write_text(SHORT)
    for name, options in {"a": [], "b": ["--seed", "1", "--epochs", "3"], "same": ["--ledger"]}.items():
        arguments = ["train", "--config", str(settings), "--logdir", str(runs / name), "--quiet", "--stop-at", "9999"]
        assert main([*arguments, *options]) == 0
    capsys.readouterr()
    status, text = command("runs", runs)
    title, *lines = [line.split() for line in text.splitlines()]
    assert status == 0
    assert title == [
        "run",
        "status",
        "steps",
        "best",
        "test",
        "last",
        "test",
        "seconds",
        "seed",
        "ledger",
        "max_epochs",
    ]
    assert sorted(line[0] for line in lines) == ["a", "b", "same"]
    rows = {line[0]: line for line in lines}
    assert [rows[name][-3:] for name in ("a", "b", "same")] == [
        ["0", "False", "2"],
        ["1", "False", "3"],
        ["0", "True", "2"],
    ]
    best = [float(line[3]) for line in lines]
    assert best == sorted(best, reverse=True)
    tests = [float(row["mean_return"]) for row in CSVLogger(runs / "b").rows("test")]
    assert [float(cell) for cell in rows["b"][3:5]] == pytest.approx([max(tests), tests[-1]], rel=1e-3)

    status, text = command("diff", runs / "a", runs / "b")
    assert status == 1
    scores = {name: StoredRun.read(runs / name).best_score or 0.0 for name in "ab"}
    better = max(scores, key=lambda name: scores[name])
    expected = "both had the same" if scores["a"] == scores["b"] else f"{runs / better} was better"
    assert expected in text
    assert ["seed", "0", "1"] in [line.split() for line in text.splitlines()]
    assert "steps were not compared" in text
    status, text = command("diff", runs / "a", runs / "same")
    assert status == 1
    assert ["ledger", "False", "True"] in [line.split() for line in text.splitlines()]
    status, text = command("diff", runs / "same", runs / "same")
    assert status == 0
    assert "no difference" in text

    assert main(["evaluate", str(runs / "b"), "--best", "--episodes", "2"]) == 0
    assert main(["play", str(runs / "b"), "--best", "--episodes", "2"]) == 0
    assert capsys.readouterr().out.count("Evaluation(2 episodes") == 2


def test_best_before_the_first_test_is_refused_by_the_command_line(tmp_path: Path, capsys: Any) -> None:
    settings, folder = tmp_path / "short.toml", tmp_path / "run"
    settings.write_text(SHORT.replace("num_test_episodes = 2", "num_test_episodes = 0"))
    assert main(["train", "--config", str(settings), "--logdir", str(folder), "--quiet"]) == 0
    assert is_run(folder)
    with pytest.raises(SystemExit) as exit_:
        main(["evaluate", str(folder), "--best"])
    assert exit_.value.code == 2
    assert "this run has no test yet" in capsys.readouterr().err

"""The demo solves CartPole, prints its result, keeps the episodes, and can be interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from episode_learners.demo import Demo, main
from episodes.storage import EpisodeDataset

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3, 4))])
def test_demo_solves_cartpole_within_sixty_thousand_steps(seed):
    demo = Demo(seed=seed)
    demo.train()
    assert demo.is_solved
    assert demo.mean_return >= 475
    assert demo.history.num_steps <= 60_000


def test_demo_with_equal_seeds_gives_equal_runs():
    runs = [Demo(seed=seed, num_steps=2000) for seed in (5, 5, 6)]
    for run in runs:
        run.train()
    first, same, other_run = runs
    assert first.history.returns == same.history.returns
    assert all(map(torch.equal, first.policy.parameters(), same.policy.parameters()))
    assert first.history.returns != other_run.history.returns


def test_demo_writes_table_picture_policy_and_episodes(tmp_path, capsys):
    arguments = ["--steps", "1000", "--seed", "1", "--folder", str(tmp_path)]
    assert main(arguments) == 1  # the goal is not reached so soon
    printed = capsys.readouterr()
    table = printed.out.splitlines()[:11]
    assert table[0].split() == ["episode", "length", "return", "ending"]
    stored_episodes = EpisodeDataset(tmp_path / "episodes")
    assert [line.split()[:2] for line in table[1:]] == [[e.id_, str(len(e))] for e in stored_episodes[-10:]]
    assert stored_episodes.env_spec == "CartPole-v1"
    assert all(episode.is_done for episode in stored_episodes)
    assert "steps/s" in printed.out
    assert str(tmp_path) in printed.out
    assert "return" in printed.err
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    assert set(torch.load(tmp_path / "policy.pt", weights_only=True)) > {"actor.0.weight", "critic.0.weight"}
    lines = printed.out.split("to look at the episodes:\n")[1].splitlines()
    names: dict[str, Any] = {}
    exec("\n".join(line.strip() for line in lines), names)
    assert names["episode"].is_done
    main(arguments)  # a second run extends the data set of its environment
    assert len(EpisodeDataset(tmp_path / "episodes")) == 2 * len(stored_episodes)
    with pytest.raises(SystemExit):
        main(["--env", "Pendulum-v1", *arguments])
    assert "env_spec" in capsys.readouterr().err


def test_demo_with_continuous_actions_and_no_goal_runs(tmp_path, capsys):
    assert main(["--env", "Pendulum-v1", "--steps", "2000", "--folder", str(tmp_path)]) == 0
    assert "truncated" in capsys.readouterr().out


def test_demo_flattens_other_observations(tmp_path, capsys):
    assert main(["--env", "Blackjack-v1", "--steps", "1000", "--folder", str(tmp_path)]) == 0
    assert EpisodeDataset(tmp_path / "episodes").pack().observations.shape[1] == 32 + 11 + 2
    assert "terminated" in capsys.readouterr().out


def test_demo_without_ended_episode_writes_nothing(tmp_path, capsys):
    folder = tmp_path / "run"
    assert main(["--env", "Pendulum-v1", "--steps", "1000", "--folder", str(folder)]) == 0
    assert "No episode has ended" in capsys.readouterr().out
    assert not folder.exists()


@pytest.mark.parametrize(
    "wrong", [["--env", "NoSuchPole-v1"], ["--steps", "0"], ["--device", "cuda:99"], ["--device", "gqu"]]
)
def test_demo_error_is_one_line(wrong, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(wrong)
    assert stopped.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_interrupted_demo_writes_its_episodes(tmp_path):
    command = [sys.executable, "-m", "episode_learners.demo", "--env", "Pendulum-v1", "--steps", "10000000"]
    process = subprocess.Popen(
        [*command, "--folder", str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    assert process.stdout is not None
    assert process.stderr is not None
    shown = b""
    while b"return -" not in shown:  # the first episodes have ended
        more_output = os.read(process.stderr.fileno(), 4096)
        assert more_output, shown  # else it has ended
        shown += more_output
    process.send_signal(signal.SIGINT)
    try:
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert b"Interrupted" in out
    assert b"truncated" in out
    assert b"Traceback" not in err
    assert len(EpisodeDataset(tmp_path / "episodes")) > 0

"""`python -m learners`: train, go on, evaluate, play, and what is said of mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from episodes.storage import EpisodeDataset
from learners.__main__ import main
from learners.loggers import CSVLogger
from learners.run import ALGORITHMS, Run, presets

SHORT = """
algo = "ppo"
env = "CartPole-v1"
num_envs = 2
[policy]
hidden_sizes = [8]
activation = "ReLU"
[algorithm]
num_epochs = 1
[trainer]
max_epochs = 2
steps_per_epoch = 64
steps_per_collect = 32
num_test_episodes = 2
"""


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "short.toml"
    path.write_text(SHORT)
    return path


def test_a_run_is_trained_gone_on_with_evaluated_and_played(settings: Path, tmp_path: Path, capsys):
    folder = tmp_path / "run"
    assert main(["train", "--config", str(settings), "--logdir", str(folder), "--quiet", "--stop-at", "9999"]) == 0
    assert "2 epochs" in capsys.readouterr().out
    assert [row["num_episodes"] for row in CSVLogger(folder).rows("test")] == ["2.0", "2.0"]
    assert main(["evaluate", str(folder), "--episodes", "3"]) == 0
    assert "Evaluation(3 episodes" in capsys.readouterr().out
    assert main(["play", str(folder), "--episodes", "3"]) == 0
    data = EpisodeDataset(folder / "episodes")
    assert len(data) == 3
    assert all(episode.is_done for episode in data)
    assert main(["train", "--resume", str(folder), "--stop-at", "9999"]) == 0
    assert "2 epochs" in capsys.readouterr().out  # it was done already
    assert main(["train", "--resume", str(folder), "--stop-at", "9999", "--epochs", "3"]) == 0
    assert "3 epochs" in capsys.readouterr().out
    for again in (["--config", str(settings), "--logdir", str(folder)], ["--resume", str(folder), "--seed", "3"]):
        with pytest.raises(SystemExit):
            main(["train", *again])
        assert "--resume" in capsys.readouterr().err or "--seed" in again


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--algo", "reinforce"], "invalid choice"),
        (["evaluate", "nowhere"], "nowhere holds no run"),
        (["train", "--resume", "nowhere"], "nowhere holds no run"),
        (["train", "--env", "NoSuchEnvironment-v0", "--quiet"], "NoSuchEnvironment"),
        (["train", "--algo", "dqn", "--env", "Pendulum-v1", "--quiet"], "not Discrete"),
    ],
    ids=str,
)
def test_a_mistake_is_said_and_nothing_is_trained(arguments, message, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("speed = 3\n", "speed"),
        ("[algorithm]\nlearning_rat = 3\n", "learning_rat"),
        ("[trainer]\nmax_epochs = 0\n", "max_"),
    ],
    ids=str,
)
def test_a_setting_that_there_is_not_is_refused_by_name(more, message, tmp_path: Path, capsys):
    path = tmp_path / "wrong.toml"
    path.write_text('algo = "ppo"\nenv = "CartPole-v1"\n' + more)
    with pytest.raises(SystemExit):
        main(["train", "--config", str(path), "--quiet", "--logdir", str(tmp_path / "run")])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("key", sorted(presets()), ids=" on ".join)
def test_every_preset_makes_a_trainer_of_its_algorithm(key):
    run = Run.of_preset(*key)
    trainer = run.make()
    assert type(trainer.algorithm) is ALGORITHMS[key[0]].algorithm
    assert trainer.config.max_epochs == run.trainer["max_epochs"]

"""`episodes train`, `evaluate` and `play`: runs, resumed runs, evaluations, recorded episodes and errors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from episode_learners.__main__ import main
from episode_learners.loggers import CSVLogger
from episode_learners.run import ALGORITHMS, NETWORKS, Run, presets
from episode_runners import SingleAgentEnvRunner
from episodes.storage import EpisodeDataset, EpisodeWriter

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


def test_run_is_trained_resumed_evaluated_and_played(settings: Path, tmp_path: Path, capsys):
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
    assert main(["play", str(folder), "--episodes", "2"]) == 0
    assert len(set(EpisodeDataset(folder / "episodes").metadata["id"])) == 5  # other ones
    with pytest.raises(SystemExit):
        main(["play", str(folder), "--episodes", "2", "--seed", "0"])
    assert "already has 2 of the 2 episodes of this seed" in capsys.readouterr().err
    assert len(EpisodeDataset(folder / "episodes")) == 5
    assert main(["export", str(folder), "--best", "--steps", "50"]) == 0
    assert "equal to the policy of the best test (mean return" in capsys.readouterr().out
    assert {"policy.onnx", "serve.py"} <= {path.name for path in folder.iterdir()}
    assert main(["train", "--resume", str(folder), "--stop-at", "9999"]) == 0
    assert "2 epochs" in capsys.readouterr().out  # it was done already
    assert main(["train", "--resume", str(folder), "--stop-at", "9999", "--epochs", "3"]) == 0
    assert "3 epochs" in capsys.readouterr().out
    for arguments in (["--config", str(settings), "--logdir", str(folder)], ["--resume", str(folder), "--seed", "3"]):
        with pytest.raises(SystemExit):
            main(["train", *arguments])
        assert "--resume" in capsys.readouterr().err or "--seed" in arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("train --algo reinforce", "invalid choice"),
        ("train --max-epochs 1", "episodes train: error: unrecognized arguments: --max-epochs 1"),
        ("evaluate nowhere", "episodes evaluate: error: nowhere contains no run"),
        ("train --resume nowhere", "nowhere contains no run"),
        ("train --resume nowhere --algo dqn", "--algo cannot be combined with --resume"),
        ("train --resume nowhere --env Pendulum-v1", "--env cannot be combined with --resume"),
        ("train --resume nowhere --logdir elsewhere", "--logdir cannot be combined with --resume"),
        ("train --config nowhere --algo dqn", "--algo cannot be combined with --config"),
        ("evaluate nowhere --episodes 0", "0 is not a count"),
        ("train --env NoSuchEnvironment-v0 --quiet", "NoSuchEnvironment"),
        ("train --algo dqn --env Pendulum-v1 --quiet", "a Discrete action space is allowed"),
        ("train --quiet --algo bc", "bc learns from a data set"),
        ("train --quiet --algo ppo --data EPISODES", "ppo samples for itself"),
        ("train --quiet --algo bc --data EPISODES --env Acrobot-v1", "contains observations of Box"),
        ("train --quiet --algo cql --data nowhere", "nowhere"),
    ],
)
def test_wrong_arguments_print_an_error_and_train_nothing(
    arguments, message, data_sets, tmp_path: Path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(arguments.replace("EPISODES", str(data_sets["CartPole-v1"])).split())
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def refusal_of(settings: str, folder: Path, capsys: Any) -> str:
    """Return the error text for the settings, which start no run in `folder / "run"`."""
    path = folder / "wrong.toml"
    path.write_text(settings)
    with pytest.raises(SystemExit) as ended:
        main(["train", "--config", str(path), "--quiet", "--logdir", str(folder / "run")])
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ('algo = "ppo"\nspeed = 3', "speed"),
        ('algo = "ppo"\nalgorithm.learning_rat = 3', "learning_rat"),
        ('algo = "ppo"\ntrainer.max_epochs = 0', "max_"),
        ('algo = "ppo"\npolicy.network = "hypernet"', "mlp, encoder, lstm, gru, transformer"),
        ('algo = "grpo"\npolicy.network = "transformer"', "mlp, encoder, lstm, gru"),
        ('algo = "dqn"\npolicy.network = "gru"', "its own"),
        ('algo = "ppo"\npolicy.distribution = "cauchy"', "squashed, autoregressive"),
        ('algo = "ppo', "is not valid TOML"),
        ("algo = 3", "algo is 3; it must be a string"),
        ('algo = "ppo"\npolicy = 3', "policy is 3; it must be a table"),
        ('algo = "ppo"\nseed = "x"', "seed is 'x'; it must be an int"),
        ('algo = "ppo"\ndecay_over = -5', "decay_over is -5"),
        ('algo = "ppo"\nledger = "yes"', "ledger is 'yes'; it must be a bool"),
        ('algo = "ppo"\ndevice = "nowhere"', "device 'nowhere' cannot be used"),
        ('algo = "ppo"\npolicy.activation = "Foo"', "no activation 'Foo'"),
        ('algo = "ppo"\npolicy.hidden_sizes = 64', "hidden_sizes is 64; it must be a list"),
        ('algo = "ppo"\npolicy.hidden_sizes = [0]', "hidden_sizes has 0"),
        ('algo = "ppo"\npolicy.context = 5', "only a transformer"),
        ('algo = "ppo"\nbuffer.capacity = 5', "ppo learns from no buffer"),
        ('algo = "dqn"\nalgorithm.double = "no"', "double is 'no'; it must be a bool"),
        ('algo = "ppo"\ntrainer.num_test_episodes = 1.5', "num_test_episodes is 1.5"),
    ],
    ids=str,
)
def test_wrong_setting_is_named_and_leaves_no_folder(settings, message, tmp_path: Path, capsys):
    assert message in refusal_of(f'env = "CartPole-v1"\n{settings}\n', tmp_path, capsys)
    assert not (tmp_path / "run").exists()


def test_resume_without_checkpoint_restarts_the_run(settings: Path, tmp_path: Path, capsys):
    folder, train = tmp_path / "run", ["train", "--quiet"]
    assert main([*train, "--config", str(settings), "--logdir", str(folder), "--stop-at", "1"]) == 0
    assert "1 epochs" in capsys.readouterr().out
    assert main([*train, "--resume", str(folder)]) == 0
    assert "1 epochs" in capsys.readouterr().out
    assert main([*train, "--resume", str(folder), "--stop-at", "9999"]) == 0
    assert "2 epochs" in capsys.readouterr().out
    rows = CSVLogger(folder).rows("train")
    for path in folder.glob("checkpoint-*.pt"):  # as if it had been killed in its first epoch
        path.unlink()
    assert main([*train, "--resume", str(folder), "--stop-at", "9999"]) == 0
    assert [row["step"] for row in CSVLogger(folder).rows("train")] == [row["step"] for row in rows]
    for path in folder.glob("checkpoint-*.pt"):
        path.write_bytes(b"damaged")
    with pytest.raises(SystemExit):
        main([*train, "--resume", str(folder)])
    assert "is not a readable checkpoint" in capsys.readouterr().err
    (folder / "run.json").write_text("{}")
    with pytest.raises(SystemExit):
        main(["evaluate", str(folder)])
    assert "does not describe a run" in capsys.readouterr().err


@pytest.fixture(scope="module")
def data_sets(tmp_path_factory) -> dict[str, Path]:
    """Return data sets with a few episodes of each environment."""
    paths = {env: tmp_path_factory.mktemp("data") / "episodes" for env in ("CartPole-v1", "Pendulum-v1")}
    for env, path in paths.items():
        with SingleAgentEnvRunner(env, num_envs=2, seed=0) as runner, EpisodeWriter(path) as writer:
            writer.add(runner.sample(num_episodes=6 if env == "CartPole-v1" else 2, random_actions=True))
    return paths


OFFLINE = {"bc": "CartPole-v1", "cql": "CartPole-v1", "continuous-cql": "Pendulum-v1"}


@pytest.mark.parametrize(("algo", "env"), OFFLINE.items(), ids=OFFLINE)
def test_offline_run_is_trained_and_resumed(algo, env, data_sets, tmp_path: Path, capsys):
    settings, folder = tmp_path / "offline.toml", tmp_path / "run"
    numbers = "max_epochs = 2\nsteps_per_epoch = 20\nnum_test_episodes = 2\n"
    settings.write_text(
        f'algo = "{algo}"\nenv = "{env}"\nnum_envs = 2\n[policy]\nhidden_sizes = [8]\n[trainer]\n{numbers}'
    )
    train = ["train", "--config", str(settings), "--data", str(data_sets[env]), "--quiet"]
    assert main([*train, "--logdir", str(folder), "--stop-at", "9999"]) == 0
    assert "2 epochs" in capsys.readouterr().out
    assert main(["train", "--resume", str(folder), "--stop-at", "9999", "--epochs", "3"]) == 0
    assert "3 epochs" in capsys.readouterr().out
    assert main(["evaluate", str(folder), "--episodes", "3"]) == 0


def test_grpo_run_collects_whole_episodes():
    run = Run(algo="grpo", env="CartPole-v1", num_envs=4, algorithm={"group_size": 4})
    run.trainer = {"episodes_per_collect": 8, "shows_progress": False}
    trainer: Any = run.make()
    assert trainer.step() == sum(trainer.runner.stats.lengths)
    assert trainer.runner.stats.num_episodes == 8


NETS = {
    "gru": ("Pendulum-v1", {"hidden_sizes": [8], "state_size": 8}),
    "lstm": ("FrozenLake-v1", {"hidden_sizes": [8], "state_size": 8}),
    "encoder": ("Blackjack-v1", {"hidden_sizes": [8]}),
    "transformer": ("FrozenLake-v1", {"size": 8, "context": 3}),
    "mlp": ("Pendulum-v1", {"hidden_sizes": [8], "distribution": "squashed"}),
}


@pytest.mark.parametrize(
    ("network", "env", "policy"), [(name, *remaining) for name, remaining in NETS.items()], ids=NETS
)
def test_network_setting_selects_the_policy(network: str, env: str, policy: dict[str, Any], tmp_path: Path) -> None:
    numbers = {"max_epochs": 1, "steps_per_epoch": 32, "steps_per_collect": 32, "num_test_episodes": 1}
    run = {"algo": "ppo", "env": env, "num_envs": 2, "policy": {"network": network, **policy}, "trainer": numbers}
    trainer = Run.of_table({**run, "trainer": {**numbers, "shows_progress": False}}).make(folder=tmp_path)
    assert type(trainer.algorithm.policy) is NETWORKS[network]
    assert trainer.run().num_updates == 1
    trainer.save()
    assert Run.of_table(run).make(folder=tmp_path).resume()


@pytest.mark.parametrize("key", sorted(presets()), ids=" on ".join)
def test_each_preset_makes_a_trainer_of_its_algorithm(key, data_sets: dict[str, Path]):
    run = Run.of_preset(*key)
    if run.algo in OFFLINE:
        run.data = str(data_sets[run.env])
    trainer = run.make()
    assert type(trainer.algorithm) is ALGORITHMS[key[0]].algorithm
    assert trainer.config.max_epochs == run.trainer["max_epochs"]


class Presses(CSVLogger):
    """Logger that raises KeyboardInterrupt at its n-th row of updates."""

    row = 0

    def write(self, scope: str, metrics: Any, step: int) -> None:
        super().write(scope, metrics, step)
        if scope == "update":
            type(self).row -= 1
            if not type(self).row:
                raise KeyboardInterrupt


def test_all_files_of_a_run_are_on_the_disk_when_a_checkpoint_is(settings: Path, tmp_path: Path, monkeypatch):
    """After a restart of the machine, files have what was synced, under the names that their synced folder had."""
    folder, on_disk, real = tmp_path / "run", {}, os.fsync
    names: set[str] = set()

    def fsync(descriptor: int) -> None:
        real(descriptor)
        status = os.fstat(descriptor)
        on_disk[status.st_ino] = status.st_size
        if os.path.samestat(status, folder.stat()):
            names.clear()
            names.update(path.name for path in folder.iterdir())

    monkeypatch.setattr(os, "fsync", fsync)
    main(["train", "--config", str(settings), "--logdir", str(folder), "--quiet", "--stop-at", "9999"])
    files = [path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")]
    assert {path.suffix for path in files} >= {".pt", ".csv", ".json"}
    for path in files:
        assert path.name in names, path
        assert on_disk.get(path.stat().st_ino) == path.stat().st_size, path


@pytest.mark.parametrize("row", [1, 3])
def test_interrupted_and_resumed_run_equals_uninterrupted_run(row: int, settings: Path, tmp_path: Path, monkeypatch):
    options = ["--quiet", "--stop-at", "9999"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    main(["train", "--config", str(settings), "--logdir", str(whole), *options])
    with monkeypatch.context() as patch:
        patch.setattr("episode_learners.loggers.CSVLogger", Presses)
        Presses.row = row
        main(["train", "--config", str(settings), "--logdir", str(broken), *options])
    assert len(list(broken.glob("checkpoint-*"))) == (row > 2)
    main(["train", "--resume", str(broken), *options])
    for scope in ("train", "update", "test"):
        rows = [CSVLogger(folder).rows(scope) for folder in (whole, broken)]
        for left, right in zip(*rows, strict=True):
            assert {k: v for k, v in left.items() if "second" not in k} == {
                k: v for k, v in right.items() if "second" not in k
            }


def test_setting_of_run_json_changes_only_if_allowed(settings: Path, tmp_path: Path, capsys):
    folder = tmp_path / "run"
    main(["train", "--config", str(settings), "--logdir", str(folder), "--quiet", "--stop-at", "9999"])
    description = folder / "run.json"
    description.write_text(description.read_text().replace('"steps_per_collect": 32', '"steps_per_collect": 64'))
    resume = ["train", "--resume", str(folder), "--quiet", "--stop-at", "9999", "--epochs", "3"]
    with pytest.raises(SystemExit):
        main(resume)
    assert "trainer.steps_per_collect '32'" in capsys.readouterr().err
    assert main([*resume, "--allow", "trainer.steps_per_collect"]) == 0


SEVERAL = """
algo = "multi-agent"
env = "tests.learners.games:Targets"
num_envs = 2
[agents]
"a" = "first"
"*" = "second"
[modules.first]
algo = "dqn"
policy = {hidden_sizes = [8]}
algorithm = {batch_size = 16}
[modules.second]
algo = "ppo"
policy = {hidden_sizes = [8]}
algorithm = {num_epochs = 1}
[trainer]
max_epochs = 2
steps_per_epoch = 64
steps_per_collect = 16
warmup_steps = 16
num_test_episodes = 2
"""


def test_several_modules_are_trained_resumed_and_evaluated(tmp_path: Path, capsys):
    config, folder = tmp_path / "several.toml", tmp_path / "run"
    config.write_text(SEVERAL)
    assert main(["train", "--config", str(config), "--logdir", str(folder), "--quiet", "--epochs", "1"]) == 0
    assert main(["train", "--resume", str(folder), "--quiet", "--epochs", "2"]) == 0
    assert "2 epochs" in capsys.readouterr().out
    assert {"loss/module/first", "policy_loss/module/second"} <= set(CSVLogger(folder).rows("update")[-1])
    assert {"mean_return", "mean_return/agent/a", "mean_return/module/second"} <= set(CSVLogger(folder).rows("test")[0])
    assert main(["evaluate", str(folder), "--episodes", "3"]) == 0
    assert "Evaluation(3 episodes" in capsys.readouterr().out
    assert main(["play", str(folder), "--episodes", "2"]) == 0
    assert len(EpisodeDataset(folder / "episodes")) == 4  # two agents each


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"*" = "second"', '"*" = "third"', "third"),
        ('"*" = "second"', '"b" = "first"', "no agent is mapped to module 'second'"),
        ('"*" = "second"', '"c" = "second"', "'b' matches no pattern"),
        ("games:Targets", "games:Nothing", "package.module:function"),
        ('algo = "ppo"', 'algo = "bc"', "learn from stored data"),
        ('algo = "ppo"', 'algo = "ppo"\nspeed = 3', "speed"),
        ('algo = "multi-agent"', 'algo = "ppo"', "set algo = 'multi-agent'"),
    ],
)
def test_wrong_setting_of_several_modules_is_named(old: str, new: str, message: str, tmp_path: Path, capsys):
    assert message in refusal_of(SEVERAL.replace(old, new, 1), tmp_path, capsys)

"""Trainers whose environments fail and are replaced: scores are of whole episodes, and resumed runs are equal."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from episode_learners import DQN, PPO, DQNConfig, MLPPolicy, PPOConfig, QPolicy
from episode_learners.loggers import CSVLogger
from episode_learners.trainers import OffPolicyConfig, OffPolicyTrainer, OnPolicyConfig, OnPolicyTrainer
from episode_learners.trainers.trainer import Trainer
from episode_runners import SingleAgentEnvRunner
from episodes.errors import EnvironmentLost
from episodes.replay import EpisodeReplayBuffer
from tests.learners.weights import assert_same_weights, seeded
from tests.runners.failing_environments import LENGTH, SPACE, Faulty

SCORE = LENGTH * (LENGTH + 1) / 2  # of a whole episode
SHORT: dict[str, Any] = {"num_test_episodes": 8, "shows_progress": False, "steps_per_epoch": 64, "checkpoint_every": 1}


class FailsByNumber(Faulty):
    """Environment that fails at step 3 of every fourth episode, which follows from its seeds alone."""

    def _may_fail(self) -> Any:
        return self.fault(self.note) if self.t == 3 and self.number % 4 == 0 else ()


def runner_of(policy: Any, vectorization: str, **options: Any) -> SingleAgentEnvRunner:
    make = partial(FailsByNumber, "raises", 3, Path("unused"))
    return SingleAgentEnvRunner(make, policy, num_envs=3, seed=0, vectorization=vectorization, **options)


def ppo(vectorization: str, folder: Path, max_epochs: int, **options: Any) -> Trainer:
    policy = MLPPolicy(SPACE, Faulty.action_space, hidden_sizes=[8], generator=seeded(0))
    config = OnPolicyConfig(max_epochs=max_epochs, steps_per_collect=32, **SHORT)
    algorithm = PPO(policy, PPOConfig(num_epochs=1), seed=0)
    runner = runner_of(policy, vectorization, **options)
    return OnPolicyTrainer(algorithm, runner, config, folder=folder, logger=CSVLogger(folder))


def dqn(vectorization: str, folder: Path, max_epochs: int, **options: Any) -> Trainer:
    policy = QPolicy(SPACE, Faulty.action_space, hidden_sizes=[8], generator=seeded(0))
    config = OffPolicyConfig(max_epochs=max_epochs, warmup_steps=32, **SHORT)
    algorithm, buffer = DQN(policy, DQNConfig(batch_size=16), seed=0), EpisodeReplayBuffer(500, seed=0)
    runner = runner_of(policy, vectorization, **options)
    return OffPolicyTrainer(algorithm, runner, buffer, config, folder=folder, logger=CSVLogger(folder))


CASES = [(ppo, "sync"), (dqn, "sync"), pytest.param(ppo, "async", marks=pytest.mark.slow)]


@pytest.mark.parametrize(("make", "vectorization"), CASES)
def test_scores_are_of_whole_episodes_and_resumed_runs_are_equal(make: Any, vectorization: str, tmp_path: Path) -> None:
    (tmp_path / "half").mkdir()
    trainers = []
    for name in ("whole", "half"):
        trainer = make(vectorization, tmp_path / name, 2, restart_failed=True)
        if name == "half":
            shutil.copy(tmp_path / "whole" / "checkpoint-000001.pt", tmp_path / "half")
            assert trainer.resume()
        result = trainer.run()
        trainer.logger.close()
        assert trainer.runner.replacements
        assert result.last_test is not None
        assert result.last_test.lengths.tolist() == [LENGTH] * 8
        assert result.best_score == SCORE
        rows = [row for row in CSVLogger(tmp_path / name).rows("train") if float(row["num_episodes"])]
        assert rows
        assert {float(row[name]) for row in rows for name in ("min_return", "max_return")} == {SCORE}
        trainer.runner.close()
        trainers.append(trainer)
    whole, half = trainers
    assert (whole.num_steps, whole.num_updates) == (half.num_steps, half.num_updates)
    assert_same_weights(whole.algorithm.policy, half.algorithm.policy)
    assert np.array_equal(whole.last_test.returns, half.last_test.returns)


@pytest.mark.parametrize("make", [ppo, dqn])
def test_failure_without_restarts_ends_the_run_with_a_resumable_folder(make: Any, tmp_path: Path) -> None:
    trainer = make("sync", tmp_path, 2)
    with pytest.raises(ZeroDivisionError, match="motor on fire") as raised:
        trainer.run()
    assert any("environment" in note for note in raised.value.__notes__)
    for part in (trainer.logger, trainer.runner):
        part.close()
    again = make("sync", tmp_path, 1, restart_failed=True)
    again.resume()
    assert again.run().num_epochs == 1
    again.logger.close()
    again.runner.close()


@pytest.mark.parametrize("make", [ppo, dqn])
def test_environment_that_always_fails_ends_the_run(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FailsByNumber, "_may_fail", lambda env: env.fault(env.note))
    trainer = make("sync", tmp_path, 1, restart_failed=True)
    with pytest.raises(EnvironmentLost, match=r"ZeroDivisionError: motor on fire"):
        trainer.run()
    trainer.logger.close()
    trainer.runner.close()

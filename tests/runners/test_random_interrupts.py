"""Interrupts at random instructions of runners and trainers: what was sampled is whole, and a resumed run is equal."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from episode_learners import PPO, MLPPolicy, PPOConfig
from episode_learners.loggers import CSVLogger
from episode_learners.trainers import OnPolicyConfig, OnPolicyTrainer
from episode_runners import SingleAgentEnvRunner
from tests.interrupts import Breaking
from tests.learners.weights import assert_same_weights, seeded
from tests.runners.failing_environments import LENGTH, SPACE, Faulty

RUNNER = ("/episode_runners/", "/episodes/recorder/", "/connectors/")
TRAINER = ("/episode_learners/trainers/", "/episode_learners/loggers/", *RUNNER)


class Counted(Faulty):
    """Environment that never fails, and counts the steps of all."""

    num_steps = 0

    def __init__(self) -> None:
        super().__init__("raises", -1, Path("unused"))

    def step(self, action: Any) -> Any:
        Counted.num_steps += 1
        return super().step(action)


def check_chunks(chunks: list[Any], ends: dict[str, tuple[int, float]]) -> None:
    """Check that each chunk has rows of one episode, and begins where the previous one ended, or later.

    Args:
        chunks: chunks of one call.
        ends: by id, the step at which the last chunk ended, and the number of the episode. It is updated.
    """
    for chunk in chunks:
        numbers, steps = chunk.get_observations().T
        start, number = ends.get(chunk.id_, (0, numbers[0]))
        assert set(numbers) == {number}
        assert chunk.t_started >= start
        assert steps.tolist() == [*range(chunk.t_started, chunk.t_started + len(chunk) + 1)]
        assert chunk.get_rewards().tolist() == steps[1:].tolist()
        assert chunk.is_terminated == (steps[-1] == LENGTH)
        ends[chunk.id_] = chunk.t_started + len(chunk), number


@pytest.mark.parametrize("num", [60, pytest.param(2000, marks=pytest.mark.slow)])
def test_interrupted_runner_repeats_and_mixes_nothing(num: int) -> None:
    rng = np.random.default_rng(num)
    policy = MLPPolicy(SPACE, Faulty.action_space, hidden_sizes=[4], generator=seeded(0))
    ends, num_interrupted = dict[str, tuple[int, float]](), 0
    Counted.num_steps = 0
    with SingleAgentEnvRunner(Counted, policy, num_envs=2, seed=0) as runner:
        check_chunks([*runner.sample(num_timesteps=6)], ends)
        before = Counted.num_steps
        while num_interrupted < num:
            sampled = list[Any]()
            work = lambda: sampled.extend(runner.sample(num_timesteps=6))  # noqa: B023, E731
            at = int(np.exp(rng.uniform(0, 8.5)))
            if Breaking(KeyboardInterrupt, at, rooms=RUNNER, where_signals_come=True).run(work):
                assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
                num_interrupted += 1
                sampled.extend(runner.take())
            check_chunks(sampled, ends)
            stepped, before = Counted.num_steps - before, Counted.num_steps
            assert 0 <= stepped - sum(map(len, sampled)) <= stepped
        assert runner.sample(num_timesteps=20).num_steps >= 20


def trainer_in(folder: Path, max_epochs: int) -> OnPolicyTrainer:
    policy = MLPPolicy(SPACE, Faulty.action_space, hidden_sizes=[4], generator=seeded(0))
    runner = SingleAgentEnvRunner(Counted, policy, num_envs=2, seed=0)
    config = OnPolicyConfig(
        max_epochs=max_epochs,
        steps_per_epoch=16,
        steps_per_collect=16,
        num_test_episodes=2,
        checkpoint_every=1,
        shows_progress=False,
    )
    algorithm = PPO(policy, PPOConfig(num_epochs=1), seed=0)
    return OnPolicyTrainer(algorithm, runner, config, folder=folder, logger=CSVLogger(folder))


def run_once(folder: Path, breaking: Breaking | None = None) -> Any:
    """Resume or start a run of 3 epochs, and close it. Return the policy if the run came to its end."""
    trainer = trainer_in(folder, 3)
    result = None
    try:
        trainer.resume()

        def work() -> None:
            nonlocal result
            result = trainer.run()

        if breaking is None:
            work()
        else:
            breaking.run(work)
    finally:
        trainer.logger.close()
        trainer.runner.close()
    return trainer.algorithm.policy if result is not None and result.stopped_by == "max_epochs" else None


def rows_of(folder: Path) -> dict[str, list[Any]]:
    logger = CSVLogger(folder)
    kept = ("step", "mean_return", "num_updates", "loss")
    rows = {
        scope: [{name: row[name] for name in kept if name in row} for row in logger.rows(scope)]
        for scope in ("train", "update", "test")
    }
    logger.close()
    return rows


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python ignores them in `__del__`
@pytest.mark.parametrize(
    ("num", "seed"), [(3, 3), *(pytest.param(200, seed, marks=pytest.mark.slow) for seed in range(10))]
)
def test_interrupted_trainer_resumed_equals_the_whole_run(num: int, seed: int, tmp_path: Path) -> None:
    whole = run_once(tmp_path / "whole")
    expected = rows_of(tmp_path / "whole")
    rng, num_interrupted, turn = np.random.default_rng(seed), 0, 0
    while num_interrupted < num:
        folder = tmp_path / f"run{turn}"
        policy, turn = None, turn + 1
        while policy is None:
            breaking = Breaking(KeyboardInterrupt, int(rng.integers(1, 19_000)), rooms=TRAINER, where_signals_come=True)
            policy = run_once(folder, breaking)
            num_interrupted += breaking.left <= 0
        assert_same_weights(whole, policy)
        assert rows_of(folder) == expected, turn
        shutil.rmtree(folder)


def test_run_interrupted_before_its_first_checkpoint_begins_again_with_its_tables(tmp_path: Path) -> None:
    run_once(tmp_path / "whole")

    class Presses:
        def on_epoch(self, trainer: Any) -> None:
            raise KeyboardInterrupt

    trainer = trainer_in(tmp_path / "run", 3)
    trainer.hooks.append(Presses())
    assert trainer.run().stopped_by == "interrupt"
    trainer.logger.close()
    trainer.runner.close()
    assert rows_of(tmp_path / "run")["test"]
    run_once(tmp_path / "run")
    assert rows_of(tmp_path / "run") == rows_of(tmp_path / "whole")

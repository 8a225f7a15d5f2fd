"""`Trainer.restore_best`: the policies of the best test act as they did in that test, also after a resume."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from connectors import Actor
from connectors.env_to_module import MeanStdFilter
from episode_learners import PPO, MLPPolicy, PPOConfig
from episode_learners.trainers import OnPolicyConfig, OnPolicyTrainer
from episode_learners.trainers.checkpoint import load_checkpoint, save_checkpoint
from episode_learners.trainers.modules import policies_of
from episode_runners import SingleAgentEnvRunner
from episode_runners.seeds import independent_seed
from episodes.errors import InvalidArgument
from tests.learners import test_league, test_multi_agent_trainers, test_trainers
from tests.learners.test_trainers import CARTPOLE, SHORT, spaces_of
from tests.learners.weights import assert_same_weights, seeded

BEST = 1  # index of the test that gets the highest score


def filtered_trainer(seed: int = 0, config: dict[str, Any] | None = None, **options: Any) -> OnPolicyTrainer:
    """Return a PPO trainer whose policy reads observations that a filter normalizes."""
    make_policy = partial(MLPPolicy, hidden_sizes=(8,), generator=seeded(seed))
    actor = Actor(make_policy, *spaces_of(CARTPOLE), pieces=[MeanStdFilter()])
    numbers = OnPolicyConfig(**{**SHORT, "steps_per_collect": 32, **(config or {})})
    algorithm = PPO(actor, PPOConfig(num_epochs=2, learning_rate=0.01), seed=seed)
    return OnPolicyTrainer(algorithm, SingleAgentEnvRunner(CARTPOLE, actor, num_envs=2, seed=seed), numbers, **options)


MAKERS: dict[str, Any] = {
    **test_trainers.MAKERS,
    **test_multi_agent_trainers.MAKERS,
    "league": test_league.trainer,
    "PPO with a filter": filtered_trainer,
    "tests within epochs": partial(test_trainers.ppo_trainer, numbers={"learning_rate": 0.01}),
}


def with_best_test(trainer: Any, returns: list[np.ndarray]) -> Any:
    """Return the trainer with a higher score in the test `BEST`. The real returns are appended to `returns`."""
    test = trainer.test

    def boosted(seed: int) -> Any:
        evaluation = test(seed)
        returns.append(evaluation.returns)
        return replace(evaluation, returns=evaluation.returns + 1e6) if trainer.num_tests == BEST else evaluation

    trainer.test = boosted
    return trainer


@pytest.mark.parametrize("name", MAKERS)
def test_restore_best_gives_the_policies_of_the_best_test(name: str, tmp_path: Path) -> None:
    config = {"checkpoint_every": 1, "steps_per_epoch": 32, "num_test_episodes": 1}
    config |= {"test_every": 20} if name == "tests within epochs" else {}
    returns: list[np.ndarray] = []
    for max_epochs in (2, 3):
        numbers = {**config, "max_epochs": max_epochs}
        trainer = with_best_test(MAKERS[name](seed=max_epochs, config=numbers, folder=tmp_path), returns)
        assert trainer.resume() == (max_epochs > 2)
        score = trainer.run().best_score
    assert score >= 1e5
    assert len(returns) > BEST + 1
    later = MAKERS[name](seed=7, config=config, folder=tmp_path)
    assert later.resume()
    assert later.best_score == score
    for run in (trainer, later):  # in the run itself, and in another process
        run.restore_best()
        result = type(run).test(run, independent_seed(run.config.test_seed, BEST))
        assert result.returns.tolist() == returns[BEST].tolist()
    for module_id, policy in policies_of(trainer.algorithm).items():
        assert_same_weights(policies_of(later.algorithm)[module_id], policy)


def test_restore_best_without_a_test_is_refused(tmp_path: Path) -> None:
    trainer = filtered_trainer(config={"max_epochs": 1, "checkpoint_every": 1, "num_test_episodes": 0}, folder=tmp_path)
    trainer.run()
    with pytest.raises(InvalidArgument, match="restore_best: this run has no test yet"):
        trainer.restore_best()


def test_checkpoint_without_a_best_policy_is_resumed_and_named(tmp_path: Path) -> None:
    config = {"max_epochs": 1, "checkpoint_every": 1}
    filtered_trainer(config=config, folder=tmp_path).run()
    (path,) = tmp_path.glob("checkpoint-*.pt")
    state = load_checkpoint(path)
    del state["best"], state["counts"]["last_score"]  # as earlier versions wrote it
    save_checkpoint(path, state)
    trainer = filtered_trainer(config=config, folder=tmp_path)
    assert trainer.resume()
    with pytest.raises(InvalidArgument, match="a checkpoint without the best policy"):
        trainer.restore_best()

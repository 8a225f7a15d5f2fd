"""Modules and mapping functions that change during a run, and user code that fails between two updates."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from episode_learners import MultiAgentAlgorithm
from episode_learners.loggers import CSVLogger, Logger
from episode_learners.trainers import OnPolicyConfig, OnPolicyTrainer, VideoHook
from episode_learners.trainers.run_settings import settings_of
from episode_runners import MultiAgentEnvRunner
from episodes.errors import InvalidArgument, UnknownKey
from tests.learners.games import Targets
from tests.learners.test_multi_agent_trainers import (
    SHORT,
    dqn,
    mixed,
    on_policy,
    own_module,
    ppo,
    recurrent,
)
from tests.learners.weights import assert_same_weights


class AfterEpoch:
    """Hook that calls a function with the trainer after one epoch."""

    def __init__(self, epoch: int, change: Any) -> None:
        self.epoch, self.change = epoch, change

    def on_epoch(self, trainer: Any) -> None:
        if trainer.num_epochs == self.epoch:
            self.change(trainer)


def remove_b(trainer: Any) -> None:
    trainer.algorithm.remove("b")


def map_b_to_a(trainer: Any) -> None:
    trainer.runner.agent_to_module_mapping_fn = lambda agent_id, episode: "a" if agent_id == "b" else agent_id


def test_removed_module_ends_ongoing_episodes():
    hooks = [AfterEpoch(1, remove_b), AfterEpoch(1, map_b_to_a)]
    trainer = on_policy(config={"max_epochs": 3, "steps_per_collect": 20, "num_test_episodes": 0}, hooks=hooks)
    assert trainer.run().num_epochs == 3
    assert set(trainer.runner.policies) == set(trainer.runner.env_to_module.modules) == {"a", "g"}


def test_mapping_to_a_removed_module_is_named():
    trainer = on_policy(config={"max_epochs": 3, "num_test_episodes": 0}, hooks=[AfterEpoch(1, remove_b)])
    with pytest.raises(UnknownKey, match="mapped to module 'b', which has no policy"):
        trainer.run()
    trainer.runner.policies.pop("a")
    map_b_to_a(trainer)
    with pytest.raises(UnknownKey, match="mapped to module 'a', which has no policy"):
        trainer.runner.sample(num_timesteps=10)


def test_removed_policy_of_a_runner_is_named():
    algorithm = MultiAgentAlgorithm({"a": ppo(0), "b": ppo(1)})
    runner = MultiAgentEnvRunner(Targets, algorithm.policies, agent_to_module_mapping_fn=own_module, seed=0)
    runner.sample(num_timesteps=5)
    algorithm.remove("b")
    with pytest.raises(UnknownKey, match="start new episodes"):
        runner.sample(num_timesteps=5)


def test_replaced_module_acts_and_learns():
    def replace(trainer: Any) -> None:
        trainer.algorithm.remove("b")
        trainer.algorithm.add("b", ppo(77))

    trainer = on_policy(config={"max_epochs": 3}, hooks=[AfterEpoch(1, replace)])
    trainer.run()
    assert trainer.runner.policies["b"] is trainer.algorithm["b"].policy
    assert 0 < trainer.algorithm["b"].num_updates < trainer.algorithm["a"].num_updates


@pytest.mark.parametrize("make", [mixed, recurrent])
def test_agents_change_modules_in_a_run_with_replay(make: Any, tmp_path: Path):
    """The buffer then has steps of one agent in two modules. The resumed run equals the uninterrupted one."""

    def add(trainer: Any) -> None:
        trainer.algorithm.add("new", dqn(5))
        mapping(trainer)

    def mapping(trainer: Any) -> None:
        trainer.runner.agent_to_module_mapping_fn = lambda agent_id, episode: "new" if agent_id == "b" else agent_id

    config = {"max_epochs": 4, "checkpoint_every": 1}
    whole = make(config=config, folder=tmp_path, hooks=[AfterEpoch(2, add)])
    whole.run()
    assert whole.algorithm["new"].num_updates > 0
    assert {"a", "b", "new"} == set(whole.buffer.modules)
    (tmp_path / "checkpoint-000004.pt").unlink()
    resumed = make(seed=3, config=config, folder=tmp_path, module_fn=lambda module_id: dqn(8))
    mapping(resumed)
    assert resumed.resume()
    assert resumed.num_epochs == 3
    resumed.run()
    assert_same_weights(whole.algorithm, resumed.algorithm)


def test_module_without_an_algorithm_acts_and_cannot_learn():
    algorithm = MultiAgentAlgorithm({"a": ppo(0), "b": ppo(1).policy})
    assert algorithm.train_ids == ("a",)
    with pytest.raises(InvalidArgument, match="'b' has a policy and no algorithm"):
        algorithm.unfreeze("b")
    with pytest.raises(InvalidArgument, match="'c' has a policy and no algorithm"):
        algorithm.add("c", ppo(2).policy, train=True)
    assert algorithm.module_ids == ("a", "b")
    runner = MultiAgentEnvRunner(Targets, algorithm.policies, agent_to_module_mapping_fn=own_module, seed=0)
    before = [value.clone() for value in algorithm["b"].policy.parameters()]
    OnPolicyTrainer(algorithm, runner, OnPolicyConfig(**{**SHORT, "steps_per_collect": 32, "max_epochs": 1})).run()
    assert all(torch.equal(*pair) for pair in zip(before, algorithm["b"].policy.parameters(), strict=True))
    assert algorithm["a"].num_updates == 2


def test_run_continues_after_a_stop_function_that_raises(tmp_path: Path):
    scores: list[float] = []

    def stop(score: float) -> bool:
        scores.append(score)
        if len(scores) == 2:
            raise ZeroDivisionError
        return False

    with CSVLogger(tmp_path) as logger:
        trainer = on_policy(
            config={"max_epochs": 4, "checkpoint_every": 1}, folder=tmp_path, stop_fn=stop, logger=logger
        )
        with pytest.raises(ZeroDivisionError):
            trainer.run()
        assert trainer.num_epochs == 2
        assert trainer.run().num_epochs == 4
        assert [float(row["mean_return"]) for row in logger.rows("test")] == scores


class Pictures(Targets):
    """`Targets` with frames that show the time."""

    def render(self) -> np.ndarray:
        return np.full((16, 16, 3), 20 * self.t, np.uint8)


def test_video_hook_films_several_agents(tmp_path: Path):
    pytest.importorskip("imageio")
    hook = VideoHook(Pictures, tmp_path, fps=5.0)
    trainer = on_policy(config={"max_epochs": 2}, hooks=[hook])
    trainer.run()
    assert [path.name for path in hook.paths] == ["step-000000064.mp4", "step-000000128.mp4"]
    assert all(path.stat().st_size > 0 for path in hook.paths)


def test_logger_that_raises_ends_the_run_with_its_error():
    class Full(Logger):
        def write(self, scope: str, metrics: Any, step: int) -> None:
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        on_policy(config={"max_epochs": 1}, logger=Full()).run()


@pytest.mark.parametrize("config", [{"gamma": 0.5}, SimpleNamespace(gamma=0.5)], ids=["dict", "object"])
def test_configurations_of_any_kind_are_settings_of_the_run(config: Any):
    algorithm = ppo(0)
    algorithm.config = config
    assert settings_of(OnPolicyConfig(), algorithm, None)["algorithm.gamma"] == "0.5"

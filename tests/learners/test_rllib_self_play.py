"""Self-play callbacks as RLlib's documentation describes them, as hooks of a runner and of its trainer."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from connectors import Actor
from connectors.env_to_module import MeanStdFilter
from episode_learners import PPO, MLPPolicy, MultiAgentAlgorithm, PPOConfig
from episode_learners.loggers import CSVLogger
from episode_learners.trainers import OnPolicyConfig, OnPolicyTrainer, RLModuleSpec
from episode_learners.trainers.rllib_callbacks import CallbackAlgorithm
from episode_runners import MultiAgentEnvRunner, RLlibCallback
from episodes.errors import InvalidArgument, UnknownKey, WrongType
from tests.learners.weights import assert_same_weights
from tests.moving.environments import Duel

OBSERVATIONS, ACTIONS = spaces.Box(0, 3, (1,), np.float32), spaces.Discrete(10)
ENV_RUNNER_RESULTS = "env_runners"


class SelfPlayCallback(RLlibCallback):
    """Adds a frozen copy of the main module whenever it wins more than a share of its games."""

    def __init__(self, win_rate_threshold: float) -> None:
        super().__init__()
        self.current_opponent = 0
        self.win_rate_threshold = win_rate_threshold
        self.matchups: dict[Any, int] = defaultdict(int)

    def on_episode_end(self, *, episode, env_runner, metrics_logger, env, env_index, rl_module, **kwargs):
        main_agent = 0 if episode.module_for(0) == "main" else 1
        rewards = episode.get_rewards()
        if main_agent in rewards:
            metrics_logger.log_value("win_rate", sum(rewards[main_agent]) > 0.0, window=10)

    def on_train_result(self, *, algorithm, metrics_logger=None, result, **kwargs):
        win_rate = result[ENV_RUNNER_RESULTS]["win_rate"]
        if win_rate > self.win_rate_threshold:
            self.current_opponent += 1
            new_module_id = f"main_v{self.current_opponent}"

            def agent_to_module_mapping_fn(agent_id, episode, **kwargs):
                opponent = f"main_v{np.random.default_rng(len(self.matchups)).integers(1, self.current_opponent + 1)}"
                if hash(episode.id_) % 2 == agent_id:
                    self.matchups["main", opponent] += 1
                    return "main"
                return opponent

            main_module = algorithm.get_module("main")
            algorithm.add_module(
                module_id=new_module_id,
                module_spec=RLModuleSpec.from_module(main_module),
                new_agent_to_module_mapping_fn=agent_to_module_mapping_fn,
            )
            algorithm.set_state({"learner_group": {"learner": {"rl_module": {new_module_id: main_module.get_state()}}}})
        result["league_size"] = self.current_opponent + 2


def policy(seed: int) -> MLPPolicy:
    return MLPPolicy(OBSERVATIONS, ACTIONS, hidden_sizes=(8,), generator=torch.Generator().manual_seed(seed))


def trainer_of(callback: Any, main: Any = None, random: Any = None, **options: Any) -> OnPolicyTrainer:
    """Return a PPO trainer of "main" against a random module in the two-player game `Duel`."""
    config = PPOConfig(num_epochs=4, minibatch_size=64, learning_rate=2e-2)
    random = policy(1) if random is None else random
    (random.policy if isinstance(random, Actor) else random).random_action_probability = 1.0
    algorithm = MultiAgentAlgorithm({"main": PPO(main or policy(0), config), "random": random})
    acting = algorithm.policies if main is None else {"main": main, "random": random}
    runner = MultiAgentEnvRunner(
        Duel,
        acting,
        num_envs=4,
        agent_to_module_mapping_fn=lambda agent_id, episode: "main" if hash(episode.id_) % 2 == agent_id else "random",
        hooks=[callback],
        seed=0,
    )
    lengths = {"steps_per_epoch": 200, "steps_per_collect": 50, "num_test_episodes": 4, "shows_progress": False}
    return OnPolicyTrainer(algorithm, runner, OnPolicyConfig(max_epochs=5, **lengths), hooks=[callback], **options)


def assert_played(trainer: OnPolicyTrainer, callback: SelfPlayCallback) -> None:
    modules = trainer.algorithm.module_ids
    assert callback.current_opponent >= 2
    assert modules == ("main", "random", *(f"main_v{i + 1}" for i in range(callback.current_opponent)))
    assert trainer.algorithm.train_ids == ("main",)
    assert {opponent for _, opponent in callback.matchups} & {"main_v1", "main_v2"}
    first, last = (trainer.algorithm[name].policy.state_dict() for name in (modules[2], "main"))
    assert any(not torch.equal(value, last[name]) for name, value in first.items() if isinstance(value, torch.Tensor))


def test_self_play_callback_adds_copies_of_the_main_module(tmp_path: Path):
    callback = SelfPlayCallback(win_rate_threshold=0.7)
    with CSVLogger(tmp_path) as logger:
        trainer = trainer_of(callback, logger=logger)
        trainer.run()
        assert_played(trainer, callback)
        rows = logger.rows("info")
    assert float(rows[-1]["league_size"]) == callback.current_opponent + 2
    assert 0 <= float(rows[-1]["win_rate"]) <= 1


def test_added_module_has_the_pipelines_of_its_original():
    def actor(seed: int) -> Actor:
        make = partial(MLPPolicy, hidden_sizes=(8,), generator=torch.Generator().manual_seed(seed))
        return Actor(make, OBSERVATIONS, ACTIONS, pieces=[MeanStdFilter()])

    callback = SelfPlayCallback(win_rate_threshold=0.7)
    trainer = trainer_of(callback, main=actor(0), random=actor(1))
    trainer.run()
    assert_played(trainer, callback)
    assert "MeanStdFilter" in str(trainer.runner.env_to_module["main_v1"])
    assert trainer.runner.env_to_module["main_v1"] is not trainer.runner.env_to_module["main"]


class Changes(RLlibCallback):
    """Hook that records its calls, and changes the modules and the learning modules."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def on_algorithm_init(self, *, algorithm, metrics_logger, **kwargs):
        self.calls.append(("init", algorithm.iteration))
        algorithm.env_runner_group.foreach_env_runner(lambda env_runner: self.calls.append(env_runner.num_envs))

    def on_train_result(self, *, algorithm, metrics_logger, result, **kwargs):
        self.calls.append(("result", result["training_iteration"], sorted(result["learners"])))
        if algorithm.iteration == 1:
            algorithm.add_module("copy", algorithm.get_module("main"), new_should_module_be_updated=["main"])
        if algorithm.iteration == 2:
            new = {"new_agent_to_module_mapping_fn": lambda agent_id, episode, **kwargs: "main" if agent_id else "copy"}
            algorithm.remove_module("random", **new)
            algorithm.env_runner.seen = algorithm.config

    def on_evaluate_start(self, *, algorithm, metrics_logger, **kwargs):
        self.calls.append("evaluate")

    def on_evaluate_end(self, *, algorithm, metrics_logger, evaluation_metrics, **kwargs):
        self.calls.append(evaluation_metrics["env_runners"]["num_episodes"])

    def get_state(self):
        return {"calls": len(self.calls)}

    def set_state(self, state):
        self.calls = self.calls[: state["calls"]]


def test_trainer_calls_callbacks_in_order(tmp_path: Path):
    callback = Changes()
    trainer = trainer_of(callback, folder=tmp_path)
    for _ in range(3):
        trainer.step()
    assert callback.calls == [("init", 0), 4, *(("result", i, ["main"]) for i in (1, 2, 3))]
    assert trainer.algorithm.module_ids == ("main", "copy")
    trainer._test()
    assert callback.calls[-2:] == ["evaluate", 4]
    trainer.save()
    resumed = trainer_of(Changes(), folder=tmp_path, module_fn=lambda module_id: policy(5))
    resumed.runner.agent_to_module_mapping_fn = trainer.runner.agent_to_module_mapping_fn
    assert resumed.resume()
    assert resumed.hooks[0].num_updates == 3
    assert resumed.algorithm.module_ids == ("main", "copy")
    assert_same_weights(resumed.algorithm["copy"].policy, trainer.algorithm["copy"].policy)


def test_callbacks_with_wrong_modules_get_clear_errors():
    trainer = trainer_of(SelfPlayCallback(2.0))
    algorithm = CallbackAlgorithm(trainer, trainer.hooks[0].callback, 0)
    with pytest.raises(WrongType, match="module_spec is a dict"):
        algorithm.add_module("new", {})  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="'random' has a policy and no algorithm"):
        algorithm.add_module("new", algorithm.get_module("main"), new_should_module_be_updated=["random"])
    with pytest.raises(UnknownKey, match="weights of modules only"):
        algorithm.set_state({"counters": 3})
    with pytest.raises(UnknownKey, match="no module 'other'"):
        algorithm.get_module("other")
    with pytest.raises(WrongType, match="SelfPlayCallback is a class"):
        OnPolicyTrainer(trainer.algorithm, trainer.runner, hooks=[SelfPlayCallback])

"""Trainers with several modules have the same features and results as with one policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from connectors import module_to_env_pipeline
from episode_learners import (
    BC,
    DQN,
    PPO,
    R2D2,
    BCConfig,
    DQNConfig,
    LSTMQPolicy,
    MLPPolicy,
    MultiAgentAlgorithm,
    PPOConfig,
    QPolicy,
    R2D2Config,
)
from episode_learners.trainers import (
    OfflineConfig,
    OfflineTrainer,
    OffPolicyConfig,
    OffPolicyTrainer,
    OnPolicyConfig,
    OnPolicyTrainer,
)
from episode_runners import MultiAgentEnvRunner, SingleAgentEnvRunner
from episode_runners.multi_agent_pipelines import seed_of_module
from episodes.errors import InvalidArgument, StateMismatch, UnknownKey
from episodes.replay import (
    EpisodeReplayBuffer,
    MultiAgentEpisodeReplayBuffer,
    MultiAgentPrioritizedEpisodeReplayBuffer,
)
from tests.learners.games import Targets
from tests.learners.weights import assert_same_weights, seeded

OBSERVATIONS, ACTIONS = spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Discrete(2)
SHORT: dict[str, Any] = {"num_test_episodes": 3, "shows_progress": False, "steps_per_epoch": 64}


def ppo(seed: int = 0) -> PPO:
    policy = MLPPolicy(OBSERVATIONS, ACTIONS, hidden_sizes=(8,), generator=seeded(seed))
    return PPO(policy, PPOConfig(num_epochs=2, minibatch_size=16, learning_rate=1e-2), seed=seed)


def dqn(seed: int = 0) -> DQN:
    policy = QPolicy(OBSERVATIONS, ACTIONS, hidden_sizes=(8,), generator=seeded(seed))
    return DQN(policy, DQNConfig(batch_size=16, target_every=5, epsilon_steps=100), seed=seed)


def r2d2(seed: int = 0) -> R2D2:
    policy = LSTMQPolicy(OBSERVATIONS, ACTIONS, hidden_sizes=(8,), state_size=4, generator=seeded(seed))
    return R2D2(policy, R2D2Config(batch_size=4, sequence_length=3, burn_in=1, epsilon_steps=100), seed=seed)


def own_module(agent_id: str, episode: Any) -> str:
    return agent_id


def runner_of(algorithm: MultiAgentAlgorithm, seed: int, num_envs: int = 2, **game: Any) -> MultiAgentEnvRunner:
    options: dict[str, Any] = {"num_envs": num_envs, "agent_to_module_mapping_fn": own_module, "seed": seed}
    return MultiAgentEnvRunner(lambda: Targets(**game), algorithm.policies, **options)


def on_policy(seed: int = 0, config: dict[str, Any] | None = None, **options: Any) -> OnPolicyTrainer:
    """Return a PPO trainer of three modules, of which one has an agent that comes and goes."""
    algorithm = MultiAgentAlgorithm({"a": ppo(seed), "b": ppo(seed + 1), "g": ppo(seed + 2)})
    numbers = OnPolicyConfig(**{**SHORT, "steps_per_collect": 32, **(config or {})})
    return OnPolicyTrainer(algorithm, runner_of(algorithm, seed, guests=("g",)), numbers, **options)


def mixed(seed: int = 0, config: dict[str, Any] | None = None, **options: Any) -> OffPolicyTrainer:
    """Return a trainer with DQN for one module and PPO for the other."""
    algorithm = MultiAgentAlgorithm({"a": dqn(seed), "b": ppo(seed + 1)})
    numbers = OffPolicyConfig(**{**SHORT, "warmup_steps": 20, "steps_per_collect": 16, **(config or {})})
    buffer = MultiAgentPrioritizedEpisodeReplayBuffer(100, seed=seed)
    return OffPolicyTrainer(algorithm, runner_of(algorithm, seed), buffer, numbers, **options)


def recurrent(seed: int = 0, config: dict[str, Any] | None = None, **options: Any) -> OffPolicyTrainer:
    """Return a trainer with R2D2 for one module and DQN for the other."""
    algorithm = MultiAgentAlgorithm({"a": r2d2(seed), "b": dqn(seed + 1)})
    numbers = OffPolicyConfig(**{**SHORT, "warmup_steps": 20, "steps_per_collect": 8, **(config or {})})
    buffer = MultiAgentEpisodeReplayBuffer(100, seed=seed)
    return OffPolicyTrainer(algorithm, runner_of(algorithm, seed), buffer, numbers, **options)


def offline(seed: int = 0, config: dict[str, Any] | None = None, **options: Any) -> OfflineTrainer:
    """Return a trainer with DQN and BC of a buffer of recorded episodes."""
    recording = MultiAgentAlgorithm({"a": ppo(0), "b": ppo(1)})
    buffer = MultiAgentEpisodeReplayBuffer(200, seed=seed)
    buffer.add(runner_of(recording, 0).sample(num_episodes=12))
    cloned = BC(MLPPolicy(OBSERVATIONS, ACTIONS, hidden_sizes=(8,), generator=seeded(seed)), BCConfig())
    algorithm = MultiAgentAlgorithm({"a": dqn(seed), "b": cloned})
    numbers = OfflineConfig(**{**SHORT, "steps_per_epoch": 20, **(config or {})})
    return OfflineTrainer(algorithm, buffer, numbers, runner=runner_of(algorithm, seed), **options)


MAKERS: dict[str, Any] = {
    "several PPO": on_policy,
    "DQN and PPO": mixed,
    "R2D2 and DQN": recurrent,
    "several offline": offline,
}
each_trainer = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


class Alone(gym.Env):
    """`Targets` of one agent as a single-agent environment."""

    observation_space, action_space = OBSERVATIONS, ACTIONS

    def __init__(self, agent: str) -> None:
        self.game, self.agent = Targets(), agent

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.game.reset(seed=seed)[0][self.agent], {}

    def step(self, action: Any) -> Any:
        observations, rewards, _, truncateds, _ = self.game.step({self.agent: action})
        return observations[self.agent], rewards[self.agent], False, truncateds["__all__"], {}


def test_independent_modules_equal_separate_single_agent_runs():
    algorithm = MultiAgentAlgorithm({"a": ppo(0), "b": ppo(1)})
    config = OnPolicyConfig(**{**SHORT, "steps_per_collect": 32, "max_epochs": 3})
    OnPolicyTrainer(algorithm, runner_of(algorithm, 7, num_envs=1), config).run()
    for seed, agent in enumerate("ab"):
        alone = ppo(seed)
        # log-probabilities of each step alone, as with several agents: those of a whole pack differ in the last bit
        pipeline = module_to_env_pipeline(OBSERVATIONS, ACTIONS, seed=seed_of_module(7, agent))
        options: dict[str, Any] = {"module_to_env": pipeline, "seed": 7, "autoreset_mode": "SameStep"}
        runner = SingleAgentEnvRunner(lambda agent=agent: Alone(agent), alone.policy, **options)
        OnPolicyTrainer(alone, runner, config).run()
        assert alone.num_updates == algorithm[agent].num_updates > 0
        assert_same_weights(alone, algorithm[agent])


@each_trainer
def test_frozen_module_does_not_change(make: Any):
    trainer = make(config={"max_epochs": 1})
    trainer.algorithm.freeze("b")
    before = {name: value.clone() for name, value in trainer.algorithm["b"].policy.named_parameters()}
    vector_before = trainer.algorithm.optimizers["a/policy"].vector.clone()
    trainer.run()
    assert all(torch.equal(value, before[name]) for name, value in trainer.algorithm["b"].policy.named_parameters())
    assert not torch.equal(trainer.algorithm.optimizers["a/policy"].vector, vector_before)


class Grows:
    """Hook that adds a module in epoch 1, maps agent b to it, and removes the old module in epoch 2."""

    def on_epoch(self, trainer: Any) -> None:
        if trainer.num_epochs == 1:
            trainer.algorithm.add("new", ppo(9))
            trainer.runner.agent_to_module_mapping_fn = self.module_of
        if trainer.num_epochs == 2:
            trainer.algorithm.remove("b")

    @staticmethod
    def module_of(agent_id: str, episode: Any) -> str:
        return "new" if agent_id == "b" else agent_id


def test_modules_are_added_and_removed_during_a_run(tmp_path: Path):
    config = {"max_epochs": 3, "checkpoint_every": 1}
    trainer = on_policy(config=config, folder=tmp_path, hooks=[Grows()])
    before = ppo(9).optimizers["policy"].vector.clone()
    trainer.run()
    assert trainer.algorithm.module_ids == ("a", "g", "new")
    assert list(trainer.algorithm.policies) == ["a", "g", "new"]
    assert not torch.equal(trainer.algorithm["new"].optimizers["policy"].vector, before)
    with pytest.raises(StateMismatch, match=r"modules \['new'\]"):
        on_policy(config=config, folder=tmp_path).resume()
    resumed = on_policy(seed=3, config={**config, "max_epochs": 4}, folder=tmp_path, module_fn=lambda module_id: ppo(1))
    resumed.runner.agent_to_module_mapping_fn = Grows.module_of
    assert resumed.resume()
    assert resumed.algorithm.module_ids == ("a", "g", "new")
    assert_same_weights(trainer.algorithm, resumed.algorithm)
    assert resumed.run().num_epochs == 4


def test_module_is_added_once_and_unknown_modules_are_named():
    algorithm = MultiAgentAlgorithm({"a": ppo(0)})
    with pytest.raises(InvalidArgument, match="'a' exists already"):
        algorithm.add("a", ppo(1))
    for call in (algorithm.remove, algorithm.freeze, algorithm.unfreeze):
        with pytest.raises(UnknownKey, match="the modules are a"):
            call("b")
    algorithm.freeze("a")
    assert algorithm.train_ids == ()
    algorithm.unfreeze("a")
    assert algorithm.train_ids == ("a",)


def test_trainers_reject_runners_and_buffers_of_the_wrong_kind():
    algorithm, single = MultiAgentAlgorithm({"a": ppo(0), "b": ppo(1)}), ppo(0)
    runner = runner_of(algorithm, 0)
    with pytest.raises(InvalidArgument, match="PPO with a MultiAgentEnvRunner"):
        OnPolicyTrainer(single, runner)
    with pytest.raises(InvalidArgument, match="needs a MultiAgentEnvRunner"):
        OnPolicyTrainer(algorithm, SingleAgentEnvRunner(lambda: Alone("a"), single.policy))
    with pytest.raises(InvalidArgument, match="MultiAgentAlgorithm with a EpisodeReplayBuffer"):
        OffPolicyTrainer(algorithm, runner, EpisodeReplayBuffer(100))
    other_algorithm = MultiAgentAlgorithm({"a": ppo(0), "b": ppo(1)})
    with pytest.raises(InvalidArgument, match=r"modules \['a', 'b'\]"):
        OnPolicyTrainer(other_algorithm, runner)
    with pytest.raises(InvalidArgument, match="MultiAgentAlgorithm with a EpisodeReplayBuffer"):
        OfflineTrainer(algorithm, EpisodeReplayBuffer(100))


def test_offline_trainer_learns_from_multi_agent_episodes():
    recording = MultiAgentAlgorithm({"a": ppo(0), "b": ppo(1)})
    episodes = runner_of(recording, 0).sample(num_episodes=10)
    cloned = MultiAgentAlgorithm(
        {name: BC(MLPPolicy(OBSERVATIONS, ACTIONS, hidden_sizes=(8,), generator=seeded(0))) for name in "ab"}
    )
    config = OfflineConfig(**{**SHORT, "max_epochs": 2}, episodes_per_update=5)
    result = OfflineTrainer(cloned, episodes, config, runner=runner_of(cloned, 1)).run()
    assert result.num_steps >= 128
    assert result.last_test is not None


def test_several_modules_are_tested_in_another_environment():
    trainer = on_policy(config={"max_epochs": 1}, test_env=lambda: Targets(guests=("g",), length=3))
    result = trainer.run()
    assert result.last_test is not None
    assert result.last_test.lengths.tolist() == [3, 3, 3]

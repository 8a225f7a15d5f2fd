"""`evaluate` returns unbiased whole episodes, and does not change the training."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from mpe2 import simple_spread_v3

from connectors import (
    Actor,
    Connector,
    env_to_module_pipeline,
    module_to_env_pipeline,
    multi_agent_env_to_module,
)
from connectors.env_to_module import FrameStacking, MeanStdFilter
from episode_learners import MLPPolicy
from episode_runners import Hook, MultiAgentEnvRunner, SingleAgentEnvRunner, evaluate, make_vector_env
from episode_runners.seeds import independent_seed
from episodes.errors import InvalidArgument, StateMismatch
from episodes.tracks import nested
from tests.moving.environments import Always
from tests.reference import numbered

SPACES = (spaces.Box(-1e6, 1e6, (1,), np.float32), spaces.Discrete(2))


class Counted(gym.Env):
    """Environment with episodes of one length, which counts open instances and resets."""

    observation_space, action_space = SPACES
    num_open = 0

    def __init__(self, length: int = 3) -> None:
        self.length, self.num_resets = length, 0
        Counted.num_open += 1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t, self.num_resets = 0, self.num_resets + 1
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.full(1, self.t, np.float32), 1.0, self.t == self.length, False, {}

    def close(self) -> None:
        Counted.num_open -= 1


@pytest.fixture(autouse=True)
def _none_open() -> None:
    Counted.num_open = 0


def filtered_runner(**options: Any) -> SingleAgentEnvRunner:
    """Return a runner of CartPole with a filter that has statistics."""
    env = gym.make("CartPole-v1")
    pipeline = env_to_module_pipeline(env.observation_space, env.action_space, pieces=[MeanStdFilter()])
    policy = MLPPolicy(env.observation_space, env.action_space, generator=torch.Generator().manual_seed(0))
    runner = SingleAgentEnvRunner("CartPole-v1", policy, num_envs=3, env_to_module=pipeline, seed=1, **options)
    runner.sample(num_timesteps=60)
    return runner


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_evaluate_does_not_favour_short_episodes(mode: AutoresetMode) -> None:
    env = SyncVectorEnv([partial(Counted, 2), partial(Counted, 30)], autoreset_mode=mode)
    result = evaluate(env, lambda batch, explore=None: {"actions": np.zeros(2, int)}, num_episodes=6)
    assert sorted(result.lengths.tolist()) == [2, 2, 2, 30, 30, 30]
    assert result.returns.tolist() == result.lengths.tolist() == [float(len(episode)) for episode in result.episodes]
    assert (result.num_episodes, result.mean_return, result.std_return, result.mean_length) == (6, 16.0, 14.0, 16.0)
    assert all(episode.is_done and not episode.t_started for episode in result.episodes)
    assert result.as_dict()["max_return"] == 30
    assert repr(result) == "Evaluation(6 episodes, return 16 +- 14, length 16)"


def test_evaluate_does_not_change_training() -> None:
    def trained(evaluates: bool) -> Any:
        runner = filtered_runner()
        torch.manual_seed(5)
        if evaluates:
            evaluate(runner, num_episodes=4, explore=True)
            evaluate(runner, num_episodes=4, seed=3)
        pack = runner.sample(num_timesteps=90)
        return pack, runner.get_state(), torch.rand(1).item()

    (pack, state, drawn), (other_pack, other_state, other_drawn) = trained(True), trained(False)
    assert numbered(pack) == numbered(other_pack)
    assert drawn == other_drawn
    assert nested.map_leaves(str, state) == nested.map_leaves(str, other_state)


def test_evaluate_with_successive_seeds_shares_no_episode() -> None:
    results = [evaluate("CartPole-v1", Always(0), num_episodes=8, num_envs=8, seed=seed) for seed in (5, 6, 7, 5)]
    starts = [{tuple(episode.get_observations(0)) for episode in result.episodes} for result in results]
    assert len(set.union(*starts)) == 24
    assert starts[3] == starts[0]
    assert numbered(results[3].episodes) == numbered(results[0].episodes)


def test_evaluate_uses_frozen_statistics() -> None:
    runner = filtered_runner()
    known = runner.env_to_module.get_state()["MeanStdFilter"]["own"][""]
    result = evaluate(runner, num_episodes=2, seed=7)
    raw = gym.make("CartPole-v1").reset(seed=independent_seed(7))[0]
    expected = (raw - known["mean"]) / np.sqrt(known["squares"] / (known["count"] - 1))
    assert np.allclose(result.episodes[0].get_observations(0), expected, atol=1e-5)
    by_hand = evaluate("CartPole-v1", runner.actor, num_episodes=2, num_envs=2, seed=7)
    assert numbered(by_hand.episodes) == numbered(result.episodes)
    assert runner.env_to_module.get_state()["MeanStdFilter"]["own"][""]["count"] == known["count"]


def test_sample_without_exploration_leaves_statistics() -> None:
    runner = filtered_runner()
    count = lambda: runner.env_to_module.get_state()["MeanStdFilter"]["own"][""]["count"]  # noqa: E731
    before = count()
    runner.sample(num_timesteps=20, explore=False)
    runner.sample(num_episodes=2, explore=False)
    assert count() == before
    runner.sample(num_timesteps=20)
    assert count() > before
    with pytest.raises(StateMismatch, match="MeanStdFilter has seen no observation"):
        filtered_runner(update_stats=False)
    always = filtered_runner(update_stats="always")
    always.sample(num_timesteps=20, explore=False)
    assert always.env_to_module.get_state()["MeanStdFilter"]["own"][""]["count"] > before


def test_evaluate_restores_module_modes() -> None:
    class Normalized(MLPPolicy):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.norm, self.frozen = torch.nn.BatchNorm1d(4), torch.nn.Dropout()
            self.frozen.eval()

        def forward(self, batch: Any, explore: bool | None = None) -> Any:
            assert self.norm.training == bool(explore)
            return super().forward({"obs": self.norm(batch["obs"])}, explore)

    env = gym.make("CartPole-v1")
    policy = Normalized(env.observation_space, env.action_space)
    runner = SingleAgentEnvRunner("CartPole-v1", policy, num_envs=4)
    evaluate(runner, num_episodes=4)
    assert policy.norm.num_batches_tracked == 0
    assert (policy.training, policy.norm.training, policy.frozen.training) == (True, True, False)


def test_evaluate_closes_only_environments_it_made() -> None:
    act = lambda batch, explore=None: {"actions": np.zeros(len(batch["obs"]), int)}  # noqa: E731
    env = SyncVectorEnv([Counted] * 3)
    runner = SingleAgentEnvRunner(env, act)
    runner.sample(num_timesteps=3)
    result = evaluate(runner, num_episodes=2)  # two environments are enough
    assert (Counted.num_open, result.num_episodes) == (3, 2)
    assert [first_env.unwrapped.num_resets for first_env in env.envs] == [1, 1, 1]  # type: ignore[attr-defined]
    assert runner.sample(num_timesteps=3).t_started.tolist() == [1, 1, 1]
    arguments = make_vector_env(Counted, 2)
    evaluate(arguments, act, num_episodes=2)
    assert not arguments.closed
    assert Counted.num_open == 5


MADE = {
    "an id": lambda: "CartPole-v1",
    "a maker": lambda: lambda: gym.make("CartPole-v1"),
    "a maker of several": lambda: lambda: make_vector_env("CartPole-v1", 2),
    "several": lambda: make_vector_env("CartPole-v1", 2),
    "several of another mode": lambda: make_vector_env("CartPole-v1", 2, autoreset_mode="SameStep"),
    "its own vector environment": lambda: gym.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point"),
    "Gymnasium's several": lambda: gym.make_vec("CartPole-v1", 2, vectorization_mode="sync"),
    "one": lambda: gym.make("CartPole-v1"),
}


@pytest.mark.parametrize("arguments", MADE.values(), ids=MADE)
def test_evaluate_makes_environments_like_the_runner(arguments: Any) -> None:
    env = gym.make("CartPole-v1")
    runner = SingleAgentEnvRunner(arguments(), MLPPolicy(env.observation_space, env.action_space))
    mode = runner.autoreset_mode
    result = evaluate(runner, num_episodes=2, seed=0)
    assert numbered(evaluate(runner, num_episodes=2, seed=0).episodes) == numbered(result.episodes)
    assert runner.for_evaluation().autoreset_mode is mode


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RecordEpisodeStatistics(make_vector_env("CartPole-v1", 2)), "unknown how to make environments like"),
        (Counted, "unknown how to make environments like"),
        (lambda: make_vector_env(Counted(), 1), "<Counted instance> is a single environment"),
    ],
    ids=["wrapped", "one", "one as several"],
)
def test_evaluate_with_given_environment_raises_with_advice(make: Any, message: str) -> None:
    runner = SingleAgentEnvRunner(make(), lambda batch, explore=None: {})
    with pytest.raises(InvalidArgument, match=message):
        evaluate(runner)


def test_evaluate_runner_rejects_repeated_arguments() -> None:
    runner = filtered_runner()
    with pytest.raises(InvalidArgument, match="uses the policy and pipelines of the runner"):
        evaluate(runner, runner.policy)


def test_connector_that_cannot_be_copied_is_named() -> None:
    class Holds(Connector):
        def __init__(self) -> None:
            self.held = (number for number in (1, 2))

        def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
            return batch

    pipeline = env_to_module_pipeline(*SPACES, pieces=[Holds()])
    with pytest.raises(InvalidArgument, match=r"Holds.*cannot be copied for an evaluation: cannot pickle 'generator'"):
        evaluate(Counted, Actor(lambda batch, explore=None: {}, env_to_module=pipeline))


def test_evaluate_uses_its_own_views_and_hooks() -> None:
    class Ends(Hook):
        ended = 0

        def on_episode_end(self, runner: Any, env: int, episode: Any) -> None:
            self.ended += 1

    ends = Ends()
    pipeline = env_to_module_pipeline(*SPACES, pieces=[FrameStacking(num_frames=2)])
    observations: list[Any] = []

    def policy(batch: Any, explore: bool) -> dict[str, Any]:
        observations.append(batch["obs"].tolist())
        return {"action_dist_inputs": torch.tensor([[0.0, 1.0]])}

    actor = Actor(policy, env_to_module=pipeline, module_to_env=module_to_env_pipeline(*SPACES))
    result = evaluate(Counted, actor, num_episodes=1, hooks=[ends])
    assert observations == [[[0, 0]], [[0, 1]], [[1, 2]]]
    assert (ends.ended, result.episodes.actions.tolist()) == (1, [1, 1, 1])


class Uniform:
    def __call__(self, batch: Any, explore: bool | None = None) -> dict[str, Any]:
        return {"action_dist_inputs": torch.zeros(len(batch["obs"]), 5)}


def test_evaluate_several_agents_works() -> None:
    env = simple_spread_v3.parallel_env(N=2, max_cycles=4)
    observations, actions = ({"all": getattr(env, f"{kind}_space")("agent_0")} for kind in ("observation", "action"))
    pipelines = multi_agent_env_to_module(observations, actions, pieces=lambda: [MeanStdFilter()])
    runner = MultiAgentEnvRunner(
        partial(simple_spread_v3.parallel_env, N=2, max_cycles=4),
        {"all": Uniform()},
        agent_to_module_mapping_fn=lambda agent_id, episode: "all",
        env_to_module=pipelines,
        num_envs=2,
    )
    runner.sample(num_timesteps=6)
    before = str(runner.get_state())
    result = evaluate(runner, num_episodes=3, seed=2)
    assert str(runner.get_state()) == before
    assert result.lengths.tolist() == [4, 4, 4]
    assert result.returns == pytest.approx([episode.get_return() for episode in result.episodes])
    assert result.agent_returns.keys() == {"agent_0", "agent_1"}
    assert len(result.module_returns["all"]) == 6
    assert "mean_return/agent/agent_0" in result.as_dict()
    by_hand = evaluate(env, runner.actors, num_episodes=1, agent_to_module_mapping_fn=lambda *arguments: "all", seed=2)
    assert np.array_equal(
        by_hand.episodes[0].get_observations(0)["agent_0"], result.episodes[0].get_observations(0)["agent_0"]
    )
    alone = MultiAgentEnvRunner(env, Uniform())
    with pytest.raises(InvalidArgument, match="is one environment: give the runner a callable"):
        evaluate(alone)

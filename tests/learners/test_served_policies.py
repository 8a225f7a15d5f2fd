"""Trained policies have the same returns in a served file as in `evaluate`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from mpe2 import simple_spread_v3

from connectors import Actor
from connectors.env_to_module import FrameStacking, MeanStdFilter
from episode_learners import PPO, MLPPolicy, MultiAgentAlgorithm
from episode_learners.run import Run
from episode_runners import MultiAgentEnvRunner, evaluate
from episode_runners.seeds import independent_seed

NUM_EPISODES = 50


def served_returns(path: Path, env: gym.Env, seed: int) -> list[float]:
    """Return the returns of whole episodes, played as `evaluate` plays them in one environment."""
    from connectors.export.serve import ServedPolicy

    policy, returns = ServedPolicy(path), []
    for episode in range(NUM_EPISODES):
        observation, _ = env.reset(seed=None if episode else independent_seed(seed))
        total, reward, first, ended = 0.0, 0.0, True, False
        while not ended:
            action = policy.act(observation, reward, first=first)
            observation, reward, terminated, truncated, _ = env.step(action)
            total, first, ended = total + float(reward), False, terminated or truncated
        returns.append(total)
    return returns


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "env"), [("r2d2", "episode_learners.environments:CartPoleWithoutVelocities-v1"), ("sac", "Pendulum-v1")]
)
def test_served_policy_of_a_run_has_equal_returns(algo: str, env: str, tmp_path: Path) -> None:
    from connectors.export import export

    run = Run.of_preset(algo, env)
    run.trainer |= {"max_epochs": 3, "shows_progress": False}
    trainer: Any = run.make(folder=tmp_path / "run")
    trainer.run()
    with trainer.runner as runner:
        export(runner.actor, tmp_path / "policy.onnx", check_on=env)
        expected = evaluate(env, runner.actor, num_episodes=NUM_EPISODES, seed=7).returns
    returns = served_returns(tmp_path / "policy.onnx", gym.make(env), 7)
    if algo == "r2d2":
        assert returns == expected.tolist()
    else:
        np.testing.assert_allclose(returns, expected, rtol=1e-3)


@pytest.mark.slow
def test_served_module_of_several_agents_has_equal_returns(tmp_path: Path) -> None:
    from connectors.export import export
    from connectors.export.serve import ServedPolicy

    make_env = partial(simple_spread_v3.parallel_env, N=2, max_cycles=20)
    env = make_env()
    spaces = env.observation_space("agent_0"), env.action_space("agent_0")
    actor = Actor(MLPPolicy, *spaces, pieces=[MeanStdFilter(), FrameStacking(num_frames=2)])
    options: dict[str, Any] = {"agent_to_module_mapping_fn": lambda agent_id, episode: "all"}
    runner = MultiAgentEnvRunner(make_env, {"all": actor}, num_envs=4, seed=0, **options)
    algorithm = MultiAgentAlgorithm({"all": PPO(actor)})
    for _ in range(3):
        algorithm.update(runner.sample(num_timesteps=400))
    export(runner.actors["all"], tmp_path / "all.onnx")
    expected = evaluate(make_env(), runner.actors, num_episodes=NUM_EPISODES, seed=3, **options).returns
    policies = {agent: ServedPolicy(tmp_path / "all.onnx") for agent in env.possible_agents}
    returns = []
    for episode in range(NUM_EPISODES):
        observations, _ = env.reset(seed=None if episode else independent_seed(3))
        total, first = 0.0, True
        while observations and env.agents:
            actions = {
                agent: int(policies[agent].act(observation, first=first)) for agent, observation in observations.items()
            }
            observations, rewards, _, _, _ = env.step(actions)
            total, first = total + sum(rewards.values()), False
        returns.append(total)
    np.testing.assert_allclose(returns, expected, rtol=1e-6)

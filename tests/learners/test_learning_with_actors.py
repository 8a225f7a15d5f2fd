"""Algorithms take an actor's views, and reject a policy that acted through other views."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from connectors import Actor, learner_pipeline
from connectors.env_to_module import FlattenObservations, MeanStdFilter, PrevActionsPrevRewards
from episode_learners import BC, DQN, GRPO, IMPALA, PPO, SAC, MLPPolicy, PPOConfig, QPolicy, SACPolicy, ppo_pipeline
from episode_runners import SingleAgentEnvRunner
from episodes.errors import StateMismatch
from episodes.replay import EpisodeReplayBuffer

CARTPOLE = gym.make("CartPole-v1")
PENDULUM = gym.make("Pendulum-v1")


def scaled(history: Any) -> dict[str, Any]:
    """Return scaled observations, a view that keeps their shape."""
    return {"obs": history.observations() * np.float32(100)}


def runner_of(make_policy: Any, env: gym.Env, *pieces: Any) -> tuple[Actor, SingleAgentEnvRunner]:
    actor = Actor(partial(make_policy, hidden_sizes=(8,)), env.observation_space, env.action_space, pieces=pieces)
    assert env.spec is not None
    return actor, SingleAgentEnvRunner(env.spec.id, actor, num_envs=2, seed=0)


@pytest.mark.parametrize("make", [PPO, IMPALA, BC, GRPO])
def test_on_policy_algorithm_sees_what_its_actor_saw(make: Any) -> None:
    actor, runner = runner_of(MLPPolicy, CARTPOLE, MeanStdFilter(), scaled)
    pack = runner.sample(num_episodes=8)
    batch = make(actor).preprocess(pack)
    mask = batch.get("loss_mask")
    observations = batch["obs"] if mask is None else batch["obs"][mask]
    assert np.allclose(observations.numpy(), pack.observations[pack.observation_rows()] * 100)
    for learn in (make(actor.policy).preprocess, make(actor.policy).update):
        with pytest.raises(StateMismatch, match=r"the views scaled\(\), and [\w ]+ uses no"):
            learn(pack)


def test_ppo_learns_from_views_of_another_shape() -> None:
    actor, runner = runner_of(MLPPolicy, CARTPOLE, MeanStdFilter(), PrevActionsPrevRewards(), FlattenObservations())
    pack = runner.sample(num_timesteps=64)
    assert PPO(actor).update(pack)["kl"] >= 0
    config = PPOConfig(num_epochs=1)
    by_hand = PPO(actor, config, pipeline=ppo_pipeline(actor, config))
    assert by_hand.update(pack)["kl"] >= 0


@pytest.mark.parametrize(("make", "kind", "env"), [(DQN, QPolicy, CARTPOLE), (SAC, SACPolicy, PENDULUM)])
def test_replay_algorithm_applies_the_views_of_its_actor(make: Any, kind: Any, env: gym.Env) -> None:
    actor, runner = runner_of(kind, env, scaled)
    buffer = EpisodeReplayBuffer(1000, seed=0)
    runner.sample_into(buffer, num_timesteps=200)
    algorithm = make(actor)
    assert np.abs(algorithm.draw(buffer, 64)["obs"]).max() > 50
    algorithm.update_from(buffer)
    algorithm.update(runner.sample(num_timesteps=10))
    with pytest.raises(StateMismatch, match="acted through the views scaled"):
        make(actor.policy).update_from(buffer)
    with pytest.raises(StateMismatch, match="acted through the views scaled"):
        make(actor.policy).update(runner.sample(num_timesteps=10))


def test_learner_pipeline_called_by_hand_rejects_other_views() -> None:
    actor, runner = runner_of(MLPPolicy, CARTPOLE, scaled)
    pack = runner.sample(num_timesteps=10)
    spaces = CARTPOLE.observation_space, CARTPOLE.action_space
    learner_pipeline(*spaces, views=actor.views)(rl_module=actor.policy, episodes=pack)
    learner_pipeline(*spaces, pieces=[scaled])(rl_module=actor.policy, episodes=pack)
    learner_pipeline(*spaces)(episodes=pack)  # for no policy
    with pytest.raises(StateMismatch, match=r"views=actor\.views"):
        learner_pipeline(*spaces)(rl_module=actor.policy, episodes=pack)

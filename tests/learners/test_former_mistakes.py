"""Mistakes of policies whose preprocessing was passed separately: each is impossible with an actor, or raises."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from connectors import Actor, compute_action
from connectors.env_to_module import FrameStacking, MeanStdFilter
from episode_learners import DQN, PPO, LSTMPolicy, MLPPolicy, QPolicy
from episode_learners.trainers import OffPolicyConfig, OffPolicyTrainer, OnPolicyConfig, OnPolicyTrainer
from episode_runners import SingleAgentEnvRunner, evaluate
from episodes.errors import StateMismatch
from episodes.replay import EpisodeReplayBuffer

ENV = gym.make("CartPole-v1")
SPACES = ENV.observation_space, ENV.action_space
SHORT: dict[str, Any] = {"max_epochs": 1, "steps_per_epoch": 128, "shows_progress": False}


def scaled(history: Any) -> dict[str, Any]:
    """A view that keeps the shape of the observations, so that nothing fails if it is forgotten."""
    return {"obs": history.observations() * np.float32(100)}


# --- views= was forgotten in the learner, which then learned from other numbers than the policy had acted on ---------


def on_policy(learner: Any, runner: Any) -> Any:
    return OnPolicyTrainer(PPO(learner), runner, OnPolicyConfig(**SHORT, steps_per_collect=64))


def off_policy(learner: Any, runner: Any) -> Any:
    config = OffPolicyConfig(**SHORT, warmup_steps=64)
    return OffPolicyTrainer(DQN(learner), runner, EpisodeReplayBuffer(10_000, seed=0), config)


@pytest.mark.parametrize(("make", "policy"), [(on_policy, MLPPolicy), (off_policy, QPolicy)])
def test_learner_without_the_views_of_acting_raises(make: Any, policy: Any) -> None:
    actor = Actor(policy, *SPACES, pieces=[scaled])
    runner = SingleAgentEnvRunner("CartPole-v1", actor, num_envs=2, seed=0)
    with pytest.raises(StateMismatch, match=r"acted through the views scaled\(\)"):
        make(actor.policy, runner).run()
    make(actor, runner).run()


def test_pipelines_are_arguments_of_actors_only() -> None:
    actor = Actor(MLPPolicy, *SPACES, pieces=[scaled])
    for call in (
        lambda **arguments: PPO(actor.policy, **arguments),
        lambda **arguments: DQN(Actor(QPolicy, *SPACES), **arguments),
        lambda **arguments: evaluate("CartPole-v1", actor.policy, **arguments),
        lambda **arguments: compute_action(actor.policy, ENV.observation_space.sample(), **arguments),
    ):
        for arguments in ({"views": actor.views}, {"env_to_module": actor.env_to_module}):
            with pytest.raises(TypeError, match="unexpected keyword"):
                call(**arguments)


# --- a policy was served behind a filter without its statistics ------------------------------------------------------


def test_trained_policy_behind_a_new_filter_raises() -> None:
    actor = Actor(MLPPolicy, *SPACES, pieces=[MeanStdFilter()])
    PPO(actor).update(SingleAgentEnvRunner("CartPole-v1", actor, num_envs=2, seed=0).sample(num_timesteps=64))
    new = Actor(actor.policy, *SPACES, pieces=[MeanStdFilter()])
    for act in (
        lambda: new.act(ENV.observation_space.sample()),
        lambda: evaluate("CartPole-v1", new, num_episodes=1),
    ):
        with pytest.raises(StateMismatch, match="statistics of MeanStdFilter, which has seen no observation"):
            act()
    result = evaluate("CartPole-v1", actor, num_episodes=4, seed=1)
    new.env_to_module.set_state(actor.env_to_module.get_state())
    assert evaluate("CartPole-v1", new, num_episodes=4, seed=1).returns.tolist() == result.returns.tolist()


# --- a recurrent policy with connectors needed its pipeline twice ----------------------------------------------------


def test_recurrent_policy_with_connectors_is_made_once() -> None:
    actor = Actor(LSTMPolicy, *SPACES, pieces=[MeanStdFilter(), FrameStacking(num_frames=2)])
    assert actor.policy.observation_space.shape == (8,)
    assert "AddStates" in actor.env_to_module.names
    assert "RemoveTimeDimension" in actor.module_to_env.names

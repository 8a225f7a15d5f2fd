"""Algorithms that learn without a value function compute no values."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from episode_learners import BC, GRPO, GRPOConfig, MLPPolicy
from episode_runners import SingleAgentEnvRunner


def refuse(*_: Any) -> None:
    raise AssertionError("the critic was called")


@pytest.mark.parametrize("make", [BC, lambda policy: GRPO(policy, GRPOConfig(group_size=2))], ids=["BC", "GRPO"])
def test_algorithm_without_values_never_calls_the_critic(make):
    env = gym.make("CartPole-v1")
    policy = MLPPolicy(env.observation_space, env.action_space, hidden_sizes=(8,))
    with SingleAgentEnvRunner("CartPole-v1", policy, num_envs=2, seed=0) as runner:
        episodes = runner.sample(num_episodes=4)
    algorithm = make(policy)
    policy.critic.register_forward_hook(refuse)
    metrics = algorithm.update(episodes)
    assert all(np.isfinite(value) for value in metrics.values())
    with pytest.raises(AssertionError, match="the critic was called"):  # who learns with values does call it
        policy({"obs": torch.zeros(1, 4)})

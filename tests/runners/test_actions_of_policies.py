"""Policies that choose "actions" themselves and also return "action_dist_inputs": the distribution does not determine
the probability of such an action, so its "action_logp" is unknown (NaN), and algorithms that need it raise."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from connectors.module_to_env import GetActions
from episode_learners import BC, GRPO, IMPALA, PPO, MLPPolicy
from episode_runners import MultiAgentEnvRunner, SingleAgentEnvRunner, evaluate
from episodes import EpisodePack
from episodes.errors import InvalidArgument
from episodes.replay import EpisodeReplayBuffer
from tests.agents_together import Together

CARTPOLE = gym.make("CartPole-v1")
SPACES: Any = (CARTPOLE.observation_space, CARTPOLE.action_space)


class Epsilon(MLPPolicy):
    """Policy that takes a random action with a probability of 0.5, and else the most likely one."""

    def forward(self, batch: Any, explore: bool | None = None) -> dict[str, Any]:
        outputs = super().forward(batch, explore)
        if explore:
            inputs = outputs["action_dist_inputs"]
            is_random = torch.rand(len(inputs)) < 0.5
            outputs["actions"] = torch.where(is_random, torch.randint(0, 2, (len(inputs),)), inputs.argmax(-1))
        return outputs


def sampled(num_envs: int, explore: bool = True) -> EpisodePack:
    return SingleAgentEnvRunner("CartPole-v1", Epsilon(*SPACES), num_envs=num_envs, seed=0).sample(
        num_episodes=4, explore=explore
    )


def of_one_environment() -> EpisodePack:
    return sampled(1)


def of_several() -> EpisodePack:
    return sampled(4)


def of_agents() -> EpisodePack:
    env = Together({"a": gym.make("CartPole-v1"), "b": gym.make("CartPole-v1")})
    runner = MultiAgentEnvRunner(env, Epsilon(*SPACES), seed=0)
    return EpisodePack.from_episodes(
        [agent for game in runner.sample(num_episodes=2) for agent in game.agent_episodes.values()]
    )


def of_replay() -> Any:
    buffer = EpisodeReplayBuffer(100, seed=0)
    runner = SingleAgentEnvRunner("CartPole-v1", Epsilon(*SPACES), num_envs=2, seed=0)
    runner.sample_into(buffer, num_timesteps=40, extra_model_outputs=["action_dist_inputs", "action_logp"])
    return buffer.sample_episodes(4)


@pytest.mark.parametrize("record", [of_one_environment, of_several, of_agents, of_replay])
def test_probability_of_an_action_of_the_policy_is_unknown(record: Any) -> None:
    for episode in record():
        assert np.isnan(episode.get_extra_model_outputs("action_logp")).all()
        assert np.isfinite(episode.get_extra_model_outputs("action_dist_inputs")).all()


@pytest.mark.parametrize("algorithm", [PPO, IMPALA, GRPO])
@pytest.mark.parametrize("as_list", [False, True])
def test_algorithm_that_compares_probabilities_raises(algorithm: Any, as_list: bool) -> None:
    pack, learner = sampled(2), algorithm(Epsilon(*SPACES))
    before = {name: value.clone() for name, value in learner.policy.state_dict().items()}
    with pytest.raises(InvalidArgument, match=rf"{algorithm.__name__}: 'action_logp' of recorded actions is NaN"):
        learner.update(list(pack) if as_list else pack)
    assert all(torch.equal(before[name], value) for name, value in learner.policy.state_dict().items())


def test_algorithm_that_needs_no_probabilities_learns() -> None:
    assert np.isfinite(BC(Epsilon(*SPACES)).update(sampled(2))["loss"])


def test_modes_of_one_runner_do_not_mix() -> None:
    """In the same episodes the policy leaves its actions to the distribution without exploration: they have
    probability 1. The steps before in the lookback stay unknown."""
    runner = SingleAgentEnvRunner("CartPole-v1", Epsilon(*SPACES), num_envs=2, seed=0, len_lookback_buffer=2)
    assert np.isnan(runner.sample(num_timesteps=6).extra_model_outputs["action_logp"]).all()
    greedy = runner.sample(num_timesteps=6, explore=False)
    assert (greedy.extra_model_outputs["action_logp"][greedy.step_rows()] == 0).all()
    assert np.isnan(runner.sample(num_timesteps=6)[0].get_extra_model_outputs("action_logp")).all()
    assert evaluate(runner, num_episodes=2, seed=0).returns.size == 2


@pytest.mark.parametrize("log_probs", [False, True])
def test_given_probabilities_are_kept(log_probs: bool) -> None:
    batch = {"actions": torch.tensor([1]), "action_dist_inputs": torch.zeros(1, 2), "action_logp": torch.tensor([-0.5])}
    assert GetActions(*SPACES, log_probs=log_probs)(batch=dict(batch))["action_logp"].tolist() == [-0.5]

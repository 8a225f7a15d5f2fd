"""What users of other libraries reported about learning: normalization, advantages, log-probabilities, returns."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch

from connectors import Actor, learner_pipeline
from connectors.env_to_module import NormalizeObservations
from connectors.learner import NormalizeRewards
from connectors.learner.generalized_advantage_estimation import standardized
from episode_learners import PPO, MLPPolicy, PPOConfig
from episode_learners.algorithms.minibatches import shuffled
from episode_runners import SingleAgentEnvRunner, evaluate
from episodes import SingleAgentEpisode, gae
from episodes.replay import EpisodeReplayBuffer

ENV = gym.make("CartPole-v1")
SPACES: tuple[Any, Any] = ENV.observation_space, ENV.action_space


def runner_with(*pieces: Any) -> SingleAgentEnvRunner:
    return SingleAgentEnvRunner("CartPole-v1", Actor(MLPPolicy, *SPACES, pieces=pieces), num_envs=2, seed=0)


def test_sb3_user_evaluated_with_statistics_that_kept_changing():
    """A user of VecNormalize forgot `training = False`, and evaluation moved the statistics of training."""
    runner = runner_with(NormalizeObservations())
    runner.sample(num_timesteps=50)
    rows = np.ones((3, 4), np.float32)
    view: Any = runner.actor.views.views[0]
    before = view._filter.rewrite(rows, None, False)
    evaluate(runner, num_episodes=3, seed=0)
    evaluate("CartPole-v1", runner.actor, num_episodes=3, seed=0)
    assert np.array_equal(view._filter.rewrite(rows, None, False), before)


def test_sb3_user_wanted_raw_observations_in_the_replay_buffer():
    """A user of SB3 moved code with VecNormalize and SAC, whose buffer stores unnormalized observations."""
    runner, buffer = runner_with(NormalizeObservations()), EpisodeReplayBuffer(500, seed=0)
    runner.sample_into(buffer, num_timesteps=100)
    sampled = buffer.sample(32)
    again = buffer.at(sampled.indices, views=runner.actor.views)
    runner.sample_into(buffer, num_timesteps=100)
    assert np.array_equal(buffer.at(sampled.indices).obs, sampled.obs)
    assert not np.array_equal(buffer.at(sampled.indices, views=runner.actor.views).obs, again.obs)


def test_sb3_user_saw_normalized_rewards_in_the_evaluation():
    """A user of VecNormalize(norm_reward=True) compared returns that were divided by the running deviation."""
    runner = runner_with()
    policy: Any = runner.policy
    pipeline = learner_pipeline(*SPACES, pieces=[NormalizeRewards()])
    pack = runner.sample(num_episodes=4)
    pipeline(rl_module=policy, episodes=pack)
    assert pack.returns().tolist() == pack.lengths.tolist() == runner.stats.returns.tolist()
    result = evaluate(runner, num_episodes=3, seed=0)
    assert result.returns.tolist() == result.lengths.tolist()


def test_cleanrl_user_normalized_rewards_by_the_return_of_another_episode():
    """A user found that the running return of NormalizeReward went on over the end of an episode."""
    ended, later = (
        SingleAgentEpisode.from_arrays(np.zeros((3, 4), np.float32), [0, 1], rewards, terminated=True, id_=id_)
        for id_, rewards in (("a", [100.0, 100.0]), ("b", [1.0, 1.0]))
    )
    pipeline = learner_pipeline(*SPACES, pieces=[NormalizeRewards(gamma=1.0, clip=None)])
    for episode in (ended, later):
        batch = pipeline(episodes=[episode])
    np.testing.assert_allclose(batch["rewards"], np.ones(2) / np.std([100, 200, 1, 2]), rtol=1e-5)


def test_cleanrl_user_got_nan_from_a_minibatch_of_one_row():
    """A user had one row left over, and the standard deviation of one advantage was NaN."""
    assert standardized(np.array([3.0])).tolist() == [0.0]
    policy = MLPPolicy(*SPACES)
    pack = SingleAgentEnvRunner("CartPole-v1", policy, seed=0).sample(num_timesteps=9)
    PPO(policy, PPOConfig(minibatch_size=4, num_epochs=2)).update(pack)
    assert all(bool(parameter.isfinite().all()) for parameter in policy.parameters())


def test_sb3_user_lost_the_remainder_of_minibatches():
    """A user trained with a rollout size that is no multiple of the batch size, and got a warning on a small batch."""
    rows = {"x": torch.arange(10)}
    parts = [part["x"].tolist() for part in shuffled(rows, 4, torch.Generator().manual_seed(0))]
    assert sorted(row for part in parts for row in part) == list(range(10))
    assert [len(part) for part in parts] == [4, 6]


def test_rsl_rl_user_bootstrapped_time_limits_with_the_wrong_observation():
    """A user found that a timeout used the value of the first observation after the reset."""
    values = np.array([0.0, 0.0, 50.0])
    _, targets = gae(np.ones(2), values, [False], [True], gamma=0.5, lambda_=1.0, offsets=[0, 2])
    assert targets.tolist() == [1 + 0.5 * (1 + 0.5 * 50), 1 + 0.5 * 50]


def test_rllib_user_compared_log_probabilities_of_evaluation_episodes():
    """A user sampled with explore=False and importance ratios used the probability of a stochastic policy."""
    runner = runner_with()
    pack = runner.sample(num_timesteps=20, explore=False)
    assert not pack.extra_model_outputs["action_logp"].any()


def test_tianshou_user_found_reward_statistics_of_several_collectors_mixed():
    """A user trained from two collectors in turn, and normalized returns depended on who collected last."""
    runners = [runner_with(), runner_with()]
    runners[1] = SingleAgentEnvRunner("CartPole-v1", runners[0].actor, num_envs=2, seed=9)
    packs = [runner.sample(num_timesteps=6) for _ in range(3) for runner in runners]
    divisors = []
    for order in (packs, packs[::2] + packs[1::2]):
        pipeline = learner_pipeline(*SPACES, pieces=[NormalizeRewards(clip=None)])
        for pack in order:
            pipeline(episodes=pack)
        divisors.append(float(pipeline(episodes=packs[0])["rewards"].max()))
    np.testing.assert_allclose(*divisors, rtol=1e-5)

"""Learner connectors in RLlib's style, which change rewards and add columns in a learner's pipeline."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from connectors import ConnectorV2, learner_pipeline
from connectors.learner import AddColumnsFromEpisodesToTrainBatch
from episode_learners import PPO, MLPPolicy, PPOConfig, ppo_pipeline
from episode_runners import SingleAgentEnvRunner
from episodes import Columns
from tests.moving.environments import Always, BoxCorridor


class ClipRewards(ConnectorV2):
    """Connector that clips rewards to two bounds, and writes the rewards back to the episodes."""

    def __init__(self, *args, low=0.0, high=1.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.low, self.high = low, high

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
        for sa_episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            sa_episode.set_rewards(new_data=np.clip(sa_episode.get_rewards(), self.low, self.high))
        return batch


class CountBasedCuriosity(ConnectorV2):
    """Connector that adds a bonus for rare observations to the rewards."""

    def __init__(self, *args, intrinsic_reward_coeff=1.0, **kwargs):
        super().__init__(*args, **kwargs)
        self._counts = {}
        self.coeff = intrinsic_reward_coeff

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
        for sa_episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            for i in range(len(sa_episode)):
                key = tuple(sa_episode.get_observations(i + 1))
                self._counts[key] = self._counts.get(key, 0) + 1
                bonus = self.coeff / self._counts[key]
                sa_episode.set_rewards(new_data=sa_episode.get_rewards(i) + bonus, at_indices=i)
        return batch

    def get_state(self, components=None, *, not_components=None, **kwargs):
        return {"counts": dict(self._counts)}

    def set_state(self, state):
        self._counts = dict(state["counts"])


class DistanceCuriosity(ConnectorV2):
    """Connector that adds a bonus for observations that are far from a few stored observations."""

    def __init__(self, *args, num_kept=5, **kwargs):
        super().__init__(*args, **kwargs)
        self._kept = deque(maxlen=num_kept)

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
        for sa_episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            observations = sa_episode.get_observations(slice(1, None))
            if self._kept:
                distances = np.linalg.norm(observations[:, None] - np.stack(self._kept)[None], axis=-1).min(1)
                sa_episode.set_rewards(new_data=sa_episode.get_rewards() + distances.astype(np.float32))
            self._kept.append(observations[-1].copy())
        return batch


class RandomNetworkDistillation(ConnectorV2):
    """Connector that adds the prediction error of a trained network for a random network as intrinsic rewards."""

    def __init__(self, *args, learning_rate=0.1, **kwargs):
        super().__init__(*args, **kwargs)
        size = self.input_observation_space.shape[0]
        self.target, self.predictor = (nn.Linear(size, 4) for _ in range(2))
        self.optimizer = torch.optim.SGD(self.predictor.parameters(), learning_rate)

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
        for sa_episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            observations = torch.tensor(sa_episode.get_observations(slice(1, None)), dtype=torch.float32)
            errors = (self.predictor(observations) - self.target(observations).detach()).square().mean(-1)
            self.optimizer.zero_grad()
            errors.mean().backward()
            self.optimizer.step()
            self.add_n_batch_items(
                batch, Columns.INTRINSIC_REWARDS, errors.detach().numpy(), len(sa_episode), sa_episode
            )
        return batch


class AddIntrinsicToExtrinsic(ConnectorV2):
    """Connector that adds the intrinsic rewards to the rewards of the batch."""

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
        self.foreach_batch_item_change_in_place(
            batch,
            [Columns.REWARDS, Columns.INTRINSIC_REWARDS],
            lambda items, eps_id, agent_id, module_id: (items[0] + items[1], items[1]),
        )
        return batch


class PotentialShaping(ConnectorV2):
    """Connector that adds gamma * potential of the next observation - potential of the observation to rewards."""

    def __init__(self, *args, gamma=1.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.gamma = gamma

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
        for sa_episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            potential = sa_episode.get_observations()[:, 0]
            shaped = sa_episode.get_rewards() + self.gamma * potential[1:] - potential[:-1]
            sa_episode.set_rewards(new_data=shaped)
        return batch


class ScaleRewards(ConnectorV2):
    """Connector that divides rewards by the largest reward so far, a state that copies of the connector merge."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.largest = 1e-8

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
        for sa_episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            rewards = sa_episode.get_rewards()
            self.largest = max(self.largest, float(np.abs(rewards).max()))
            sa_episode.set_rewards(new_data=rewards / self.largest)
        return batch

    def get_state(self, components=None, *, not_components=None, **kwargs):
        return {"largest": self.largest}

    def set_state(self, state):
        self.largest = state["largest"]

    def merge_states(self, states):
        return {"largest": max(state["largest"] for state in states)}


class RewardsFromInfos(ConnectorV2):
    """Connector that replaces rewards by a reward in the environment's infos."""

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
        for sa_episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            bonuses = [info["bonus"] for info in sa_episode.get_infos(slice(1, None))]
            sa_episode.set_rewards(new_data=np.array(bonuses, np.float32))
        return batch


class AddTimesteps(ConnectorV2):
    """Connector that adds a column with the time step of each row."""

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
        for sa_episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            steps = np.arange(sa_episode.t_started, sa_episode.t)
            self.add_n_batch_items(batch, Columns.T, steps, len(sa_episode), sa_episode)
        return batch


class AddPastRewards(ConnectorV2):
    """Connector that adds a column with the last rewards before each step, zeros before the start."""

    def __init__(self, *args, num_rewards=2, **kwargs):
        super().__init__(*args, **kwargs)
        self.num_rewards = num_rewards

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
        for sa_episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            past = [
                sa_episode.get_rewards(slice(t - self.num_rewards, t), neg_index_as_lookback=True, fill=0.0)
                for t in range(len(sa_episode))
            ]
            self.add_n_batch_items(batch, "past_rewards", past, len(sa_episode), sa_episode)
        return batch


class MonteCarloReturns(ConnectorV2):
    """Connector that adds centered discounted returns as advantages."""

    def __init__(self, *args, gamma=0.9, **kwargs):
        super().__init__(*args, **kwargs)
        self.gamma = gamma

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
        for sa_episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            returns, later = [], 0.0
            for reward in reversed(sa_episode.get_rewards()):
                later = reward + self.gamma * later
                returns.append(later)
            self.add_n_batch_items(
                batch, Columns.ADVANTAGES, np.array(returns[::-1], np.float32), len(returns), sa_episode
            )
        return batch


class LogRewards(ConnectorV2):
    """Connector that logs the mean reward to the metrics logger, and changes nothing."""

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, metrics=None, **kwargs):
        for sa_episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            if metrics:
                metrics.log_value("reward", np.mean(sa_episode.get_rewards()), window=10)
        return batch


class OwnFrameStacks(ConnectorV2):
    """Connector that replaces observations by stacks of two, which it builds itself."""

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
        for sa_episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            items = [
                np.concatenate(sa_episode.get_observations(slice(t - 1, t + 1), neg_index_as_lookback=True, fill=0.0))
                for t in range(len(sa_episode))
            ]
            self.add_n_batch_items(batch, Columns.OBS, items, len(sa_episode), sa_episode)
        return batch


def sampled(**options: Any) -> Any:
    """Return three episodes of the corridor in which the agent always goes right."""
    return SingleAgentEnvRunner(BoxCorridor, Always(1), **options).sample(num_episodes=3)


REWARDS = [-0.1, -0.1, -0.1, 1.0]


def rewards_after(*pieces: Any, **call: Any) -> np.ndarray:
    """Return the rewards [3, 4] of three episodes in the train batch, and check that the episodes are unchanged."""
    pack = sampled()
    batch = learner_pipeline(pack.observation_space, pack.action_space, pieces=pieces)(episodes=pack, **call)
    assert pack.rewards.tolist() == pytest.approx(REWARDS * 3)
    return batch["rewards"].numpy().reshape(3, 4)


def test_rewards_are_clipped():
    assert rewards_after(ClipRewards(low=0.0, high=0.5)).tolist() == [[0, 0, 0, 0.5]] * 3


def test_count_based_curiosity_has_a_state():
    piece = CountBasedCuriosity()
    bonus = rewards_after(piece) - np.array(REWARDS)
    np.testing.assert_allclose(bonus, [[1] * 4, [1 / 2] * 4, [1 / 3] * 4], rtol=1e-5)
    other_curiosity = CountBasedCuriosity()
    other_curiosity.set_state(piece.get_state())
    np.testing.assert_allclose(rewards_after(other_curiosity)[0] - REWARDS, 1 / 4, rtol=1e-5)


def test_distance_based_curiosity_rewards_new_observations():
    bonus = rewards_after(DistanceCuriosity()) - np.array(REWARDS)
    np.testing.assert_allclose(bonus, [[0, 0, 0, 0], [3, 2, 1, 0], [3, 2, 1, 0]], atol=1e-5)


def test_random_network_distillation_adds_intrinsic_rewards():
    pack = sampled()
    piece = RandomNetworkDistillation(pack.observation_space)
    pipeline = learner_pipeline(pack.observation_space, pack.action_space, pieces=[piece])
    pipeline.insert_after(AddColumnsFromEpisodesToTrainBatch, AddIntrinsicToExtrinsic())
    means = []
    for _ in range(8):
        batch = pipeline(episodes=pack)
        intrinsic = batch["intrinsic_rewards"]
        np.testing.assert_allclose(batch["rewards"] - intrinsic, REWARDS * 3, atol=1e-6)
        means.append(float(intrinsic.mean()))
    assert means[-1] < 0.5 * means[0]


def test_rewards_for_getting_nearer_are_added():
    np.testing.assert_allclose(rewards_after(PotentialShaping()), np.array([REWARDS] * 3) + 1, rtol=1e-6)


def test_scaled_rewards_have_a_state_that_merges():
    piece = ScaleRewards()
    assert rewards_after(piece).max() == 1
    pipeline = learner_pipeline(pieces=[ScaleRewards()])
    states = [{"ScaleRewards": {"largest": 2.0}}, {"ScaleRewards": piece.get_state()}]
    pipeline.set_state(pipeline.merge_states(states))
    assert pipeline(episodes=sampled())["rewards"].max() == 0.5


def test_rewards_are_read_from_infos():
    assert rewards_after(RewardsFromInfos()).tolist() == [[1, 2, 3, 4]] * 3


def test_time_steps_are_a_column_also_of_chunks_and_padded_rows():
    runner = SingleAgentEnvRunner(BoxCorridor, Always(1))
    runner.sample(num_timesteps=2)
    pack = runner.sample(num_timesteps=4)
    times = [2, 3, 0, 1]
    assert learner_pipeline(pieces=[AddTimesteps()])(episodes=pack)["t"].tolist() == times
    padded = learner_pipeline(pieces=[AddTimesteps()], max_seq_len=3)(episodes=pack)
    assert padded["t"].tolist() == [[2, 3, 0], [0, 1, 0]]


def test_past_rewards_reach_into_the_lookback():
    runner = SingleAgentEnvRunner(BoxCorridor, Always(1), len_lookback_buffer=2)
    runner.sample(num_timesteps=3)
    batch = learner_pipeline(pieces=[AddPastRewards()])(episodes=runner.sample(num_timesteps=2))
    np.testing.assert_allclose(batch["past_rewards"], [[-0.1, -0.1], [0, 0]])


def test_custom_advantages_are_learned_from():
    pack = sampled()
    batch = learner_pipeline(pieces=[MonteCarloReturns(gamma=0.5)])(episodes=pack)
    np.testing.assert_allclose(batch["advantages"][:4], [-0.05, 0.1, 0.4, 1.0], atol=1e-6)


def test_metrics_are_logged_if_there_is_a_logger():
    runner = SingleAgentEnvRunner(BoxCorridor, Always(1))
    assert rewards_after(LogRewards(), metrics=runner.metrics_logger).shape == (3, 4)
    assert runner.metrics()["reward"] == pytest.approx(0.175)


def test_stacks_built_by_a_connector_replace_observations():
    pack = sampled()
    batch = learner_pipeline(pieces=[OwnFrameStacks()])(episodes=pack)
    assert batch["obs"][:4].tolist() == [[0, 0], [0, 1], [1, 2], [2, 3]]


def test_shaped_rewards_make_the_advantages_that_ppo_learns_from():
    corridor = BoxCorridor()
    policy = MLPPolicy(corridor.observation_space, corridor.action_space)
    runner = SingleAgentEnvRunner(BoxCorridor, policy, num_envs=2, seed=0)
    config = PPOConfig(num_epochs=1)
    pipeline = ppo_pipeline(policy, config)
    pipeline.prepend(PotentialShaping())
    ppo = PPO(policy, config, pipeline=pipeline)
    pack = runner.sample(num_timesteps=64)
    shaped, plain = pipeline(episodes=pack, rl_module=policy), PPO(policy, config).preprocess(pack)
    assert not torch.equal(shaped["advantages"], plain["advantages"])
    assert ppo.update(pack)

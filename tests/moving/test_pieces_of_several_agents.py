"""Connectors in RLlib's style with several agents: joint preprocessors, and connectors of one module."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from connectors import multi_agent_env_to_module, multi_agent_learner
from connectors.env_to_module import MultiAgentObservationPreprocessor
from episode_runners import MultiAgentEnvRunner
from tests.moving.environments import Always, Meeting
from tests.moving.test_acting_pieces import AddLastReward
from tests.moving.test_learner_pieces import ClipRewards, CountBasedCuriosity
from tests.moving.test_preprocessors import WithLastReward, WithTime

AGENTS = ("a", "b")


class RelativePositions(MultiAgentObservationPreprocessor):
    """Preprocessor with the position of each agent, and its distance from the other agent."""

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        space = gym.spaces.Box(-4, 4, (2,), np.float32)
        return gym.spaces.Dict(dict.fromkeys(input_observation_space.spaces, space))

    def preprocess(self, observations, episode):
        changed = {}
        for agent_id, place in observations.items():
            (other_position,) = (position for agent, position in observations.items() if agent != agent_id)
            changed[agent_id] = np.concatenate([place, other_position - place])
        return changed


class GlobalState(MultiAgentObservationPreprocessor):
    """Preprocessor with the observations of all agents and the env step in one vector for each agent."""

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        everything = gym.spaces.Box(0, np.inf, (len(input_observation_space.spaces) + 1,), np.float32)
        return gym.spaces.Dict(dict.fromkeys(input_observation_space.spaces, everything))

    def preprocess(self, observations, episode):
        places = [observations[agent_id] for agent_id in sorted(observations)]
        state = np.concatenate([*places, [episode.env_t]]).astype(np.float32)
        return dict.fromkeys(observations, state)


def runner_of(**pipeline: Any) -> tuple[MultiAgentEnvRunner, Always]:
    """Return a runner in which both agents go right, with one module for both."""
    env, policy = Meeting(), Always(1)
    space = pipeline.pop("space", env.observation_spaces["a"])
    spaces = {"default_policy": space}, {"default_policy": env.action_spaces["a"]}
    to_module = multi_agent_env_to_module(*spaces, **pipeline)
    runner = MultiAgentEnvRunner(Meeting, policy, num_envs=2, env_to_module=to_module, seed=0, len_lookback_buffer=1)
    return runner, policy


@pytest.mark.parametrize("num_timesteps", [3, 8, 11])
def test_joint_preprocessor_adds_positions_of_other_agents(num_timesteps):
    runner, policy = runner_of(joint=[RelativePositions()], space=gym.spaces.Box(-4, 4, (2,), np.float32))
    for _ in range(3):
        for episode in runner.sample(num_timesteps=num_timesteps):
            agent_episode = {agent: episode.agent_episodes[agent].get_observations() for agent in AGENTS}
            assert (agent_episode["a"][:, 1] == agent_episode["b"][:, 0] - agent_episode["a"][:, 0]).all()
            assert (agent_episode["b"][:, 1] == -agent_episode["a"][:, 1]).all()
    assert all(batch["obs"].shape == (4, 2) for batch in policy.seen)


def test_joint_preprocessor_adds_all_observations_and_the_time():
    runner, _ = runner_of(joint=[GlobalState()], space=gym.spaces.Box(0, np.inf, (3,), np.float32))
    for episode in runner.sample(num_episodes=2):
        for agent in AGENTS:
            observations = episode.agent_episodes[agent].get_observations()
            assert observations.tolist() == [[0, 4, 0], [1, 4, 1], [2, 4, 2], [3, 4, 3], [4, 4, 4]]


@pytest.mark.parametrize("piece", [WithLastReward, WithTime])
def test_preprocessor_reads_the_episode_of_its_agent(piece):
    runner, _ = runner_of(pieces=lambda: [piece()])
    for episode in [*runner.sample(num_timesteps=6), *runner.sample(num_timesteps=9)]:
        for agent_episode in episode.agent_episodes.values():
            observations = agent_episode.get_observations()
            if piece is WithLastReward:
                assert (observations[1:, 1] == agent_episode.get_rewards()).all()
            else:
                assert (observations[:, 1] == np.arange(agent_episode.t_started, agent_episode.t + 1)).all()


def test_column_adder_adds_a_row_for_each_agent():
    runner, policy = runner_of(pieces=lambda: [AddLastReward()])
    runner.sample(num_timesteps=6)
    runner.sample(num_timesteps=6)
    for batch in policy.seen:
        assert batch["last_reward"].shape == (4,)
    assert policy.seen[1]["last_reward"].tolist() == [-3.0] * 4


def test_learner_pieces_shape_the_rewards_of_each_modules_agents():
    runner, _ = runner_of()
    env = Meeting()
    spaces = {"default_policy": env.observation_spaces["a"]}, {"default_policy": env.action_spaces["a"]}
    episodes = runner.sample(num_episodes=2)
    clipped = multi_agent_learner(*spaces, pieces=[ClipRewards(low=-2.0, high=0.0)])(episodes=episodes)
    assert clipped["default_policy"]["rewards"].min() == -2
    plain, curious = multi_agent_learner(*spaces), multi_agent_learner(*spaces, pieces=[CountBasedCuriosity()])
    bonus = (
        curious(episodes=episodes)["default_policy"]["rewards"] - plain(episodes=episodes)["default_policy"]["rewards"]
    )
    assert bonus.max() == 1
    assert bonus.min() == pytest.approx(1 / 10)  # "b" never leaves its place: 8 times, and "a" comes there twice
    assert episodes[0].agent_episodes["a"].get_rewards().tolist() == [-3, -2, -1, 0]

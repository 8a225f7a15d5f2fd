"""Gymnasium's vector wrappers between environment and runner: their outputs are recorded."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorWrapper
from gymnasium.wrappers import RecordEpisodeStatistics
from gymnasium.wrappers import vector as wrappers

from episode_runners import SingleAgentEnvRunner, make_vector_env
from episodes.pack import EpisodePack
from episodes.replay import EpisodeReplayBuffer
from episodes.testing import check_vector_env

MODES = list(AutoresetMode)


def cartpoles(mode: AutoresetMode) -> gym.vector.VectorEnv:
    return make_vector_env(lambda: gym.make("CartPole-v1", max_episode_steps=12), 3, autoreset_mode=mode)


def sampled(env: gym.vector.VectorEnv) -> EpisodePack:
    return SingleAgentEnvRunner(env, seed=0).sample(num_timesteps=90, random_actions=True)


@pytest.mark.parametrize("mode", MODES)
def test_rewards_of_wrappers_are_recorded(mode: AutoresetMode) -> None:
    clipped = wrappers.ClipReward(cartpoles(mode), -0.5, 0.5)
    assert set(sampled(clipped).rewards.tolist()) == {0.5}
    doubled = wrappers.TransformReward(cartpoles(mode), lambda rewards: 2 * rewards)
    assert set(sampled(doubled).rewards.tolist()) == {2.0}
    check_vector_env(wrappers.NormalizeReward(cartpoles(mode)), num_steps=60, reproducible=False)


class Kept(VectorWrapper):
    """Wrapper that stores the rows of observations that it returns."""

    def reset(self, **kwargs: Any) -> Any:
        observations, infos = self.env.reset(**kwargs)
        self.rows = [observations.copy()]
        return observations, infos

    def step(self, actions: Any) -> Any:
        observations, *remaining = self.env.step(actions)
        self.rows.append(observations.copy())
        return observations, *remaining


@pytest.mark.parametrize("wrapper", [wrappers.NormalizeObservation, wrappers.FlattenObservation])
def test_observations_of_wrappers_are_recorded(wrapper: Any) -> None:
    env = Kept(wrapper(cartpoles(AutoresetMode.NEXT_STEP)))  # with same-step autoreset Gymnasium refuses these two
    pack = sampled(env)
    arguments = [row.tobytes() for row in np.concatenate(env.rows)]  # each belongs to one episode
    recorded = [row.tobytes() for episode in pack for row in episode.get_observations()]
    assert set(recorded) <= set(arguments)
    assert len(arguments) - 3 <= len(recorded) <= len(arguments)  # the last resets have no step


def episodes_of(env: gym.vector.VectorEnv, into_buffer: bool) -> list[Any]:
    """Return sampled episodes, from a pack or from a buffer."""
    if not into_buffer:
        return list(sampled(env))
    buffer = EpisodeReplayBuffer(1000)
    SingleAgentEnvRunner(env, seed=0).sample_into(buffer, num_timesteps=90, random_actions=True)
    return list(buffer.iter_episodes())


@pytest.mark.parametrize("into_buffer", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_last_infos_have_episode_statistics(mode: AutoresetMode, into_buffer: bool) -> None:
    num_seen = 0
    for episode in episodes_of(wrappers.RecordEpisodeStatistics(cartpoles(mode)), into_buffer):
        infos = episode.get_infos()
        assert all("episode" not in info for info in infos[:-1])
        assert ("episode" in infos[-1]) == episode.is_done
        if not episode.is_done:
            continue
        # With same-step autoreset Gymnasium does not count the first steps of all episodes but an environment's first.
        is_first = num_seen < 3 if into_buffer else num_seen % 2 == 0  # a buffer has the episodes in their ending order
        missed = int(mode is AutoresetMode.SAME_STEP and not is_first)
        assert infos[-1]["episode"]["l"] == len(episode) - missed
        assert infos[-1]["episode"]["r"] == episode.get_return() - missed
        num_seen += 1
    assert num_seen == 6  # two of each environment


@pytest.mark.parametrize("mode", MODES)
def test_statistics_are_right_where_those_of_the_vector_wrapper_are_wrong(mode: AutoresetMode) -> None:
    env = wrappers.RecordEpisodeStatistics(make_vector_env("CartPole-v1", 3, autoreset_mode=mode))
    runner = SingleAgentEnvRunner(env, seed=0)
    pack = runner.sample(num_timesteps=300, random_actions=True)
    whole = [episode for episode in pack if episode.is_done]
    assert sorted(runner.stats.lengths.tolist()) == sorted(map(len, whole))
    assert sorted(runner.stats.returns.tolist()) == sorted(episode.get_return() for episode in whole)
    num_wrong = sum(episode.get_infos(-1)["episode"]["l"] != len(episode) for episode in whole)
    assert (num_wrong > len(whole) // 2) == (mode is not AutoresetMode.NEXT_STEP)
    assert num_wrong == 0 or mode is not AutoresetMode.NEXT_STEP


@pytest.mark.parametrize("into_buffer", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_last_infos_have_statistics_of_inner_wrappers(mode: AutoresetMode, into_buffer: bool) -> None:
    make = partial(gym.make, "CartPole-v1", max_episode_steps=12)
    env = make_vector_env(lambda: RecordEpisodeStatistics(make()), 3, autoreset_mode=mode)
    episodes = episodes_of(env, into_buffer)
    assert sum(episode.is_done for episode in episodes) == 6  # two of each environment
    for episode in episodes:
        infos = list(episode.get_infos())
        assert not any(infos[:-1])
        if episode.is_done:
            statistics = infos[-1]["episode"]
            assert (statistics["l"], statistics["r"]) == (len(episode), episode.get_return())
        else:
            assert not infos[-1]


class TellsOfItself(gym.Wrapper):
    """Environment whose infos have an "episode" at each step and reset: the sum of rewards so far."""

    def reset(self, **kwargs: Any) -> Any:
        self.told = {"episode": {"r": 0.0, "l": 0}}
        return self.env.reset(**kwargs)[0], self.told

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, _ = self.env.step(action)
        before = self.told["episode"]
        self.told = {"episode": {"r": before["r"] + float(reward), "l": before["l"] + 1}}
        return observation, reward, terminated, truncated, self.told


@pytest.mark.parametrize("mode", MODES)
def test_info_named_episode_stays_at_its_step(mode: AutoresetMode) -> None:
    pack = sampled(make_vector_env(lambda: TellsOfItself(gym.make("CartPole-v1")), 3, autoreset_mode=mode))
    for episode in pack:
        messages = [info["episode"]["l"] for info in episode.get_infos()]
        assert messages == list(range(episode.t_started, episode.t + 1))
    assert pack.terminated.any()

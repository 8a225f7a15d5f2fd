"""Rewards that are not finite numbers: NaN stays in its step, and algorithms raise an error that names it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from episode_learners import PPO, MLPPolicy
from episode_runners import MultiAgentEnvRunner, SingleAgentEnvRunner
from episodes import MultiAgentEpisode, SingleAgentEpisode
from episodes.errors import InvalidArgument, TrackMismatch, WrongType
from episodes.tokens import Conversation
from tests.agents_together import Together


class Paying(gym.Env):
    """Environment with episodes of six steps, whose third reward is given."""

    observation_space = spaces.Box(-9, 9, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, reward: Any = 1.0) -> None:
        self.reward, self.t = reward, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        reward = self.reward if self.t == 3 else 1.0
        return np.full(2, self.t / 9, np.float32), reward, self.t == 6, False, {}


def two(reward: Any) -> Together:
    """Return an environment of two agents, of which the second has an unusual reward."""
    return Together({"a": Paying(), "b": Paying(reward)})


def runner_of(reward: Any, policy: Any = None) -> SingleAgentEnvRunner:
    return SingleAgentEnvRunner(SyncVectorEnv([Paying, lambda: Paying(reward)]), policy, seed=0)


@pytest.mark.parametrize("reward", [np.nan, None])  # Gymnasium's vector environments make NaN of None
def test_nan_reward_is_recorded_and_named_by_learner(reward: Any) -> None:
    policy = MLPPolicy(Paying.observation_space, Paying.action_space)
    pack = runner_of(reward, policy).sample(num_timesteps=12)
    unusual = [episode for episode in pack if np.isnan(episode.get_rewards()).any()]
    assert [np.isnan(episode.get_rewards()).tolist() for episode in unusual] == [
        [False, False, True, False, False, False]
    ]
    with pytest.raises(InvalidArgument, match=rf"rewards\[\d+\] \(episode {unusual[0].id_}, step 2\)"):
        PPO(policy).update(pack)


@pytest.mark.parametrize("observation_space", [Paying.observation_space, spaces.Dict(a=Paying.observation_space)])
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_reward_none_of_a_made_environment_raises_as_by_hand(mode: AutoresetMode, observation_space: Any) -> None:
    class Unpaid(Paying):
        def reset(self, **options: Any) -> Any:
            return self.seen(super().reset(**options)[0]), {}

        def step(self, action: Any) -> Any:
            observation, *remaining = super().step(action)
            return (self.seen(observation), *remaining)

        def seen(self, item: Any) -> Any:
            return item if isinstance(observation_space, spaces.Box) else {"a": item}

    Unpaid.observation_space = observation_space
    runner = SingleAgentEnvRunner(lambda: Unpaid(None), num_envs=2, autoreset_mode=mode, seed=0)
    with pytest.raises(WrongType, match="environment 0, step 3 of its episode: step: the reward is a NoneType"):
        runner.sample(num_timesteps=12, random_actions=True)
    episode = SingleAgentEpisode()
    episode.add_env_reset(np.zeros(1))
    with pytest.raises(WrongType):
        episode.add_env_step(np.zeros(1), 0, None)


@pytest.mark.parametrize("reward", ["x", [1.0, 2.0], np.array([1.0, 2.0])])
def test_invalid_reward_names_environment_and_step(reward: Any) -> None:
    runner = runner_of(reward)
    with pytest.raises(TrackMismatch, match="environment 1, step 3 of its episode"):
        runner.sample(num_timesteps=12, random_actions=True)
    assert runner.take().num_steps == 4


def test_agent_reward_none_raises_and_nan_is_recorded() -> None:
    runner = MultiAgentEnvRunner(lambda: two(None), seed=0)
    with pytest.raises(WrongType, match="agent 'b' at env step 3: the reward is a NoneType"):
        runner.sample(num_timesteps=6, random_actions=True)
    assert [len(episode) for episode in runner.take()] == [2]
    (episode,) = MultiAgentEnvRunner(lambda: two(np.nan), seed=0).sample(num_timesteps=6, random_actions=True)
    assert np.isnan(episode.get_rewards()["b"]).tolist() == [False, False, True, False, False, False]
    assert episode.get_rewards()["a"].tolist() == [1.0] * 6


TOO_LARGE = [10**400, 2**64, -(2**63) - 1]


def grown(reward: Any) -> SingleAgentEpisode:
    episode = SingleAgentEpisode()
    episode.add_env_reset(observation=0.0)
    episode.add_env_step(1.0, 0, reward)
    return episode


def game(reward: Any) -> MultiAgentEpisode:
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 0.0})
    episode.add_env_step({"a": 1.0}, {"a": 0}, {"a": reward})
    return episode


def talk(reward: Any) -> Conversation:
    talk = Conversation(outputs={})
    talk.begin([1])
    talk.turn([2], reward=reward)
    return talk


def replaced(reward: Any) -> SingleAgentEpisode:
    episode = grown(1.0)
    episode.set_rewards(new_data=[reward])
    return episode


ENTRIES: dict[str, Any] = {
    "add_env_step": grown,
    "constructor": lambda reward: SingleAgentEpisode(observations=[0.0, 1.0], actions=[0], rewards=[reward]),
    "from_arrays": lambda reward: SingleAgentEpisode.from_arrays([0.0, 1.0], [0], [reward]),
    "set_rewards": replaced,
    "several agents": game,
    "turn": talk,
}


@pytest.mark.parametrize("reward", TOO_LARGE, ids=["huge", "high", "low"])
@pytest.mark.parametrize("enter", ENTRIES.values(), ids=ENTRIES)
def test_integer_that_no_array_holds_is_named_where_it_enters(enter: Any, reward: int) -> None:
    with pytest.raises(WrongType, match=r"more than 64 bits; give a float|dtype object; give real numbers"):
        enter(reward)
    for held in (2**64 - 1, -(2**63)):
        repr(enter(held))

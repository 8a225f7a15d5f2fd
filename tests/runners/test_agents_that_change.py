"""Environments whose agents and spaces of agents differ between episodes and between copies."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

from connectors import multi_agent_learner
from connectors.env_to_module import MultiAgentObservationPreprocessor
from episode_runners import MultiAgentEnvRunner
from episodes.errors import EpisodeStateError, ShapeMismatch
from tests.moving.environments import Always

with warnings.catch_warnings(action="ignore"):  # PettingZoo's own: its tests import environments in an old way
    from pettingzoo.test.example_envs import generated_agents_env_action_mask_info_v0


class Sized(ParallelEnv[str, np.ndarray, int]):
    """Environment whose spaces of agents depend on the episode, and which checks the actions."""

    metadata = {"name": "sized"}
    num_made = 0

    def __init__(self, sizes: tuple[int, ...] = (2, 5, 3), agents: tuple[str, ...] = ("a", "b")) -> None:
        self.sizes, self.all_agents, self.t = sizes, agents, 0
        self.num_episodes, Sized.num_made = Sized.num_made, Sized.num_made + 1

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-99, 99, (self.size(agent),), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(self.size(agent))

    def size(self, agent: str) -> int:
        return self.sizes[self.num_episodes % len(self.sizes)]

    def observed(self) -> dict[str, np.ndarray]:
        return {agent: np.full(self.size(agent), self.t, np.float32) for agent in self.agents}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self.t, self.num_episodes = list(self.all_agents), 0, self.num_episodes + 1
        return self.observed(), {}

    def step(self, actions: Any) -> Any:
        assert all(action in self.action_space(agent) for agent, action in actions.items())
        self.t += 1
        row, over = self.observed(), dict.fromkeys(self.agents, self.t == 4)
        rewards, goes_on = dict.fromkeys(self.agents, 1.0), dict.fromkeys(self.agents, False)
        self.agents = [] if self.t == 4 else self.agents
        return row, rewards, over, goes_on, {}


@pytest.mark.parametrize("num_envs", [1, 2])
def test_agents_have_the_spaces_of_their_episode(num_envs: int) -> None:
    Sized.num_made = 0
    with MultiAgentEnvRunner(Sized, num_envs=num_envs, seed=0) as runner:
        result = runner.sample(num_episodes=6, random_actions=True)
        packs = [runner.sample(num_timesteps=3, random_actions=True) for _ in range(5)]
    sizes = set()
    for episode in [*result, *(chunk for chunks in packs for chunk in chunks)]:
        for agent_episode in episode.agent_episodes.values():
            assert (
                agent_episode.get_observations().shape[1:]
                == agent_episode.observation_space.shape
                == (agent_episode.action_space.n,)
            )
            assert agent_episode.get_actions().max(initial=0) < agent_episode.action_space.n
            sizes.add(agent_episode.action_space.n)
        assert episode.observation_space.keys() == episode.action_space.keys() == {"a", "b"}
    assert sizes == {2, 3, 5}


def test_random_actions_in_recreated_spaces_are_legal() -> None:
    with MultiAgentEnvRunner(
        lambda: generated_agents_env_action_mask_info_v0.raw_env(max_cycles=3), num_envs=2, seed=0
    ) as runner:
        episodes = runner.sample(num_episodes=4, random_actions=True)
    agent_episodes = [agent_episode for episode in episodes for agent_episode in episode.agent_episodes.values()]
    assert sum(map(len, agent_episodes)) > 50
    for agent_episode in agent_episodes:
        for t, action in enumerate(agent_episode.get_actions()):
            assert agent_episode.get_infos(t)["action_mask"][action]
            assert agent_episode.get_observations(t) in agent_episode.observation_space


def test_random_actions_in_recreated_spaces_depend_on_seed() -> None:
    def drawn() -> list[Any]:
        Sized.num_made = 0
        with MultiAgentEnvRunner(Sized, num_envs=2, seed=3) as runner:
            result = runner.sample(num_episodes=6, random_actions=True)
        return [
            agent_episode.get_actions().tolist()
            for episode in result
            for agent_episode in episode.agent_episodes.values()
        ]

    first = drawn()
    assert first == drawn()
    assert len({str(actions) for actions in first}) > 6  # no episode draws another's actions again


class Unlike(Sized):
    """Environment in which agent b observes more than agent a."""

    def size(self, agent: str) -> int:
        return 3 if agent == "b" else 2


def test_agents_of_one_module_with_other_shapes_are_named() -> None:
    messages = r"module 'default_policy': agent 'b' observes arrays of shape \[3\], agent 'a' of \[2\]; map agents with"
    with MultiAgentEnvRunner(Unlike, Always(0)) as runner, pytest.raises(ShapeMismatch, match=messages):
        runner.sample(num_timesteps=2)
    policies = {"a": Always(0), "b": Always(0)}
    with MultiAgentEnvRunner(Unlike, policies, agent_to_module_mapping_fn=lambda agent, _: agent) as runner:
        (episode,) = runner.sample(num_episodes=1)
    assert {
        agent: agent_episode.observation_space.shape for agent, agent_episode in episode.agent_episodes.items()
    } == {
        "a": (2,),
        "b": (3,),
    }


class Nobody(Sized):
    """Environment whose reset returns no agents."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents: list[str] = []
        return {}, {}


class NobodysTurn(AECEnv[str, np.ndarray, int]):
    """Turn-based environment whose reset returns no agents."""

    metadata = {"name": "nobody"}

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents: list[str] = []


@pytest.mark.parametrize("make", [Nobody, NobodysTurn])
def test_reset_without_agents_raises(make: Any) -> None:
    for request in ({"num_episodes": 1}, {"num_timesteps": 3}):
        with pytest.raises(EpisodeStateError, match=r"env\.agents is empty"):
            MultiAgentEnvRunner(make).sample(random_actions=True, **request)


class Spread(MultiAgentObservationPreprocessor):
    """Preprocessor that changes nothing, and counts how often it was bound to spaces."""

    times = 0

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        self.times += 1
        return input_observation_space

    def preprocess(self, observations: Any, episode: Any) -> Any:
        return observations


def test_joint_preprocessor_gets_new_spaces_only_of_new_agents() -> None:
    Sized.num_made, counting = 0, Spread()
    with MultiAgentEnvRunner(lambda: Sized((4, 2, 2)), Always(0)) as runner:
        episodes = runner.sample(num_episodes=2)
        other_sample = runner.sample(num_episodes=1, random_actions=True)
    box, actions = episodes[0].observation_space["a"], episodes[0].action_space["a"]
    learner = multi_agent_learner({"default_policy": box}, {"default_policy": actions}, joint=[counting])
    learner(episodes=episodes[:1])
    times = counting.times
    learner(episodes=episodes)
    assert counting.times == times
    assert set(learner.joint.observation_space.spaces) == {"a", "b"}
    assert other_sample[0].observation_space["a"] != box

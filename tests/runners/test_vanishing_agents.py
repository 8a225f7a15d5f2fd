"""Agents that are left out of a game's dicts without a flag, and may come back."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from episode_runners import MultiAgentEnvRunner
from episodes.errors import InvalidArgument
from episodes.replay import MultiAgentEpisodeReplayBuffer

LENGTH, LAST_SEEN = 6, 2


class Vanishing:
    """Game of two agents in which b is not observed after step 2. An observation is the step, a reward is 2 ** step.

    Args:
        flags: "all" has one flag for all agents, "each" one for each observed agent, "both" has both.
        has_rewards: b gets rewards after it has vanished.
        ending: "terminated" or "truncated".
        back_at: step at which b is observed again, or 0.
    """

    possible_agents = ["a", "b"]
    observation_spaces = dict.fromkeys("ab", gym.spaces.Box(-1e9, 1e9, (1,), np.float32))
    action_spaces = {agent: gym.spaces.Discrete(2) for agent in "ab"}

    def __init__(self, flags: str, has_rewards: bool, ending: str, back_at: int = 0) -> None:
        self.flags, self.has_rewards, self.ending, self.back_at = flags, has_rewards, ending, back_at

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return {agent: np.zeros(1, np.float32) for agent in "ab"}, {}

    def step(self, actions: Any) -> Any:
        self.t += 1
        is_seen = self.t <= LAST_SEEN or self.t == self.back_at
        assert ("b" in actions) == (self.t - 1 <= LAST_SEEN or self.t - 1 == self.back_at)  # who is seen, acts
        seen = "ab" if is_seen else "a"
        rewards = dict.fromkeys("ab" if self.has_rewards else seen, 2.0**self.t)
        flags = dict.fromkeys(seen, self.t == LENGTH) if self.flags != "all" else {}
        flags |= {"__all__": self.t == LENGTH} if self.flags != "each" else {}
        none = dict.fromkeys(flags, False)
        flags, others = (flags, none) if self.ending == "terminated" else (none, flags)
        return {agent: np.full(1, self.t, np.float32) for agent in seen}, rewards, flags, others, {}


def runner_of(*arguments: Any, **options: Any) -> MultiAgentEnvRunner:
    return MultiAgentEnvRunner(lambda: Vanishing(*arguments), num_envs=2, seed=0, **options)


def seen_of(episode: Any) -> tuple[list[float], list[float]]:
    return episode.get_observations()[:, 0].tolist(), episode.get_rewards().tolist()


@pytest.mark.parametrize("ending", ["terminated", "truncated"])
@pytest.mark.parametrize("flags", ["all", "both"])
def test_vanished_agent_ends_with_the_game_and_has_all_its_rewards(flags: str, ending: str) -> None:
    with runner_of(flags, True, ending, missing_final_observation="repeat") as runner:
        episodes = runner.sample(num_episodes=4, random_actions=True)
    for episode in episodes:
        assert seen_of(episode.agent_episodes["a"]) == ([*range(LENGTH + 1)], [2.0**t for t in range(1, LENGTH + 1)])
        assert seen_of(episode.agent_episodes["b"]) == ([0, 1, 2, 2], [2, 4, 8 + 16 + 32 + 64])
        for agent in "ab":
            assert (episode.agent_episodes[agent].is_terminated, episode.agent_episodes[agent].is_truncated) == (
                ending == "terminated",
                ending == "truncated",
            )


def test_truncation_of_a_vanished_agent_needs_an_observation() -> None:
    with (
        runner_of("both", True, "truncated") as runner,
        pytest.raises(InvalidArgument, match=r"agent 'b' .*observation"),
    ):
        runner.sample(num_episodes=2, random_actions=True)


@pytest.mark.parametrize("flags", ["all", "both"])
def test_vanished_agent_without_rewards_is_an_error_by_name(flags: str) -> None:
    with (
        runner_of(flags, False, "terminated") as runner,
        pytest.raises(InvalidArgument, match="agent 'b' at env step 6: no reward came since it acted at env step 2, "),
    ):
        runner.sample(num_episodes=2, random_actions=True)


@pytest.mark.parametrize("has_rewards", [True, False])
@pytest.mark.parametrize("flags", ["all", "both", "each"])
def test_agent_that_comes_back_has_one_longer_step(flags: str, has_rewards: bool) -> None:
    with runner_of(flags, has_rewards, "terminated", LENGTH) as runner:
        for episode in runner.sample(num_episodes=4, random_actions=True):
            between = 8 + 16 + 32 if has_rewards else 0
            assert seen_of(episode.agent_episodes["b"]) == ([0, 1, 2, LENGTH], [2, 4, between + 64])
            assert episode.agent_episodes["b"].is_terminated


@pytest.mark.parametrize("num_at_once", [1, 5, 100])
def test_vanished_agents_in_replay_equal_sampled_ones(num_at_once: int) -> None:
    buffer, num_steps = MultiAgentEpisodeReplayBuffer(1000), 0
    with runner_of("both", True, "terminated") as runner:
        while num_steps < 2 * LENGTH * 4:
            chunks = runner.sample(num_timesteps=num_at_once, random_actions=True)
            num_steps += sum(map(len, chunks))
            buffer.add(chunks)
    (stored,) = buffer.modules.values()
    whole = [episode for episode in stored.iter_episodes() if episode.is_terminated]
    assert {tuple(episode.get_rewards().tolist()) for episode in whole} == {
        tuple(2.0**t for t in range(1, LENGTH + 1)),
        (2.0, 4.0, 120.0),
    }

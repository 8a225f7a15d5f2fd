"""Public reports about several agents: one sentence on what the person did, and the right result here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from episodes import MultiAgentEpisode, gae, pack_agents, unpack_agents
from episodes.errors import InvalidArgument
from episodes.replay import MultiAgentEpisodeReplayBuffer


def begun(*agents: str) -> MultiAgentEpisode:
    """Return an episode that was reset, and in which all agents have the observation 0."""
    episode = MultiAgentEpisode(id_="game")
    episode.add_env_reset(observations=dict.fromkeys(agents, 0.0))
    return episode


def step(episode: MultiAgentEpisode, observations: dict[str, float], rewards: dict[str, float], **flags: Any) -> None:
    """Add a step in which all agents act that can act."""
    acting = [agent for agent in episode.agent_ids if agent in episode.get_agents_to_act()]
    episode.add_env_step(observations, dict.fromkeys(acting, 0), rewards, **flags)


def test_pettingzoo_loser_gets_its_reward_after_its_last_action() -> None:
    """PettingZoo: a user trained the loser of tic-tac-toe without its -1, which came after the other player's move."""
    episode = begun("x")
    step(episode, {"o": 1.0}, {"x": 0.0})
    step(episode, {"x": 2.0}, {"o": 0.0})
    step(episode, {"x": 3.0, "o": 3.0}, {"x": 1.0, "o": -1.0}, terminateds={"__all__": True})
    x, o = episode.agent_episodes["x"], episode.agent_episodes["o"]
    assert (list(x.get_rewards()), list(o.get_rewards())) == ([0.0, 1.0], [-1.0])
    assert (list(x.get_observations()), list(o.get_observations())) == ([0.0, 2.0, 3.0], [1.0, 3.0])
    assert x.is_terminated
    assert o.is_terminated


def test_pettingzoo_agent_skips_steps_and_comes_back() -> None:
    """PettingZoo: a user asked whether an agent may wait for some steps, and where its rewards of that time go."""
    episode = begun("a", "b")
    step(episode, {"a": 1.0}, {"a": 1.0, "b": 2.0})
    step(episode, {"a": 2.0}, {"a": 1.0, "b": 3.0})
    step(episode, {"a": 3.0, "b": 3.0}, {"a": 1.0, "b": 4.0})
    step(episode, {"a": 4.0, "b": 4.0}, {"a": 1.0, "b": 5.0}, truncateds={"__all__": True})
    b = episode.agent_episodes["b"]
    assert (list(b.get_observations()), list(b.get_rewards())) == ([0.0, 3.0, 4.0], [9.0, 5.0])


def test_agilerl_reset_when_the_first_agent_was_dead() -> None:
    """AgileRL: the environment was reset as soon as one agent was dead, though the others could still play."""
    episode = begun("a", "b")
    step(episode, {"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 1.0}, terminateds={"a": True})
    assert not episode.is_done
    step(episode, {"b": 2.0}, {"b": 1.0}, terminateds={"b": True})
    assert episode.is_done
    assert episode.is_terminated
    assert {agent: len(each) for agent, each in episode.agent_episodes.items()} == {"a": 1, "b": 2}


def test_rllib_time_limit_of_some_agents_while_others_terminate() -> None:
    """RLlib: the ending of an episode was undefined if some agents terminated and others were truncated."""
    episode = begun("a", "b")
    flags: Any = {"terminateds": {"a": True}, "truncateds": {"b": True}}
    step(episode, {"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 1.0}, **flags)
    assert (episode.is_terminated, episode.is_truncated) == (False, True)
    assert [each.is_terminated for each in episode.agent_episodes.values()] == [True, False]


def test_rllib_all_done_without_a_last_observation_of_an_agent_in_mid_step() -> None:
    """RLlib: a time limit for all without an agent's last observation counted as the end of its task."""
    episode = begun("a", "b")
    with pytest.raises(InvalidArgument, match="b"):
        step(episode, {"a": 1.0}, {"a": 1.0, "b": 2.0}, truncateds={"__all__": True})
    step(episode, {"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 2.0}, truncateds={"__all__": True})
    assert all(each.is_truncated and not each.is_terminated for each in episode.agent_episodes.values())


def test_flatland_agents_that_are_done_still_get_rewards() -> None:
    """Flatland with RLlib: the simulator returned rewards of agents that had ended before, which RLlib rejects."""
    episode = begun("a", "b")
    step(episode, {"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 1.0}, terminateds={"a": True})
    step(episode, {"b": 2.0}, {"a": 5.0, "b": 1.0}, terminateds={"b": True})
    assert list(episode.agent_episodes["a"].get_rewards()) == [1.0]
    assert episode.get_return() == 8.0  # not lost: it is a reward apart from the agent's steps


def test_rllib_agents_that_end_at_different_times_are_one_trajectory() -> None:
    """RLlib: agents of one policy ended at different times, and a batch had steps of several trajectories."""
    episode = begun("a", "b")
    step(episode, {"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 10.0}, terminateds={"a": True})
    step(episode, {"b": 2.0}, {"b": 10.0}, terminateds={"b": True})
    (pack,) = pack_agents([episode])
    _, targets = gae(
        pack.rewards, np.zeros(5), pack.terminated, pack.truncated, gamma=1.0, lambda_=1.0, offsets=pack.offsets
    )
    expected = {"a": [1.0], "b": [20.0, 10.0]}
    assert targets.tolist() == [value for agent in pack.agent_ids for value in expected[agent]]


def test_rllib_rewards_of_a_finished_episode_cannot_be_read() -> None:
    """RLlib: `get_rewards()` of a finished episode raised now and then, if an agent's last reward came without its
    observation.
    """
    episode = begun("a")
    step(episode, {"b": 1.0}, {"a": 1.0})
    step(episode, {"a": 2.0, "b": 2.0}, {"a": 2.0, "b": 4.0}, terminateds={"__all__": True})
    assert {agent: list(rewards) for agent, rewards in episode.get_rewards().items()} == {"a": [3.0], "b": [4.0]}
    assert unpack_agents(pack_agents([episode]))[0].get_return() == episode.get_return() == 7.0


def test_rllib_replay_of_agents_crosses_the_end_of_an_agent() -> None:
    """RLlib: n-step samples of a multi-agent buffer went on after the agent's last step."""
    episode = begun("a", "b")
    for t in range(1, 9):
        agents = ["a", "b"] if t <= 3 else ["b"]
        now = dict.fromkeys(agents, float(t))
        step(episode, now, dict.fromkeys(agents, 1.0), terminateds={"a": True} if t == 3 else {"b": t == 8})
    buffer = MultiAgentEpisodeReplayBuffer(100, seed=0)
    buffer.add([episode])
    for drawn in buffer.sample(100, n_step=4, gamma=1.0).values():
        assert np.array_equal(drawn.new_obs, drawn.obs + drawn.n_step)
        assert drawn.rewards.tolist() == drawn.n_step.tolist()

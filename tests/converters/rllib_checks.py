"""Tests of conversions from and to RLlib's episodes, run by `test_rllib.py` in a new process.

Importing RLlib changes the logging of a process.
"""

from __future__ import annotations

import copy
from typing import Any

import law
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode as RLlibMultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode as RLlibEpisode

from episodes import MultiAgentEpisode, SingleAgentEpisode
from episodes.converters import from_rllib, read, to_rllib
from episodes.errors import LostInConversion, WrongType
from episodes.testing.strategies import MultiAgentHistory, multi_agent_histories
from episodes.testing.strategies import spaces as drawn_spaces
from episodes.tracks import nested


@settings(max_examples=15, phases=[Phase.generate])
@given(data=st.data())
def test_rllib_round_trip_of_random_episodes_reports_every_difference(data: st.DataObject) -> None:
    original_episodes = data.draw(law.episode_lists(data.draw(drawn_spaces(text=True)), data.draw(drawn_spaces())))
    made, lost = to_rllib(original_episodes)
    back, second_report = from_rllib(made)
    assert not second_report
    for original, rllib_episode in zip(original_episodes, made, strict=True):
        assert (len(rllib_episode), rllib_episode.is_numpy) == (len(original), original.is_numpy)
        assert rllib_episode.get_return() == original.get_return()
    law.check_round_trip(original_episodes, back, lost)


def test_to_rllib_of_growing_episode_can_grow_and_return() -> None:
    episode = SingleAgentEpisode(id_="a")
    episode.add_env_reset(np.zeros(2), {"t": 0})
    episode.add_env_step(np.ones(2), 1, 0.5, {"t": 1}, extra_model_outputs={"vf": 0.1})
    (rllib_episode,), _ = to_rllib([episode])
    rllib_episode.add_env_step(np.ones(2), 0, 2.0, {"t": 2}, terminated=True, extra_model_outputs={"vf": 0.2})
    (back,), _ = from_rllib([rllib_episode], strict=True)
    assert (len(back), back.get_return(), back.is_terminated) == (2, 2.5, True)
    assert back.get_extra_model_outputs("vf") == [0.1, 0.2]
    assert len(episode) == 1


@pytest.mark.parametrize("id_", [0, ""])
def test_to_rllib_keeps_ids_that_are_false(id_: Any) -> None:
    made, lost = to_rllib([SingleAgentEpisode.from_arrays(np.zeros(2), [0], [0.0], id_=id_), MultiAgentEpisode(id_)])
    assert not lost
    assert [rllib_episode.id_ for rllib_episode in made] == [id_, id_]
    assert [episode.id_ for episode in from_rllib(made)[0]] == [id_, id_]


def test_from_rllib_reads_finalized_episode_without_steps() -> None:
    rllib_episode = RLlibEpisode(observations=[np.zeros(2)])
    (back,), _ = from_rllib([rllib_episode.to_numpy()])
    assert (len(back), back.is_numpy) == (0, True)


@settings(max_examples=12, phases=[Phase.generate])
@given(history=multi_agent_histories(missing_final_observation="raise"), lookback=st.integers(0, 3), done=st.booleans())
def test_rllib_round_trip_of_multi_agent_episodes_reports_every_difference(
    history: MultiAgentHistory, lookback: int, done: bool
) -> None:
    for chunk in history.chunks(lookback):
        original = copy.deepcopy(chunk).to_numpy() if done else chunk
        (rllib_episode,), lost = to_rllib([original])
        rllib_episode.validate()
        (back,), second_report = from_rllib([rllib_episode])
        lost.join(second_report)
        assert original.equals(back) or lost, (original, back)
        lost_names, names = lost_of_agents(original, back), {loss.what for loss in lost}
        guessed = {"when an agent saw", "when an agent acted"}  # counted back one by one, which may be right
        assert lost_names <= names <= lost_names | guessed, str(lost)
        assert (back.id_, back.env_t, back.env_t_started) == (original.id_, original.env_t, original.env_t_started)
        assert (back.is_terminated, back.is_truncated) == (original.is_terminated, original.is_truncated)
        for agent_id, line in original.agents.timelines.items():
            restored = back.agents.timelines[agent_id]
            assert line.episode.equals(restored.episode)
            assert (line.phase, str(line.extra)) == (restored.phase, str(restored.extra))
            assert nested.equal(line.action, restored.action)


def lost_of_agents(original: MultiAgentEpisode, back: MultiAgentEpisode) -> set[str]:
    """Return the names of data besides the agents' episodes that the restored episode lacks."""
    agents, lost = original.agents, set()
    for agent_id, line in agents.timelines.items():
        restored = back.agents.timelines[agent_id]
        differs = {
            "when an agent saw": list(line.observation_times) != list(restored.observation_times),
            "when an agent acted": list(line.action_times) != list(restored.action_times),
            "when an agent ended": line.ended_at != restored.ended_at,
            "that no reward came yet": (line.reward is None) != (restored.reward is None),
            "the type of a pending reward": line.reward is not None and type(line.reward) is not type(restored.reward),
        }
        lost |= {name for name, is_other in differs.items() if is_other}
    missing = {
        "infos without an observation": agents.loose_infos and not back.agents.loose_infos,
        "rewards before an agent's first observation or after its end": agents.rewards_apart,
        "agents that left no data": agents.departed and not back.agents.departed,
        "what was passed on by cut()": agents.passed_on is not None and back.agents.passed_on is None,
    }
    return lost | {name for name, is_gone in missing.items() if is_gone}


def test_to_rllib_reports_agent_that_acts_later_than_its_observation() -> None:
    game = MultiAgentEpisode(id_="game")
    game.add_env_reset(observations={"a": 0, "b": 0})
    game.add_env_step({"b": 1}, {"b": 1}, {"b": 1.0})
    game.add_env_step({"a": 1, "b": 2}, {"a": 1, "b": 1}, {"a": 1.0, "b": 1.0})
    _, report = to_rllib([game])
    assert [(loss.what, loss.first) for loss in report] == [("when an agent acted", "game")]
    with pytest.raises(LostInConversion, match="when an agent acted"):
        to_rllib([game], strict=True)


def test_from_rllib_continues_pending_action_after_cut() -> None:
    whole: Any = RLlibMultiAgentEpisode(id_="g")
    whole.add_env_reset(observations={"w": 0})
    whole.add_env_step({"b": 1}, {"w": 10}, {}, extra_model_outputs={"w": {"lp": 0.5}})
    whole.add_env_step({"w": 2}, {"b": 11}, {"w": 0.5})
    whole.add_env_step({"b": 3}, {"w": 12}, {"b": 1.0}, extra_model_outputs={"w": {"lp": 0.6}})
    (chunk,), _ = from_rllib([whole.cut(len_lookback_buffer=2)])
    assert chunk.env_t_started == 3
    chunk.add_env_step({"w": 4}, {}, {"w": 2.0})
    agent_episode = chunk.agents.timelines["w"].episode
    assert (agent_episode.get_rewards(), agent_episode.get_actions(), agent_episode.t_started) == ([2.0], [12], 1)
    episodes, _ = read([whole, whole])
    assert [episode.get_return() for episode in episodes] == [1.5, 1.5]


def test_from_rllib_of_wrong_type_raises_with_position() -> None:
    with pytest.raises(WrongType, match="item 0 is a int"):
        from_rllib([3])

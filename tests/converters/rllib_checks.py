"""RLlib's own episodes: equal both ways or named, alive on the other side, read by the doctor.

`test_rllib.py` runs these in a process of their own, since importing RLlib changes how a process logs.
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
from episodes.inspect import examine
from episodes.testing.strategies import MultiAgentHistory, multi_agent_histories
from episodes.testing.strategies import spaces as drawn_spaces
from episodes.tracks import nested


@settings(max_examples=15, phases=[Phase.generate])
@given(data=st.data())
def test_one_agents_episodes_come_back_equal_or_named(data: st.DataObject) -> None:
    given_ = data.draw(law.lists(data.draw(drawn_spaces(text=True)), data.draw(drawn_spaces())))
    made, lost = to_rllib(given_)
    back, more = from_rllib(made)
    assert not more
    for one, theirs, other in zip(given_, made, back, strict=True):
        assert (len(theirs), theirs.is_numpy) == (len(one), one.is_numpy)
        assert theirs.get_return() == one.get_return()
        assert law.unnamed(one, other, lost) == set(), (one, other, str(lost))
    assert law.told_for_nothing(given_, back, lost) == set()


def test_an_episode_grows_on_over_there_and_comes_back() -> None:
    episode = SingleAgentEpisode(id_="a")
    episode.add_env_reset(np.zeros(2), {"t": 0})
    episode.add_env_step(np.ones(2), 1, 0.5, {"t": 1}, extra_model_outputs={"vf": 0.1})
    (theirs,), _ = to_rllib([episode])
    theirs.add_env_step(np.ones(2), 0, 2.0, {"t": 2}, terminated=True, extra_model_outputs={"vf": 0.2})
    (back,), _ = from_rllib([theirs], strict=True)
    assert (len(back), back.get_return(), back.is_terminated) == (2, 2.5, True)
    assert back.get_extra_model_outputs("vf") == [0.1, 0.2]
    assert len(episode) == 1


@pytest.mark.parametrize("id_", [0, ""])
def test_ids_that_are_false_are_kept(id_: Any) -> None:
    made, lost = to_rllib([SingleAgentEpisode.from_arrays(np.zeros(2), [0], [0.0], id_=id_), MultiAgentEpisode(id_)])
    assert not lost
    assert [theirs.id_ for theirs in made] == [id_, id_]
    assert [own.id_ for own in from_rllib(made)[0]] == [id_, id_]


def test_what_rllib_finalizes_in_part_is_read() -> None:
    theirs = RLlibEpisode(observations=[np.zeros(2)])
    (back,), _ = from_rllib([theirs.to_numpy()])
    assert (len(back), back.is_numpy) == (0, True)


@settings(max_examples=12, phases=[Phase.generate])
@given(history=multi_agent_histories(missing_final_observation="raise"), lookback=st.integers(0, 3), done=st.booleans())
def test_several_agents_come_back_equal_but_for_what_is_named(
    history: MultiAgentHistory, lookback: int, done: bool
) -> None:
    for chunk in history.chunks(lookback):
        one = copy.deepcopy(chunk).to_numpy() if done else chunk
        (theirs,), lost = to_rllib([one])
        theirs.validate()
        (back,), more = from_rllib([theirs])
        lost.join(more)
        assert one.equals(back) or lost, (one, back)
        gone, names = lost_of_agents(one, back), {loss.what for loss in lost}
        guessed = {"when an agent saw", "when an agent acted"}  # counted back one by one, which may be right
        assert gone <= names <= gone | guessed, str(lost)
        assert (back.id_, back.env_t, back.env_t_started) == (one.id_, one.env_t, one.env_t_started)
        assert (back.is_terminated, back.is_truncated) == (one.is_terminated, one.is_truncated)
        for agent_id, line in one.agents.timelines.items():
            other = back.agents.timelines[agent_id]
            assert line.episode.equals(other.episode)
            assert (line.phase, str(line.extra)) == (other.phase, str(other.extra))
            assert nested.equal(line.action, other.action)


def lost_of_agents(one: MultiAgentEpisode, back: MultiAgentEpisode) -> set[str]:
    """What is not there any more of what several agents have beside their episodes."""
    agents, lost = one.agents, set()
    for agent_id, line in agents.timelines.items():
        other = back.agents.timelines[agent_id]
        differs = {
            "when an agent saw": list(line.observation_times) != list(other.observation_times),
            "when an agent acted": list(line.action_times) != list(other.action_times),
            "when an agent ended": line.ended_at != other.ended_at,
            "that no reward came yet": (line.reward is None) != (other.reward is None),
            "the type of a pending reward": line.reward is not None and type(line.reward) is not type(other.reward),
        }
        lost |= {name for name, is_other in differs.items() if is_other}
    gone = {
        "infos without an observation": agents.loose_infos and not back.agents.loose_infos,
        "rewards before an agent's first observation or after its end": agents.rewards_apart,
        "agents that left no data": agents.departed and not back.agents.departed,
        "what was passed on by cut()": agents.passed_on is not None and back.agents.passed_on is None,
    }
    return lost | {name for name, is_gone in gone.items() if is_gone}


def test_an_agent_that_acts_later_than_it_saw_is_named() -> None:
    game = MultiAgentEpisode(id_="game")
    game.add_env_reset(observations={"a": 0, "b": 0})
    game.add_env_step({"b": 1}, {"b": 1}, {"b": 1.0})
    game.add_env_step({"a": 1, "b": 2}, {"a": 1, "b": 1}, {"a": 1.0, "b": 1.0})
    _, report = to_rllib([game])
    assert [(loss.what, loss.first) for loss in report] == [("when an agent acted", "game")]
    with pytest.raises(LostInConversion, match="when an agent acted"):
        to_rllib([game], strict=True)


def test_an_agent_of_rllib_that_waits_at_a_cut_goes_on_here() -> None:
    whole: Any = RLlibMultiAgentEpisode(id_="g")
    whole.add_env_reset(observations={"w": 0})
    whole.add_env_step({"b": 1}, {"w": 10}, {}, extra_model_outputs={"w": {"lp": 0.5}})
    whole.add_env_step({"w": 2}, {"b": 11}, {"w": 0.5})
    whole.add_env_step({"b": 3}, {"w": 12}, {"b": 1.0}, extra_model_outputs={"w": {"lp": 0.6}})
    (chunk,), _ = from_rllib([whole.cut(len_lookback_buffer=2)])
    assert chunk.env_t_started == 3
    chunk.add_env_step({"w": 4}, {}, {"w": 2.0})
    own = chunk.agents.timelines["w"].episode
    assert (own.get_rewards(), own.get_actions(), own.t_started) == ([2.0], [12], 1)
    found, _ = read([whole, whole])
    assert [one.get_return() for one in found] == [1.5, 1.5]


def test_the_doctor_reads_episodes_of_rllib() -> None:
    seen = [np.full(2, np.nan)] * 6
    theirs = [RLlibEpisode(observations=seen, actions=[0] * 5, rewards=[0.0] * 5, len_lookback_buffer=0)]
    assert examine(read(theirs)[0])


def test_something_else_is_refused_by_its_place() -> None:
    with pytest.raises(WrongType, match="item 0 is a int"):
        from_rllib([3])

"""Rules and errors of `MultiAgentEpisode`, and equality with a single-agent episode for one agent."""

from __future__ import annotations

import copy
import pickle
import time
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from episodes.errors import (
    ChunkMismatch,
    EpisodeStateError,
    InvalidArgument,
    ShapeMismatch,
    StepOutOfRange,
    TrackMismatch,
    UnknownKey,
    WrongType,
)
from episodes.multi_agent import MultiAgentEpisode
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested
from tests.reference_multi_agent import plain


def turn_based(num_steps: int = 5) -> MultiAgentEpisode:
    """Return a game in turns: a observes at 0, 2, 4, b at 1, 3, 5. The rewards of each action come in two parts."""
    episode = MultiAgentEpisode(id_="game")
    episode.add_env_reset(observations={"a": 0})
    steps = [
        ({"b": 1}, {"a": 10}, {"a": 1.0}),
        ({"a": 2}, {"b": 11}, {"b": 0.5, "a": 0.25}),
        ({"b": 3}, {"a": 12}, {"a": 2.0}),
        ({"a": 4}, {"b": 13}, {"b": 4.0}),
        ({"b": 5}, {"a": 14}, {"a": 8.0}),
    ]
    for step in steps[:num_steps]:
        episode.add_env_step(*step)
    return episode


def parallel(num_steps: int = 4, **ending: Any) -> MultiAgentEpisode:
    """Return an episode of two agents that step at every env step."""
    episode = MultiAgentEpisode(id_="both")
    episode.add_env_reset(observations={"a": 0, "b": 100})
    for t in range(1, num_steps + 1):
        flags = ending if t == num_steps else {}
        step = ({"a": t, "b": 100 + t}, {"a": 10 + t, "b": 20 + t}, {"a": 1.0, "b": 0.5})
        episode.add_env_step(*step, **flags)
    return episode


# --- rule 1: pending steps -----------------------------------------------------------------------------------


def test_action_is_pending_until_next_observation():
    episode = turn_based(1)
    assert len(episode.agent_episodes["a"]) == 0
    assert episode.get_actions(-1) == {"a": 10}
    assert episode.get_rewards(-1) == {"a": 1.0}
    episode.add_env_step({"a": 2}, {"b": 11}, {"b": 0.5, "a": 0.25})
    current = episode.agent_episodes["a"]
    assert (current.get_actions(), current.get_rewards(), current.get_observations()) == ([10], [1.25], [0, 2])
    assert episode.get_actions() == {"a": [10], "b": [11]}
    assert episode.get_agents_to_act() == episode.get_agents_that_stepped() == {"a"}


def test_getters_of_some_agents_and_repr():
    episode = turn_based()
    assert episode.get_observations([]) == {}
    assert episode.get_observations(-1, "zz") == {}
    assert episode.get_observations(None, ["a"]) == {"a": [0, 2, 4]}
    assert episode.get_observations(9, fill=-7) == {"a": -7, "b": -7}
    assert (len(episode), episode.env_t, episode.agent_steps()) == (5, 5, 4)
    assert repr(episode) == "MultiAgentEpisode(game: 5 env steps, 2 agents, 1 pending, return 15.75, ongoing)"


def test_one_hot_actions_use_space_start_and_pending():
    space = {"a": spaces.Discrete(3, start=10), "b": spaces.Discrete(3, start=11)}
    for finish in (False, True):
        episode = MultiAgentEpisode(action_space=space)
        episode.add_env_reset(observations={"a": 0})
        episode.add_env_step({"b": 1}, {"a": 10}, {})
        episode.add_env_step({"a": 2}, {"b": 11}, {"a": 1.0})
        episode.add_env_step({"b": 3}, {"a": 12}, {"b": 1.0})
        episode = episode.to_numpy() if finish else episode
        hot = plain(episode.get_actions(one_hot_discrete=True))
        assert hot == {"a": [[1, 0, 0], [0, 0, 1]], "b": [[1, 0, 0]]}
        filled = plain(episode.get_actions(fill=0, one_hot_discrete=True))
        assert filled == {"a": [[1, 0, 0], [0, 0, 0], [0, 0, 1]], "b": [[0, 0, 0], [1, 0, 0], [0, 0, 0]]}
        assert plain(episode.get_actions(-1, one_hot_discrete=True)) == {"a": [0, 0, 1]}


# --- rules 2 and 3: endings ----------------------------------------------------------------------------------


def test_constructor_done_agent_ends_at_last_observation():
    data = {
        "observations": [{"a": 0, "b": 0}, {"a": 1, "b": 1}, {"b": 2}, {"b": 3}],
        "actions": [{"a": 1, "b": 1}, {"b": 1}, {"b": 1}],
        "rewards": [{"a": 1.0, "b": 1.0}, {"b": 1.0}, {"b": 1.0}],
        "len_lookback_buffer": 0,
    }
    episode = MultiAgentEpisode(**data, terminateds={"a": True})
    assert episode[:2].get_terminateds() == {"a": True, "b": False, "__all__": False}
    assert episode[:2].agent_episodes["a"].is_terminated
    assert MultiAgentEpisode(**data, truncateds={"a": True})[:1].get_truncateds()["a"]
    waiting = {**data, "actions": [{"a": 1, "b": 1}, {"a": 1, "b": 1}, {"b": 1}]}
    waiting["rewards"] = [{"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 1.0}, {"b": 1.0}]
    in_a_step = MultiAgentEpisode(**waiting, terminateds={"a": True})
    assert not in_a_step[:2].get_terminateds()["a"]
    assert in_a_step.get_terminateds()["a"]


def test_truncated_agent_without_observation_raises_or_repeats():
    episode = turn_based(1)
    before = episode.get_state()
    with pytest.raises(InvalidArgument, match=r"agent 'a' at env step 2: it is truncated without a last observation"):
        episode.add_env_step({}, {"b": 11}, {"b": 1.0}, truncateds={"__all__": True})
    assert plain(without_duration(episode.get_state())) == plain(without_duration(before))
    lenient = MultiAgentEpisode(missing_final_observation="repeat")
    lenient.add_env_reset(observations={"a": 0})
    lenient.add_env_step({}, {"a": 1}, {"a": 2.0}, truncateds={"a": True})
    assert lenient.get_observations() == {"a": [0, 0]}
    assert (lenient.is_terminated, lenient.is_truncated) == (False, True)


def test_agent_without_pending_action_ends():
    episode = turn_based(2)
    episode.add_env_step({"b": 3}, {}, {"b": 1.0, "a": 7.0}, terminateds={"a": True})
    assert episode.agent_episodes["a"].is_terminated
    assert len(episode.agent_episodes["a"]) == 1
    assert episode.get_agents_to_act() == {"b"}
    assert episode.get_returns(include_pending=True)["a"] == 8.25
    with pytest.raises(InvalidArgument, match="agent 'a' cannot act at env step 3: it is done since env step 3"):
        episode.add_env_step({}, {"a": 1}, {})


# --- rule 4: rewards that belong to no step ------------------------------------------------------------------


def test_rewards_before_first_observation_are_separate():
    episode = parallel(1)
    episode.add_env_step({"a": 2, "b": 102}, {"a": 1, "b": 1}, {"a": 1.0, "b": 0.5, "c": 3.0})
    episode.add_env_step({"a": 3, "b": 103, "c": 0}, {"a": 1, "b": 1}, {"a": 1.0, "b": 0.5, "c": 4.0})
    episode.add_env_step({"c": 1}, {"c": 5}, {"c": 0.5})
    assert episode.agent_episodes["c"].get_rewards() == [0.5]
    assert episode.get_returns() == {"a": 3.0, "b": 1.5, "c": 0.5}
    assert episode.get_returns(include_pending=True)["c"] == 7.5
    successor = episode.cut()
    assert successor.get_return(include_pending=True) == 0


def test_get_return_counts_pending_by_both_names():
    episode = turn_based(3)
    assert episode.get_return() == episode.get_return(include_hanging_rewards=False) == 1.75
    assert episode.get_return(include_pending=True) == episode.get_return(include_hanging_rewards=True) == 3.75
    assert episode[1:].agent_t_started == {"a": 0, "b": 0}


def test_agent_ids_tuple_may_be_one_agent():
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={("t", 1): 5, "t": 6, 1: 7}, infos={("x", 1): {"k": 1}, "x": {"k": 2}})
    assert episode.get_observations(0, ("t", 1)) == {("t", 1): 5}
    assert episode.get_observations(0, ("t", 2)) == {"t": 6}
    assert episode.get_observations(0, [("t", 1), 1]) == {("t", 1): 5, 1: 7}
    assert episode.get_infos(0, ("x", 1)) == {("x", 1): {"k": 1}}


# --- rule 5: cutting -----------------------------------------------------------------------------------------


def test_cut_multi_agent_chunk_rejects_steps():
    chunk = turn_based(3)
    chunk.cut()
    with pytest.raises(EpisodeStateError, match="go on with the successor"):
        chunk.add_env_step({"a": 4}, {"b": 13}, {"b": 4.0})


@pytest.mark.parametrize("finish", [False, True])
def test_second_cut_returns_equal_successor(finish):
    chunk = turn_based(3).to_numpy() if finish else turn_based(3)
    first, second = chunk.cut(2), chunk.cut(2)
    assert first.equals(second)
    assert plain(first.get_actions(-1)) == plain(second.get_actions(-1)) == {"a": 12}
    assert plain(chunk.get_actions(-1)) == {}
    assert chunk.get_return(include_pending=True) + first.get_return(include_pending=True) == 3.75
    restored = MultiAgentEpisode.from_state(chunk.get_state())
    assert restored.cut(2).equals(first)
    for step in (({"a": 4}, {"b": 13}, {"b": 4.0}), ({"b": 5}, {"a": 14}, {"a": 8.0})):
        second.add_env_step(*step)
    chunk.concat_episode(second)
    assert chunk.to_numpy().equals(turn_based(5).to_numpy())


def test_concat_restores_mapping_of_pickled_chunk():
    chunk = MultiAgentEpisode("e", agent_to_module_mapping_fn=lambda agent, episode: f"module of {agent}")
    chunk.add_env_reset(observations={"a": 0})
    successor = chunk.cut()
    joined = pickle.loads(pickle.dumps(chunk))
    joined.concat_episode(successor)
    joined.add_env_step({"a": 1, "b": 1}, {"a": 0}, {"a": 1.0})
    assert joined.agent_episodes["b"].module_id == joined.module_for("b") == "module of b"


def test_cut_before_reset_returns_unreset_episode():
    episode = MultiAgentEpisode("e", agent_to_module_mapping_fn=lambda agent, episode: "m", env_t_started=3)
    successor = episode.cut(2)
    assert (successor.id_, successor.is_reset, len(successor), successor.env_t) == ("e", False, 0, 3)
    successor.add_env_reset(observations={"a": 0})
    successor.add_env_step({"a": 1}, {"a": 1}, {"a": 1.0})
    assert successor.module_for("a") == "m"
    assert not episode.is_reset


@pytest.mark.parametrize("finish", [False, True])
def test_concat_of_other_chunk_raises_and_changes_nothing(finish):
    chunk = turn_based(3)
    successor = chunk.cut()
    successor.add_env_step({"a": 4}, {"b": 13}, {"b": 4.0})
    if finish:
        chunk.to_numpy()
    game = turn_based(3)
    moved = MultiAgentEpisode.from_state({**successor.get_state(), "id_": "another"})
    later = successor.cut()
    before = plain(without_duration(chunk.get_state()))
    for wrong in (later, moved):
        with pytest.raises(ChunkMismatch):
            chunk.concat_episode(wrong)
        assert plain(without_duration(chunk.get_state())) == before
    game.cut()
    stranger = MultiAgentEpisode(id_="game", observations=[{"x": 1}], env_t_started=3)
    with pytest.raises(ChunkMismatch, match="agent 'a' is ongoing"):
        game.concat_episode(stranger)


# --- rule 6: slices ------------------------------------------------------------------------------------------


def test_custom_data_of_part_is_a_copy():
    episode = turn_based()
    current = episode.agent_episodes["a"]
    episode.custom_data["log"], current.custom_data["log"] = [1], [1]
    for part in (episode[1:4], episode.cut()):
        part.custom_data["log"].append(2)
        part.agent_episodes["a"].custom_data["log"].append(2)
        assert episode.custom_data == current.custom_data == {"log": [1]}


# --- rule 7: cost --------------------------------------------------------------------------------------------


def test_add_env_step_touches_active_agents_only():
    class Counted(dict):
        reads = 0

        def get(self, key, default=None):
            Counted.reads += 1
            return super().get(key, default)

        def __iter__(self):
            Counted.reads += 1000
            return super().__iter__()

        def items(self):
            Counted.reads += 1000
            return super().items()

        def values(self):
            Counted.reads += 1000
            return super().values()

    reads = []
    for num_agents, num_steps in ((10, 50), (1000, 50), (10, 500)):
        episode = MultiAgentEpisode()
        agents = [f"agent {i}" for i in range(num_agents)]
        episode.add_env_reset(observations=dict.fromkeys(agents, 0))
        episode.agents.timelines = Counted(episode.agents.timelines)
        for t in range(num_steps):
            Counted.reads = 0
            episode.add_env_step({"agent 0": t}, {"agent 0": t}, {"agent 0": 1.0})
        reads.append(Counted.reads)
        assert len(episode.agents.timelines["agent 1"].observation_times) == 1
    assert len(set(reads)) == 1


def test_slice_of_finalized_multi_agent_episode_is_view():
    episode = parallel(5000).to_numpy()
    part = episode[1000:4000]
    for agent, current in part.agent_episodes.items():
        for name in ("observations", "actions", "rewards"):
            first_value, whole = getattr(current, name).data, getattr(episode.agent_episodes[agent], name).data
            assert np.shares_memory(first_value, whole)


# --- rule 8: one agent that always steps ---------------------------------------------------------------------

SPACES = {"observation_space": spaces.Box(-99, 99, (2,), np.float32), "action_space": spaces.Discrete(50)}


def pair(lookback: int, finish: bool, num_steps: int = 6) -> tuple[SingleAgentEpisode, MultiAgentEpisode]:
    """Return the same episode as a single-agent episode and as a multi-agent episode of one agent."""
    observations = [np.array([t, -t], np.float32) for t in range(num_steps + 1)]
    actions, rewards = [10 + t for t in range(num_steps)], [t / 4 for t in range(num_steps)]
    infos, values = [{"t": t} for t in range(num_steps + 1)], [float(t) for t in range(num_steps)]
    single = SingleAgentEpisode(
        id_="e",
        observations=observations,
        actions=actions,
        rewards=rewards,
        infos=infos,
        extra_model_outputs={"vf": values},
        len_lookback_buffer=lookback,
        **SPACES,
    )
    several = MultiAgentEpisode(
        id_="e",
        observations=[{"a": item} for item in observations],
        actions=[{"a": item} for item in actions],
        rewards=[{"a": item} for item in rewards],
        infos=[{"a": item} for item in infos],
        extra_model_outputs=[{"a": {"vf": item}} for item in values],
        len_lookback_buffer=lookback,
        **{name: {"a": space} for name, space in SPACES.items()},
    )
    return (single.to_numpy(), several.to_numpy()) if finish else (single, several)


INDICES = [
    None,
    *(0, 1, 3, 5, 6, 9, -1, -3, -6, -7, -9, np.int64(2), np.int32(-2)),
    *(slice(None), slice(1, 3), slice(-3, None), slice(-9, 2), slice(2, 99), slice(None, None, 2), slice(4, 1, -1)),
    *([0, 2, -1], (1, 1), range(3), np.array([2, 0]), [], [0, 9]),
]
CASES = [
    {"indices": indices, "neg_index_as_lookback": neg, "fill": fill}
    for indices in INDICES
    for neg in (False, True)
    for fill in (None, 7)
]


def outcome(call: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return call(*args, **kwargs)
    except StepOutOfRange:
        return "out of range"


def same(first_value: Any, second_value: Any) -> bool:
    """Return True for equal results of equal types and dtypes."""
    if isinstance(second_value, np.ndarray):
        return (
            isinstance(first_value, np.ndarray)
            and first_value.dtype == second_value.dtype
            and np.array_equal(first_value, second_value)
        )
    if isinstance(second_value, list) and isinstance(first_value, list):
        return len(first_value) == len(second_value) and all(map(same, first_value, second_value))
    return type(first_value) is type(second_value) and bool(np.all(first_value == second_value))


@pytest.mark.parametrize("env_steps", [True, False])
@pytest.mark.parametrize("finish", [False, True])
@pytest.mark.parametrize("lookback", [0, 2])
def test_one_agent_getters_equal_single_agent_episode(lookback, finish, env_steps):
    single, several = pair(lookback, finish)
    for case in CASES:
        for name in ("observations", "actions", "rewards", "infos"):
            recorded = dict(case, fill={"no": 1}) if name == "infos" and case["fill"] is not None else case
            expected = outcome(getattr(single, f"get_{name}"), **recorded)
            answer = outcome(getattr(several, f"get_{name}"), **recorded, env_steps=env_steps)
            check_same(answer, expected, (name, recorded))
        for name in ("actions",):
            expected = outcome(getattr(single, f"get_{name}"), **case, one_hot_discrete=True)
            answer = outcome(getattr(several, f"get_{name}"), **case, one_hot_discrete=True, env_steps=env_steps)
            check_same(answer, expected, ("one-hot", name, case))
        expected = outcome(single.get_extra_model_outputs, "vf", **case)
        answer = outcome(several.get_extra_model_outputs, "vf", **case, env_steps=env_steps)
        check_same(answer, expected, ("vf", case))


def check_same(answer: Any, expected: Any, case: Any) -> None:
    if not isinstance(expected, (int, float, np.generic, dict, str)) and len(expected) == 0:
        assert answer in ({}, "out of range") or len(answer.get("a", ())) == 0, case
    elif isinstance(expected, str):
        assert answer == expected, case
    else:
        assert same(answer["a"], expected), case


@pytest.mark.parametrize("finish", [False, True])
def test_one_agent_chunks_equal_single_agent_episode(finish):
    for lookback in (0, 2):
        single, several = pair(lookback, finish)
        for bounds in (slice(1, 3), slice(None, 2), slice(2, None), slice(-2, 99), slice(3, 3)):
            for expected_value in (None, 0, 1, 5):
                first_value = several.slice(bounds, len_lookback_buffer=expected_value).agent_episodes["a"]
                second_value = single.slice(bounds, len_lookback_buffer=expected_value)
                assert first_value.lookback == second_value.lookback
                assert first_value.t_started == second_value.t_started
                assert same(
                    first_value.get_observations(slice(-99, None)), second_value.get_observations(slice(-99, None))
                )
                assert same(first_value.get_actions(slice(-99, None)), second_value.get_actions(slice(-99, None)))
        for expected_value in (0, 3):
            first, second = (copy.deepcopy(episode) for episode in (single, several))
            second_value, first_value = first.cut(expected_value), second.cut(expected_value)
            step = np.array([7, -7], np.float32), 16, 1.5
            second_value.add_env_step(*step, {"t": 7}, terminated=True, extra_model_outputs={"vf": 6.0})
            first_value.add_env_step(
                *({"a": part} for part in step),
                {"a": {"t": 7}},
                terminateds={"a": True},
                extra_model_outputs={"a": {"vf": 6.0}},
            )
            assert same(
                first_value.get_observations(slice(-99, None))["a"], second_value.get_observations(slice(-99, None))
            )
            first.concat_episode(second_value)
            second.concat_episode(first_value)
            current = second.agent_episodes["a"]
            assert (first.is_terminated, first.t, len(first)) == (second.is_terminated, current.t, len(second))
            assert same(current.get_rewards(), first.get_rewards())
            assert list(current.get_infos()) == list(first.get_infos())


# --- constructor, setters, state -----------------------------------------------------------------------------


def test_constructor_data_becomes_lookback_by_default():
    data = {
        "observations": [{"a": 0, "b": 1}, {"a": 1}, {"a": 2, "b": 3}],
        "actions": [{"a": 10, "b": 20}, {"a": 11}],
        "rewards": [{"a": 1.0, "b": 2.0}, {"a": 1.0}],
    }
    episode = MultiAgentEpisode(**data, env_t_started=7, agent_t_started={"a": 5})
    assert (len(episode), episode.lookback, episode.env_t) == (0, 2, 7)
    assert episode.get_observations() == {"a": [2], "b": [3]}
    assert episode.get_actions(slice(-2, None)) == {"a": [10, 11], "b": [20]}
    assert episode.agent_episodes["a"].t_started == 5
    some = MultiAgentEpisode(**data, len_lookback_buffer=1, agent_module_ids={"b": "other"}, terminateds=True)
    assert (len(some), some.lookback, some.is_terminated) == (1, 1, True)
    assert some.get_observations() == {"a": [1, 2], "b": [3]}
    assert some.agent_episodes["b"].get_actions() == [20]
    assert (some.module_for("a"), some.agent_episodes["b"].module_id) == ("default_policy", "other")
    with pytest.raises(TrackMismatch, match="actions"):
        MultiAgentEpisode(observations=data["observations"], rewards=data["rewards"])
    with pytest.raises(InvalidArgument, match="missing_final_observation"):
        MultiAgentEpisode(missing_final_observation="ignore")


def test_module_mapping_is_called_once_per_agent():
    calls = []
    episode = MultiAgentEpisode(agent_to_module_mapping_fn=lambda agent, episode: calls.append(agent) or agent.upper())
    episode.add_env_reset(observations={"a": 0, "b": 0})
    episode.add_env_step({"a": 1}, {"a": 1, "b": 1}, {"a": 0.0})
    successor = episode.cut()
    assert [successor.module_for(agent) for agent in "ab"] == ["A", "B"]
    assert calls == ["a", "b"]
    assert {current.module_id for current in successor.agent_episodes.values()} == {"A", "B"}


@pytest.mark.parametrize("finish", [False, True])
def test_setters_write_own_steps_or_nothing(finish):
    episode = turn_based().to_numpy() if finish else turn_based()
    episode.set_rewards(new_data={"a": [5.0, 6.0], "b": [7.0, 8.0]})
    assert plain(episode.get_rewards(env_steps=False)) == {"a": [5.0, 6.0], "b": [7.0, 8.0]}
    episode.set_observations(new_data={"b": [9]}, at_indices=[0])
    assert plain(episode.get_observations(agent_ids="b")) == {"b": [9, 3, 5]}
    episode.set_actions(new_data={"b": 0}, at_indices=-1)
    assert plain(episode.get_actions(agent_ids="b")) == {"b": [11, 0]}
    with pytest.raises(ShapeMismatch):
        episode.set_rewards(new_data={"a": [1.0, 1.0], "b": [1.0]})
    assert plain(episode.get_rewards(agent_ids="a", env_steps=False)) == {"a": [5.0, 6.0]}
    with pytest.raises(UnknownKey, match="no agent 'zz'"):
        episode.set_rewards(new_data={"zz": [1.0]})
    episode.set_extra_model_outputs(key="adv", new_data={"b": [1.0, 2.0]})
    assert plain(episode.get_extra_model_outputs("adv")) == {"b": [1.0, 2.0]}
    with pytest.raises(EpisodeStateError, match="waits"):
        episode.set_extra_model_outputs(key="adv", new_data={"a": [1.0, 2.0]})
    episode.set_extra_model_outputs(key="adv", new_data={"b": [9.0]}, at_indices=[1])
    assert plain(episode.get_extra_model_outputs(None, 1)) == {"b": {"adv": 1.0}}


def test_extra_outputs_of_pending_step_are_read_by_key():
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 0})
    episode.add_env_step({"b": 1}, {"a": 10}, {"a": 1.0}, extra_model_outputs={"a": {"vf": 0.5}})
    assert episode.get_extra_model_outputs("vf", -1) == {"a": 0.5}
    successor = episode.cut()
    successor.add_env_step({"a": 2}, {"b": 1}, {}, extra_model_outputs={"b": {"logp": 1.0}})
    assert successor.agent_episodes["a"].get_extra_model_outputs("vf") == [0.5]
    assert successor.get_extra_model_outputs() == {"b": {"logp": [1.0]}}
    assert successor.get_extra_model_outputs(None, 0) == {"b": {"logp": 1.0}}
    with pytest.raises(UnknownKey, match="nothing"):
        successor.get_extra_model_outputs("nothing")


def without_duration(state: Any) -> Any:
    """Return a state without its duration."""
    if isinstance(state, dict):
        return {key: without_duration(value) for key, value in state.items() if key != "duration_s"}
    return state


def test_multi_agent_state_shares_no_memory():
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": np.zeros(2)})
    episode.add_env_step({}, {"a": np.ones(2)}, {"a": 1.0})
    state = episode.get_state()
    copied = MultiAgentEpisode.from_state(state)
    state["agents"]["a"]["action"][0] = 9
    state["agents"]["a"]["episode"]["observations"][0][0] = 9
    assert copied.equals(episode)
    assert episode.get_actions(-1)["a"].tolist() == [1, 1]
    copied.add_env_step({"a": np.zeros(2)}, {}, {"a": 1.0})
    assert len(copied.agent_episodes["a"]) == 1
    assert not copied.equals(episode)


@pytest.mark.parametrize("ends", [True, False])
def test_ended_or_cut_episode_pickles_with_lambda_mapping(ends):
    episode = MultiAgentEpisode(agent_to_module_mapping_fn=lambda agent, episode: "m")
    episode.add_env_reset(observations={"a": 0})
    episode.add_env_step({"a": 1}, {"a": 0}, {"a": 1.0}, terminateds={"__all__": ends})
    if not ends:
        episode.cut()
    copied = pickle.loads(pickle.dumps(episode))
    assert copied.equals(episode)
    assert copied.module_for("a") == "m"


def test_env_times_return_observation_and_action_steps():
    observation_times, action_times = turn_based().clocks("a")
    assert (observation_times.tolist(), action_times.tolist()) == ([0, 2, 4], [0, 2, 4])
    observation_times, action_times = turn_based()[3:5].to_numpy().clocks("b")
    assert (observation_times.tolist(), action_times.tolist()) == ([3, 5], [3])
    with pytest.raises(UnknownKey, match="no agent 'zz'"):
        turn_based().clocks("zz")


# --- what is refused -----------------------------------------------------------------------------------------

WAITING = {"observations": {}, "actions": {}, "rewards": {}}
REFUSED = {
    "an action of an agent that does not exist": (
        {"actions": {"zz": 1}},
        InvalidArgument,
        "'zz' cannot act at env step 1: it has had no obs",
    ),
    "an action of an agent that waits": (
        {"actions": {"a": 1}},
        InvalidArgument,
        "agent 'a' cannot act at env step 1: it acted at env step 0",
    ),
    "a missing reward": (
        {"observations": {"b": 3}, "actions": {"b": 1}},
        InvalidArgument,
        "agent 'b' at env step 2: no reward came",
    ),
    "an observation without an action": (
        {"observations": {"b": 3}, "rewards": {"b": 1.0}},
        InvalidArgument,
        "agent 'b' at env step 2: an observation, though it has not acted",
    ),
    "an observation of another shape": (
        {"observations": {"a": np.zeros(3)}, "rewards": {"a": 1.0}},
        ShapeMismatch,
        "agent 'a' at env step 2",
    ),
    "a truncated agent without a last observation": (
        {"truncateds": {"a": True}},
        InvalidArgument,
        "agent 'a' at env step 2: it is truncated",
    ),
    "extra outputs of an agent that does not act": (
        {"extra_model_outputs": {"b": {"vf": 1.0}}},
        InvalidArgument,
        "agent 'b' at env step 2",
    ),
    "a late second mistake": (
        {"observations": {"a": 2, "b": 3}, "actions": {"b": 1}, "rewards": {"a": 1.0}},
        InvalidArgument,
        "agent 'b'",
    ),
}


@pytest.mark.parametrize(("step", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_env_step_raises_and_changes_nothing(step, error, message):
    episode = turn_based(1)
    before = plain(without_duration(episode.get_state()))
    with pytest.raises(error) as caught:
        episode.add_env_step(**{**WAITING, **step})
    assert message in str(caught.value)
    assert plain(without_duration(episode.get_state())) == before
    episode.add_env_step({"a": 2}, {"b": 11}, {"b": 0.5, "a": 0.25})
    assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args


def test_ended_agent_is_rejected_in_later_chunks():
    episode = parallel(2, terminateds={"a": True})
    for chunk in (episode, episode.cut(), MultiAgentEpisode.from_state(episode.get_state())):
        if chunk is episode:
            continue
        with pytest.raises((InvalidArgument, EpisodeStateError)):
            chunk.add_env_step({"b": 1}, {"a": 1, "b": 1}, {"b": 1.0})
    successor = parallel(2, terminateds={"a": True}).cut()
    successor.add_env_step({"b": 103}, {"b": 1}, {"b": 1.0})
    later = successor.cut()
    assert later.agent_ids == {"b"}
    assert later.get_terminateds() == {"a": True, "b": False, "__all__": False}
    with pytest.raises(InvalidArgument, match="agent 'a' cannot act at env step 3: it is done since env step 2"):
        later.add_env_step({"b": 104}, {"a": 1, "b": 1}, {"b": 1.0})
    with pytest.raises(InvalidArgument, match="an observation after its end"):
        later.add_env_step({"a": 3}, {"b": 1}, {"b": 1.0})


def test_multi_agent_extra_outputs_with_other_keys_raise():
    episode = parallel(1)
    with pytest.raises(TrackMismatch, match="agent 'a' acts at env step 1"):
        episode.add_env_step(
            {"a": 2, "b": 102}, {"a": 1, "b": 1}, {"a": 1.0, "b": 1.0}, extra_model_outputs={"a": {"vf": 1.0}}
        )
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 0})
    episode.add_env_step({"a": 1}, {"a": 1}, {"a": 1.0}, extra_model_outputs={"a": {"vf": 1.0}})
    with pytest.raises(TrackMismatch, match=r"\['vf'\]"):
        episode.add_env_step({"a": 2}, {"a": 1}, {"a": 1.0})


def test_env_step_in_wrong_state_raises():
    step = ({"a": 1}, {"a": 1}, {"a": 1.0})
    with pytest.raises(EpisodeStateError, match="before the reset"):
        MultiAgentEpisode().add_env_step(*step)
    with pytest.raises(EpisodeStateError, match="after the end"):
        parallel(1, terminateds={"__all__": True}).add_env_step(*step)
    with pytest.raises(EpisodeStateError, match="finalized"):
        parallel(1).to_numpy().add_env_step(*step)
    with pytest.raises(EpisodeStateError, match="add_env_reset after a reset"):
        parallel(1).add_env_reset(observations={"a": 1})
    with pytest.raises(EpisodeStateError, match="after the end"):
        parallel(1, truncateds={"__all__": True}).cut()
    with pytest.raises(WrongType, match="sliced by env steps"):
        parallel(1)[0]  # type: ignore[index]
    with pytest.raises(StepOutOfRange, match=r"observations\[9\]"):
        parallel(1).get_observations(9)
    with pytest.raises(InvalidArgument, match="return_list"):
        parallel(1).get_observations(0, return_list=True)


def test_fill_of_nested_observations_per_leaf():
    for finish in (False, True):
        episode = MultiAgentEpisode()
        episode.add_env_reset(observations={"a": {"x": np.zeros(2), "y": 1}})
        episode.add_env_step({"b": {"x": np.ones(2), "y": 2}}, {"a": 0}, {"a": 1.0})
        episode = episode.to_numpy() if finish else episode
        filled = plain(episode.get_observations(fill=-1, return_list=True))
        assert filled[0] == {"a": {"x": [0, 0], "y": 1}, "b": {"x": [-1, -1], "y": -1}}


def test_multi_agent_duration_stops_at_end():
    episode = parallel(3, terminateds={"__all__": True})
    first = episode.get_duration_s()
    time.sleep(0.002)
    assert episode.get_duration_s() == first > 0


@pytest.mark.parametrize("finish", [False, True])
def test_multi_agent_duration_continues_after_concat(finish):
    episode = turn_based(3)
    successor = episode.cut()
    if finish:
        successor.to_numpy()
    episode.concat_episode(successor)
    spent = episode.get_duration_s()
    assert (episode.get_duration_s() > spent) == (not finish)


@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1, 1, (3,)),
        spaces.MultiDiscrete([2, 3]),
        spaces.Dict(a=spaces.Box(-1, 1, (3,)), b=spaces.Discrete(3)),
        spaces.Tuple((spaces.Discrete(2), spaces.Discrete(3))),
    ],
)
def test_fill_before_first_agent_step_has_space_shape(space, one_hot):
    episode = MultiAgentEpisode(observation_space={"a": space}, action_space={"a": space})
    episode.add_env_reset(observations={"a": space.sample()})
    calls = {"fill": 0, "one_hot_discrete": one_hot}
    ways = [(at, env_steps) for at in (-1, [-1, -2], slice(-2, None)) for env_steps in (False, True)]
    growing = [episode.get_actions(at, env_steps=env_steps, **calls)["a"] for at, env_steps in ways]
    episode.to_numpy()
    finished = [episode.get_actions(at, env_steps=env_steps, **calls)["a"] for at, env_steps in ways]
    for element, array in zip(growing, finished, strict=True):
        assert nested.equal(nested.stack(element) if isinstance(element, list) else element, array)

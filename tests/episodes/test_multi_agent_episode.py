"""Rules and errors of `MultiAgentEpisode`, and equality with a single-agent episode for one agent."""

from __future__ import annotations

import pickle
from itertools import product
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

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
from episodes.testing.strategies import episode_arguments
from episodes.tracks import nested
from episodes.tracks.infos.infos import same_info
from tests.reference_multi_agent import plain
from tests.strategies import indices


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


# --- rule 4: rewards that belong to no step ------------------------------------------------------------------


def test_agent_ids_tuple_may_be_one_agent():
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={("t", 1): 5, "t": 6, 1: 7}, infos={("x", 1): {"k": 1}, "x": {"k": 2}})
    assert episode.get_observations(0, ("t", 1)) == {("t", 1): 5}
    assert episode.get_observations(0, ("t", 2)) == {"t": 6}
    assert episode.get_observations(0, [("t", 1), 1]) == {("t", 1): 5, 1: 7}
    assert episode.get_infos(0, ("x", 1)) == {("x", 1): {"k": 1}}


# --- rule 5: cutting -----------------------------------------------------------------------------------------


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


class Lookups(dict):
    """A dict that cannot be iterated."""

    __iter__ = keys = items = values = None  # type: ignore[assignment]


def test_add_env_step_touches_active_agents_only():
    episode = turn_based(1)
    episode.agents.timelines = Lookups(episode.agents.timelines)
    episode.add_env_step(**TURN)
    assert episode.agents.timelines["a"].observation_times.tolist() == [0, 2]


# --- rule 8: one agent that always steps ---------------------------------------------------------------------

BOUNDS = st.none() | st.integers(-9, 9)


@st.composite
def one_agent(draw: st.DrawFn, ended: bool | None = None) -> tuple[SingleAgentEpisode, MultiAgentEpisode]:
    """Draw an episode as a single-agent episode and as a multi-agent episode of agent "a"."""
    arguments = draw(episode_arguments(ended=ended))
    tracks = {name: arguments[name] for name in ("observations", "infos", "actions", "rewards")}
    outputs = [
        dict(zip(arguments["extra_model_outputs"], items, strict=True))
        for items in zip(*arguments["extra_model_outputs"].values(), strict=True)
    ]
    flags = {f"{name}s": {"a": arguments[name]} for name in ("terminated", "truncated")}
    several = MultiAgentEpisode(
        **{name: [{"a": item} for item in items] if items else None for name, items in tracks.items()},
        **{
            name: None if arguments[name] is None else {"a": arguments[name]}
            for name in ("observation_space", "action_space")
        },
        extra_model_outputs=[{"a": output} for output in outputs] or None,
        len_lookback_buffer=arguments["len_lookback_buffer"],
        agent_t_started={"a": arguments["t_started"]},
        env_t_started=arguments["t_started"],
        **flags,
    )
    single = SingleAgentEpisode(**arguments)
    return (single.to_numpy(), several.to_numpy()) if draw(st.booleans()) else (single, several)


def outcome(call: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return call(*args, **kwargs)
    except StepOutOfRange:
        return "out of range"


def same(first: Any, second: Any) -> bool:
    """Return True for equal results of equal types and dtypes."""
    if isinstance(second, list):
        return isinstance(first, list) and len(first) == len(second) and all(map(same, first, second))
    pairs = zip(nested.leaves(first), nested.leaves(second), strict=True)
    return same_info(first, second) and all(
        type(a) is type(b) and getattr(a, "dtype", None) == getattr(b, "dtype", None) for a, b in pairs
    )


def has_rows(batch: Any) -> bool:
    return bool(batch) if isinstance(batch, list) else all(map(len, nested.leaves(batch)))


@settings(max_examples=200)
@given(pair=one_agent(), indices=indices, neg=st.booleans())
def test_one_agent_getters_equal_single_agent_episode(pair, indices, neg):
    single, several = pair
    names = [
        "observations",
        "infos",
        "actions",
        "rewards",
        *(single.extra_model_outputs if single.rewards.total else ()),
    ]
    hot = [False, True] if single.action_space is not None else [False]
    fills = [None, 1] if single.rewards.total else [None]
    for name, fill, one_hot, env_steps in product(names, fills, hot, [False, True]):
        options = {"neg_index_as_lookback": neg, "fill": {"no": 1} if fill and name == "infos" else fill}
        if name == "actions":
            options["one_hot_discrete"] = one_hot
        key = [name] if name in single.extra_model_outputs else []
        getter = "get_extra_model_outputs" if key else f"get_{name}"
        expected = outcome(getattr(single, getter), *key, indices, **options)
        answer = outcome(getattr(several, getter), *key, indices, **options, env_steps=env_steps)
        if isinstance(expected, str):
            assert answer == expected
        elif isinstance(indices, int | np.integer) or has_rows(expected):
            assert same(answer["a"], expected)
        else:
            assert answer == "out of range" or not has_rows(answer.get("a", []))


@given(pair=one_agent(ended=False), start=BOUNDS, stop=BOUNDS, lookback=st.none() | st.integers(0, 6))
def test_one_agent_chunks_equal_single_agent_episode(pair, start, stop, lookback):
    parts = [episode.slice(slice(start, stop), len_lookback_buffer=lookback) for episode in pair]
    assert_same_chunk(*parts)
    tails = [episode.cut(3 if lookback is None else lookback) for episode in pair]
    assert_same_chunk(*tails)
    for head, tail in zip(pair, tails, strict=True):
        head.concat_episode(tail)
    assert_same_chunk(*pair)


def assert_same_chunk(single: SingleAgentEpisode, several: MultiAgentEpisode) -> None:
    agent_episode = several.agent_episodes["a"]
    assert agent_episode.tracks == single.tracks
    assert (agent_episode.lookback, agent_episode.t_started) == (single.lookback, single.t_started)
    assert (len(several), agent_episode.ending) == (len(single), single.ending)


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


# --- what is refused -----------------------------------------------------------------------------------------


def with_outputs() -> MultiAgentEpisode:
    """Return an episode of two agents that both have stepped twice, with an extra output."""
    episode = MultiAgentEpisode(id_="outputs")
    episode.add_env_reset(observations=OUTPUTS_STEP["observations"])
    for _ in range(2):
        episode.add_env_step(**OUTPUTS_STEP)
    return episode


NO_STEP: dict[str, Any] = {"observations": {}, "actions": {}, "rewards": {}}
EACH: dict[str, Any] = {"a": np.zeros(2), "b": np.zeros(2)}
TURN = {"observations": {"a": 2}, "actions": {"b": 11}, "rewards": {"b": 0.5, "a": 0.25}}
OUTPUTS_STEP: dict[str, Any] = {"observations": EACH, "actions": {"a": 0, "b": 0}, "rewards": {"a": 1.0, "b": 1.0}}
OUTPUTS_STEP |= {"extra_model_outputs": {"a": {"x": np.zeros(2)}, "b": {"x": np.zeros(2)}}}
REFUSED_TURNS = [
    ({"actions": {"zz": 1}}, InvalidArgument, "'zz' cannot act at env step 1: it has had no obs"),
    ({"actions": {"a": 1}}, InvalidArgument, "agent 'a' cannot act at env step 1: it acted at env step 0"),
    ({"observations": {"b": 3}, "actions": {"b": 1}}, InvalidArgument, "agent 'b' at env step 2: no reward came"),
    ({"observations": {"b": 3}, "rewards": {"b": 1.0}}, InvalidArgument, "agent 'b' at env step 2: an observation, th"),
    ({"observations": {"a": np.zeros(3)}, "rewards": {"a": 1.0}}, ShapeMismatch, "agent 'a' at env step 2"),
    ({"truncateds": {"a": True}}, InvalidArgument, "agent 'a' at env step 2: it is truncated without a last obs"),
    ({"truncateds": {"__all__": True}}, InvalidArgument, "agent 'a' at env step 2: it is truncated"),
    ({"extra_model_outputs": {"b": {"vf": 1.0}}}, InvalidArgument, "agent 'b' at env step 2"),
    ({"observations": {"a": 2, "b": 3}, "actions": {"b": 1}, "rewards": {"a": 1.0}}, InvalidArgument, "agent 'b'"),
]
REFUSED_OUTPUTS = [
    ({"rewards": {"a": 1.0, "b": np.ones(1)}}, ShapeMismatch, "agent 'b' at env step 3: the reward has shape (1,)"),
    ({"rewards": {"a": None, "b": 1.0}}, WrongType, "agent 'a' at env step 3: the reward is a NoneType"),
    ({"observations": EACH | {"b": np.zeros(3)}}, ShapeMismatch, "agent 'b' at env step 3: the observation has shape"),
    ({"extra_model_outputs": {"a": {"x": np.zeros(2)}, "b": {"x": np.zeros(3)}}}, ShapeMismatch, "agent 'b' acts at"),
    ({"extra_model_outputs": {"a": {"x": np.zeros(2)}}}, TrackMismatch, "agent 'b' acts at env step 2"),
    ({"extra_model_outputs": None}, TrackMismatch, "its steps so far have ['x']"),
]
REFUSED = [(turn_based, NO_STEP, TURN, *row) for row in REFUSED_TURNS]
REFUSED += [(with_outputs, OUTPUTS_STEP, OUTPUTS_STEP, *row) for row in REFUSED_OUTPUTS]


@pytest.mark.parametrize(("make", "base", "good", "wrong", "error", "message"), REFUSED)
def test_bad_env_step_raises_and_changes_nothing(make, base, good, wrong, error, message):
    episode = make(1) if make is turn_based else make()
    before = plain(without_duration(episode.get_state()))
    with pytest.raises(error) as caught:
        episode.add_env_step(**base | wrong)
    assert message in str(caught.value)
    assert plain(without_duration(episode.get_state())) == before
    episode.add_env_step(**good)
    assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args


def cut_chunk() -> MultiAgentEpisode:
    episode = parallel(1)
    episode.cut()
    return episode


STEP = ({"a": 1}, {"a": 1}, {"a": 1.0})
ALL_TRUNCATED = {"truncateds": {"__all__": True}}
WRONG_CALLS = [
    (MultiAgentEpisode, lambda e: e.add_env_step(*STEP), EpisodeStateError, "before the reset"),
    (lambda: parallel(1, **ALL_TRUNCATED), lambda e: e.add_env_step(*STEP), EpisodeStateError, "step after the end"),
    (lambda: parallel(1).to_numpy(), lambda e: e.add_env_step(*STEP), EpisodeStateError, "finalized"),
    (lambda: parallel(1, **ALL_TRUNCATED), lambda e: e.cut(), EpisodeStateError, "cut after the end"),
    (cut_chunk, lambda e: e.add_env_step(*STEP), EpisodeStateError, "go on with the successor"),
    (parallel, lambda e: e.add_env_reset(observations={"a": 1}), EpisodeStateError, "add_env_reset after a reset"),
    (parallel, lambda e: e[0], WrongType, "sliced by env steps"),
    (parallel, lambda e: e.get_observations(9), StepOutOfRange, r"observations\[9\]"),
    (parallel, lambda e: e.get_observations(0, return_list=True), InvalidArgument, "return_list"),
    (parallel, lambda e: e.get_extra_model_outputs("nothing"), UnknownKey, "nothing"),
    (parallel, lambda e: e.set_rewards(new_data={"zz": [1.0]}), UnknownKey, "no agent 'zz'"),
    (parallel, lambda e: e.clocks("zz"), UnknownKey, "no agent 'zz'; there are"),
]


@pytest.mark.parametrize(("make", "call", "error", "message"), WRONG_CALLS)
def test_multi_agent_call_in_wrong_state_raises(make, call, error, message):
    with pytest.raises(error, match=message):
        call(make())


def test_ended_agent_is_rejected_in_later_chunks():
    episode = parallel(2, terminateds={"a": True})
    for chunk in (episode.cut(), MultiAgentEpisode.from_state(episode.get_state())):
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


@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1, 1, (3,)),
        spaces.Discrete(4),
        spaces.MultiDiscrete([2, 3]),
        spaces.Dict(a=spaces.Box(-1, 1, (3,)), b=spaces.Discrete(3)),
        spaces.Tuple((spaces.Discrete(2), spaces.Discrete(3))),
    ],
)
def test_fill_before_first_step_has_space_shape(space, one_hot):
    single = SingleAgentEpisode(action_space=space)
    several = MultiAgentEpisode(observation_space={"a": space}, action_space={"a": space})
    single.add_env_reset(0)
    several.add_env_reset(observations={"a": space.sample()})
    calls = {"fill": 0, "one_hot_discrete": one_hot}
    ways = [(at, env_steps) for at in (-1, [-1, -2], slice(-2, None)) for env_steps in (None, False, True)]

    def read(at, env_steps):
        if env_steps is None:
            return single.get_actions(at, **calls)
        return several.get_actions(at, env_steps=env_steps, **calls)["a"]

    growing = [read(*way) for way in ways]
    single.to_numpy()
    several.to_numpy()
    for element, way in zip(growing, ways, strict=True):
        assert isinstance(element, list) == (way[0] != -1)
        assert nested.equal(nested.stack(element) if isinstance(element, list) else element, read(*way))
        assert nested.equal(read(-1, way[1]), read(-1, None))

"""Ragged tracks: items of different lengths, against lists of lists."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import indices

from episodes import (
    EpisodePack,
    MultiAgentEpisode,
    Ragged,
    RaggedKind,
    SingleAgentEpisode,
    pack_agents,
    unpack_agents,
)
from episodes.errors import InvalidArgument, InvalidFill, ShapeMismatch, TrackMismatch, WrongType

KINDS: dict[str, Any] = {"observations": "i4", "actions": np.int32, "logp": RaggedKind(np.dtype("f4"))}
ITEMS = st.lists(st.lists(st.integers(-9, 9), max_size=4), max_size=6)


def ragged_of(items: list[list[int]]) -> Ragged:
    return Ragged.from_lengths(np.array([v for item in items for v in item], np.int32), [*map(len, items)])


@given(ITEMS, indices.filter(lambda index: index is not None))
def test_ragged_indices_equal_those_of_a_list(items: list[list[int]], index: Any) -> None:
    ragged, is_simple = ragged_of(items), isinstance(index, (int, np.integer, slice))
    index = index if is_simple else np.array(list(index), np.int64)
    try:
        rows = np.arange(len(items))[index]
    except IndexError:
        with pytest.raises(IndexError):
            ragged[index]
        return
    if isinstance(index, (int, np.integer)):
        assert ragged[index].tolist() == items[rows]
        return
    assert ragged[index].tolist() == [items[i] for i in rows]
    assert ragged[index].shape == (len(rows), -1)
    assert is_simple or ragged[list(index)].equals(ragged.take(index))


@given(ITEMS, st.integers(0, 6), st.integers(0, 6))
def test_ragged_slice_equals_a_copy(items: list[list[int]], start: int, stop: int) -> None:
    part, whole = ragged_of(items)[start:stop], ragged_of(items[start:stop])
    assert part == whole
    assert part.copy() == part
    assert pickle.loads(pickle.dumps(part)) == part
    assert [item.tolist() for item in part] == items[start:stop]
    assert part.nbytes == whole.nbytes
    assert part.padded(-1).shape == (len(part), max(map(len, items[start:stop]), default=0))


@given(st.lists(ITEMS, min_size=1, max_size=3))
def test_ragged_concatenated_equals_joined_lists(parts: list[list[list[int]]]) -> None:
    joined = Ragged.concatenated([ragged_of([[7], *part])[1:] for part in parts])
    assert joined.tolist() == [item for part in parts for item in part]


@pytest.mark.parametrize(
    ("values", "offsets", "error"),
    [
        ([1, 2], [0, 3], ShapeMismatch),
        ([1, 2], [-1, 2], ShapeMismatch),
        ([1, 2], [0, 2, 1], ShapeMismatch),
        ([1, 2], [0.0, 1.0], WrongType),
        ([1, 2], [], WrongType),
        (["a"], [0, 1], WrongType),
        (1, [0], WrongType),
    ],
)
def test_ragged_offsets_that_do_not_fit_are_rejected(values: Any, offsets: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="Ragged"):
        Ragged(values, offsets)


def test_ragged_is_no_array() -> None:
    ragged = Ragged([1, 2, 3], [0, 1, 3])
    for call in (np.asarray, np.array):
        with pytest.raises(ShapeMismatch, match="ragged items are no array"):
            call(ragged)
    with pytest.raises(WrongType, match="one index"):
        ragged[0, 1]
    with pytest.raises(TypeError):
        ragged + 1  # type: ignore[operator]
    with pytest.raises(ValueError, match="read-only"):
        ragged[0][0] = 5


@pytest.mark.parametrize(
    ("dtype", "fill"), [("u1", -1), ("i4", np.nan), ("i4", 0.5), ("?", 2), ("f4", "a"), ("f4", [1])]
)
def test_padded_rejects_a_fill_that_the_dtype_cannot_hold(dtype: str, fill: Any) -> None:
    with pytest.raises(InvalidFill, match=r"padded\(fill="):
        Ragged(np.zeros(1, dtype), [0, 1, 1]).padded(fill)


# --- episodes -----------------------------------------------------------------------------------------------------


@st.composite
def conversations(draw: st.DrawFn, min_steps: int = 0) -> tuple[dict[str, list[Any]], SingleAgentEpisode]:
    """Draw lists of items, and a growing episode with these items."""
    steps = draw(st.integers(min_steps, 5))
    turns = st.lists(st.integers(0, 50), max_size=4)
    items: dict[str, list[Any]] = {
        "observations": draw(st.lists(turns, min_size=steps + 1, max_size=steps + 1)),
        "actions": draw(st.lists(turns, min_size=steps, max_size=steps)),
    }
    items["logp"] = [[v / 4 for v in action] for action in items["actions"]]
    as_list = draw(st.booleans())
    convert = (lambda item, dtype: item) if as_list else np.array
    episode = SingleAgentEpisode("a", ragged=KINDS)
    episode.add_env_reset(convert(items["observations"][0], "i4"))
    for t in range(steps):
        episode.add_env_step(
            convert(items["observations"][t + 1], "i4"),
            convert(items["actions"][t], "i4"),
            t,
            extra_model_outputs={"logp": convert(items["logp"][t], "f4")},
        )
    return items, episode


def as_lists(batch: Any) -> Any:
    return [np.asarray(item).tolist() for item in batch]


def is_one(index: Any) -> bool:
    return isinstance(index, (int, np.integer))


@pytest.mark.parametrize(
    ("kinds", "fill"), [({"tokens": "i4"}, {"tokens": [7], "image": np.ones(2)}), ({1: "i4"}, (np.ones(2), [7]))]
)
def test_getters_of_nested_ragged_tracks_without_items_return_the_fill(kinds: Any, fill: Any) -> None:
    episode = SingleAgentEpisode(ragged={"observations": "i4", "actions": kinds})
    episode.add_env_reset([1])
    for result in (episode.get_actions(0, fill=fill), *episode.get_actions([3, -1], fill=fill)):
        assert type(result) is type(fill)
        parts, expected = (list(v.values()) if isinstance(v, dict) else list(v) for v in (result, fill))
        assert [part.tolist() for part in parts] == [np.asarray(part).tolist() for part in expected]
    with pytest.raises(InvalidFill, match="items of the track are nested"):
        episode.get_actions(0, fill=[0])
    assert len(episode.to_numpy().actions) == 0


@given(conversations(min_steps=1), st.sampled_from([2, 4, 5]))
def test_unpickled_ragged_episode_grows_like_the_original(drawn: Any, protocol: int) -> None:
    items, episode = drawn
    part = pickle.loads(pickle.dumps(episode.slice(slice(0, 0)), protocol))
    for t in range(len(episode)):
        step = items["observations"][t + 1], items["actions"][t], t
        part.add_env_step(*step, extra_model_outputs={"logp": items["logp"][t]})
        part = pickle.loads(pickle.dumps(part, protocol))
    assert part.equals(episode)


def test_items_of_ragged_tracks_may_be_tensors_with_gradients() -> None:
    torch = pytest.importorskip("torch")
    episode = SingleAgentEpisode(ragged={"observations": "f4"})
    episode.add_env_reset(torch.ones(2, requires_grad=True))
    episode.add_env_step(torch.ones(3, dtype=torch.bfloat16), 0, 0.0)
    assert as_lists(episode.get_observations()) == [[1.0, 1.0], [1.0, 1.0, 1.0]]


def test_outputs_of_actions_share_offsets_in_packs_and_pages_show_items() -> None:
    episode = SingleAgentEpisode("a", ragged=KINDS)
    episode.add_env_reset([3])
    episode.add_env_step([1], [1, 2], 1.0, extra_model_outputs={"logp": [0.5, 1.0]})
    pack = EpisodePack.from_episodes([episode, episode])
    assert pack.extra_model_outputs["logp"].offsets is pack.actions.offsets
    for shown in (pack, episode, episode.to_numpy()):
        assert "Ragged" not in shown._repr_html_()


GOOD: dict[str, Any] = {"observation": [1], "action": [1, 2], "reward": 1.0}
GOOD |= {"extra_model_outputs": {"logp": [0.5, 1.0]}}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"observation": [1.5]}, "observations has dtype float64, which does not fit int32"),
        ({"observation": 1}, "observations has shape"),
        ({"action": [[1, 2]]}, r"actions has shape \[1, 2\]"),
        ({"action": [[1], [1, 2]]}, "actions is a list of items of several lengths"),
        ({"action": np.zeros(2)[None]}, "actions has shape"),
        (
            {"extra_model_outputs": {"logp": [0.5]}},
            r"outputs\['logp'\] has a length of 1, the action has 2",
        ),
        ({"action": []}, "has a length of 2, the action has 0"),
        ({"extra_model_outputs": {}}, r"\['logp'\] would stop early"),
    ],
)
def test_rejected_ragged_step_changes_nothing(wrong: dict[str, Any], message: str) -> None:
    for num_steps in (0, 1):
        episode = SingleAgentEpisode("a", ragged=KINDS)
        episode.add_env_reset([3])
        for _ in range(num_steps):
            episode.add_env_step(**GOOD)
        before, step = copy.deepcopy(episode), GOOD | wrong
        for flag in (False, True):
            with pytest.raises((ShapeMismatch, TrackMismatch), match=f"episode a: .*{message}"):
                episode.add_env_step(**step, terminated=flag)
            assert episode.equals(before)
        episode.add_env_step(**GOOD)
        assert len(episode) == num_steps + 1


@pytest.mark.parametrize(
    ("ragged", "error"),
    [
        ({"rewards": "f4"}, InvalidArgument),
        ({"infos": "f4"}, InvalidArgument),
        ({"loss_mask": "f4"}, TrackMismatch),
        ({"actions": "U5"}, WrongType),
        ({"actions": object}, WrongType),
        ({"actions": "no dtype"}, WrongType),
        (["actions"], WrongType),
    ],
)
def test_ragged_declarations_of_other_kinds_are_rejected(ragged: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"ragged|loss_mask"):
        SingleAgentEpisode(ragged=ragged)


@pytest.mark.parametrize("dtype", ["i4", ">i4", np.float32, bool])
def test_ragged_kind_dtype_is_that_object_of_native_arrays(dtype: Any) -> None:
    """Recording compares dtypes by `is`, which takes a third of the time of a conversion that changes nothing."""
    native = np.zeros(1, np.dtype(dtype).type)
    assert RaggedKind(np.dtype(dtype)).dtype is native.dtype


def test_outputs_beside_declared_ones_begin_with_the_first_step() -> None:
    episode = SingleAgentEpisode("a", ragged=KINDS)
    episode.add_env_reset([3])
    with pytest.raises(ShapeMismatch):
        episode.add_env_step([1], [1], 1.0, extra_model_outputs={"logp": [1.0, 2.0], "value": 0.5})
    assert list(episode.extra_model_outputs) == ["logp"]
    episode.add_env_step([1], [1], 1.0, extra_model_outputs={"logp": [1.0], "value": 0.5})
    assert list(episode.extra_model_outputs) == ["logp", "value"]


@given(conversations(min_steps=1), st.booleans())
def test_setters_of_ragged_tracks_keep_lengths_of_outputs(drawn: Any, finalized: bool) -> None:
    items, episode = drawn
    if finalized:
        episode.to_numpy()
    episode.set_observations(new_data=[5, 6, 7], at_indices=0)
    assert episode.get_observations(0).tolist() == [5, 6, 7]
    episode.set_observations(new_data=[[9]] * len(items["observations"]))
    assert as_lists(episode.get_observations()) == [[9]] * len(items["observations"])
    before = copy.deepcopy(episode)
    with pytest.raises(ShapeMismatch, match="one value for each"):
        episode.set_actions(new_data=[1] * 9, at_indices=0)
    with pytest.raises(ShapeMismatch, match="dtype"):
        episode.set_observations(new_data=[1.5], at_indices=0)
    with pytest.raises(InvalidFill, match=r"such as \[\]"):
        episode.get_actions(99, fill=0)
    assert episode.equals(before)
    episode.set_extra_model_outputs(key="mask", new_data=ragged_of(items["actions"]))
    assert as_lists(episode.get_extra_model_outputs("mask")) == items["actions"]


@given(conversations(min_steps=1))
def test_chunks_with_and_without_ragged_tracks_are_not_joined(drawn: Any) -> None:
    _, episode = drawn
    head = copy.deepcopy(episode)
    tail = head.cut()
    items: Any = {"observations": [tail.get_observations(0)] * 2, "actions": [0], "rewards": [1.0]}
    fixed = SingleAgentEpisode("a", **items, t_started=len(head), len_lookback_buffer=0)
    with pytest.raises(TrackMismatch):
        head.concat_episode(fixed)
    with pytest.raises(TrackMismatch):
        EpisodePack.from_episodes([episode, fixed])
    assert head.equals(copy.deepcopy(episode)) or head.equals(episode)


# --- several agents -----------------------------------------------------------------------------------------------


def game(seed: int, num_steps: int = 6, turn: int | None = None) -> tuple[MultiAgentEpisode, list[Any]]:
    """Return an episode of a talker with ragged tracks and a robot, and the arguments of its calls."""
    rng = np.random.default_rng(seed)
    episode = MultiAgentEpisode("g", ragged={"talker": {"observations": "i4", "actions": "i4", "logp": "f4"}})
    episode.add_env_reset(observations={"talker": [1, 2, 3], "robot": np.zeros(2)})
    calls = []
    for t in range(num_steps):
        words = rng.integers(0, 9, rng.integers(0, 4)).tolist()
        talks = t % 2 == 0
        step: Any = (
            {"robot": np.full(2, t)} if talks else {"robot": np.full(2, t), "talker": words},
            {"robot": 0} | ({"talker": words} if talks else {}),
            {"robot": 1.0, "talker": 0.5},
        )
        outputs = {"talker": {"logp": [w / 2 for w in words]}} if talks else None
        episode.add_env_step(*step, extra_model_outputs=outputs)
        calls.append((step, outputs))
    return episode, calls


@given(st.integers(0, 20), st.integers(0, 6), st.integers(0, 4))
def test_multi_agent_episodes_have_ragged_agents(seed: int, cut_at: int, lookback: int) -> None:
    whole, calls = game(seed)
    spoken = [step[1]["talker"] for step, outputs in calls if outputs]
    heard = [[1, 2, 3], *(step[0]["talker"] for step, outputs in calls if not outputs)]
    head, _ = game(seed, cut_at)
    tail = head.cut(lookback)
    for step, outputs in calls[cut_at:]:
        tail.add_env_step(*step, extra_model_outputs=outputs)
    assert pickle.loads(pickle.dumps(tail)).equals(tail)
    assert MultiAgentEpisode.from_state(tail.get_state()).equals(tail)
    for finalized in (False, True):
        first, second, joined = copy.deepcopy((head, tail, whole))
        if finalized:
            first, second, joined = first.to_numpy(), second.to_numpy(), joined.to_numpy()
        first.concat_episode(second)
        assert first.equals(joined)
        assert first.agent_episodes["talker"].tracks == joined.agent_episodes["talker"].tracks
        assert as_lists(first.get_observations()["talker"]) == heard
        assert as_lists(first.get_actions()["talker"]) == spoken
        assert first.get_observations(-1)["talker"].tolist() == heard[-1]
        assert first._repr_html_()
    assert [e.equals(whole.to_numpy()) for e in unpack_agents(pack_agents([whole]))] == [True]


@given(st.integers(0, 20), st.integers(0, 6), indices, st.booleans(), st.sampled_from([[], [7, 8]]))
def test_fill_of_ragged_agents_is_an_item(seed: int, num_steps: int, index: Any, env_steps: bool, fill: Any) -> None:
    episode, _ = game(seed, num_steps)
    options: Any = {"agent_ids": ["talker"], "env_steps": env_steps, "fill": fill}
    if is_one(index):
        index = [index]
    for name in ("get_observations", "get_actions"):
        growing = getattr(episode, name)(index, **options).get("talker", [])
        finished = getattr(copy.deepcopy(episode).to_numpy(), name)(index, **options).get("talker", [])
        assert as_lists(growing) == as_lists(finished)
        assert all(item.dtype == np.int32 for item in growing)
        if env_steps and index is not None and not isinstance(index, slice):
            beyond = [i for i, t in enumerate(np.asarray(index, int).tolist()) if abs(t) > num_steps + 1]
            assert all(growing[i].tolist() == fill for i in beyond)


def test_rejected_ragged_steps_of_agents_change_nothing() -> None:
    episode, _ = game(0, 4)
    before = copy.deepcopy(episode)
    wrong = [
        ({"robot": np.zeros(2)}, {"robot": 0, "talker": [1.5]}, {"logp": [0.5]}, "action has dtype"),
        ({"robot": np.zeros(2)}, {"robot": 0, "talker": [1]}, {"logp": [0.5, 1.0]}, "has a length of 2"),
        ({"robot": np.zeros(2), "talker": 7}, {"robot": 0, "talker": [1]}, {"logp": [0.5]}, "observation has shape"),
    ]
    for observations, actions, outputs, message in wrong:
        with pytest.raises(ShapeMismatch, match=f"agent 'talker' at env step .*{message}"):
            episode.add_env_step(
                observations, actions, {"robot": 1.0, "talker": 0.0}, extra_model_outputs={"talker": outputs}
            )
        assert episode.equals(before)
    with pytest.raises(TrackMismatch, match="extra model outputs"):
        episode.add_env_step({"robot": np.zeros(2)}, {"robot": 0, "talker": [1]}, {"robot": 1.0})
    assert episode.equals(before)
    with pytest.raises(InvalidArgument, match="agent 'a': ragged"):
        MultiAgentEpisode(ragged={"a": {"rewards": "f4"}})
    with pytest.raises(WrongType, match="from agent to a dict"):
        MultiAgentEpisode(ragged=["a"])  # type: ignore[arg-type]

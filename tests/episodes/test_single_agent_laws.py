"""Getters, slices, cuts, joins, finalization and pickles, compared with a reference of plain lists."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import PlainEpisode, read
from strategies import episodes, indices

from episodes import EpisodePack, Ragged, RaggedKind, SingleAgentEpisode
from episodes.tracks import ListTrack, nested

TRACKS = ("observations", "actions", "rewards", "infos")
BOUNDS = st.none() | st.integers(-12, 12) | st.integers(-12, 12).map(np.int64)
SLICES = st.builds(slice, st.integers(-9, 9), st.integers(-9, 9), st.sampled_from([1, 2, 3, -1, -2]))


def assert_same(answer: Any, expected: Any) -> None:
    """Assert that two items have equal values, of any dtype."""
    if isinstance(expected, dict) and not nested.leaves(expected):
        assert answer == expected
        return
    assert nested.equal(answer, expected), (answer, expected)


def assert_same_batch(answer: Any, expected: list[Any], finalized: bool) -> None:
    """Assert that a list, or arrays, equal the expected list item by item."""
    if not finalized or isinstance(answer, list):
        assert isinstance(answer, list)
        assert len(answer) == len(expected)
        for element, expected_item in zip(answer, expected, strict=True):
            assert_same(element, expected_item)
        return
    assert all(isinstance(leaf, np.ndarray | Ragged) and len(leaf) == len(expected) for leaf in nested.leaves(answer))
    for i, item in enumerate(expected):
        assert_same(nested.take(answer, i), item)


def assert_same_episode(episode: SingleAgentEpisode, reference: PlainEpisode) -> None:
    """Assert that all items, ids, times and the ending equal the reference."""
    everything = list(range(-reference.lookback, reference.num_steps))
    observed = [*everything, reference.num_steps]
    finalized = episode.is_numpy
    assert not finalized or not any(isinstance(track, ListTrack) for track in episode.tracks.all())
    for name, steps in zip(TRACKS, (observed, everything, everything, observed), strict=True):
        answer = getattr(episode, f"get_{name}")(steps, neg_index_as_lookback=True)
        assert_same_batch(answer, [reference.track(name)[s] for s in steps], finalized and name != "infos")
    assert sorted(episode.extra_model_outputs) == sorted(reference.extra)
    for key, track in reference.extra.items():
        answer = episode.get_extra_model_outputs(key, everything, neg_index_as_lookback=True)
        assert_same_batch(answer, [track[s] for s in everything], finalized)
    assert (len(episode), episode.lookback) == (reference.num_steps, reference.lookback)
    assert (episode.id_, episode.t_started, episode.t) == (
        "abc",
        reference.t_started,
        reference.t_started + len(episode),
    )
    assert (episode.is_terminated, episode.is_truncated) == (reference.terminated, reference.truncated)
    assert (episode.agent_id, episode.module_id, episode.multi_agent_episode_id) == ("agent", "module", "multi")
    assert episode.custom_data == {"weather": "rain"}
    episode.validate()


def get(episode: SingleAgentEpisode, name: str, indices: Any, **options: Any) -> Any:
    if name in TRACKS:
        return getattr(episode, f"get_{name}")(indices, **options)
    return episode.get_extra_model_outputs(name, indices, **options)


def draw_fill(data: st.DataObject, kind: Any, item: Any) -> tuple[Any, Any]:
    """Draw a fill for a track of a ragged kind or None, and the item that replaces missing items."""
    number, length = data.draw(st.sampled_from([1, 0.0])), data.draw(st.integers(0, 2))
    if kind is None:
        return number, nested.map_leaves(lambda leaf: np.full(np.shape(leaf), number), item)
    if isinstance(kind, RaggedKind):
        fill = np.ones((length, *kind.value_shape), kind.dtype)
        return fill, fill
    tokens = np.ones(length, kind["tokens"].dtype)
    return {"tokens": tokens, "image": 1}, {"tokens": tokens, "image": np.full((2, 2), 1)}


@given(pair=episodes(), indices=indices, neg=st.booleans(), data=st.data())
def test_getters_equal_lists(pair: Any, indices: Any, neg: bool, data: st.DataObject) -> None:
    reference, episode = pair
    name = data.draw(st.sampled_from([*TRACKS, *reference.extra]))
    try:
        expected = read(reference.track(name), indices, neg)
    except IndexError:
        with pytest.raises(IndexError, match=r"there are .*fill="):
            get(episode, name, indices, neg_index_as_lookback=neg)
        return
    answer = get(episode, name, indices, neg_index_as_lookback=neg)
    if isinstance(indices, int | np.integer):
        assert_same(answer, expected)
        return
    assert_same_batch(answer, expected, episode.is_numpy and name != "infos")
    if episode.is_numpy and name != "infos":
        pairs = zip(nested.leaves(answer), nested.leaves(get(episode, name, None)), strict=True)
        assert all(part.dtype == whole.dtype and part.shape[1:] == whole.shape[1:] for part, whole in pairs)


@given(pair=episodes(), indices=SLICES | indices, neg=st.booleans(), data=st.data())
def test_fill_of_slices_equals_lists(pair: Any, indices: Any, neg: bool, data: st.DataObject) -> None:
    reference, episode = pair
    name = data.draw(st.sampled_from(["observations", "actions", "rewards", *reference.extra]))
    track = reference.track(name)
    if not track:
        return
    fill, filler = draw_fill(data, episode.tracks.ragged_kinds().get(name), next(iter(track.values())))
    expected = read(track, indices, neg, filler)
    answer = get(episode, name, indices, neg_index_as_lookback=neg, fill=fill)
    if isinstance(indices, int | np.integer):
        assert_same(answer, expected)
        return
    assert_same_batch(answer, expected, episode.is_numpy)
    if episode.is_numpy:
        whole = get(episode, name, None)
        assert [a.dtype for a in nested.leaves(answer)] == [a.dtype for a in nested.leaves(whole)]


@given(pair=episodes(), start=BOUNDS, stop=BOUNDS, data=st.data())
def test_slice_keeps_ids_infos_outputs_and_ending(
    pair: Any, start: int | None, stop: int | None, data: st.DataObject
) -> None:
    reference, episode = pair
    lookback = data.draw(st.none() | st.integers(0, 6))
    begin, end, _ = slice(start, stop).indices(len(episode))
    expected = reference.sub(begin, max(begin, end), reference.lookback if lookback is None else lookback)
    part = episode.slice(slice(start, stop), len_lookback_buffer=lookback)
    assert_same_episode(part, expected)
    assert (part.observation_space, part.action_space) == (episode.observation_space, episode.action_space)
    assert_same_episode(episode, reference)


@given(pair=episodes(ended=False), lookback=st.integers(0, 12))
def test_cut_returns_successor_at_end_of_chunk(pair: Any, lookback: int) -> None:
    reference, episode = pair
    expected = reference.sub(reference.num_steps, reference.num_steps, lookback)
    successor = episode.cut(lookback)
    assert_same_episode(successor, expected)
    assert not successor.is_numpy
    assert successor.action_space == episode.action_space
    assert_same_episode(episode, reference)


@given(
    pair=episodes(),
    at=st.integers(0, 20),
    lookback=st.integers(0, 5),
    finalized=st.tuples(st.booleans(), st.booleans()),
)
def test_cut_then_concat_is_identity(pair: Any, at: int, lookback: int, finalized: tuple[bool, bool]) -> None:
    reference, episode = pair
    at = min(at, len(episode))
    if at == len(episode) and episode.is_done:
        return
    head, tail = episode[:at], episode.slice(slice(at, None), len_lookback_buffer=lookback)
    if finalized[0]:
        head.to_numpy()
    if finalized[1]:
        tail.to_numpy()
    tail.custom_data["later"] = 1
    head.concat_episode(tail)
    assert head.custom_data.pop("later") == 1
    assert_same_episode(head, reference)
    assert_same_episode(episode, reference)


@given(pair=episodes(), protocol=st.integers(2, 5))
def test_episode_pickle_round_trips(pair: Any, protocol: int) -> None:
    reference, episode = pair
    for twin in (pickle.loads(pickle.dumps(episode, protocol)), copy.deepcopy(episode)):
        assert twin.equals(episode)
        assert_same_episode(twin, reference)
    assert_same_episode(growing := episode.as_growing(), reference)
    assert not growing.is_numpy


@given(pair=episodes())
def test_state_round_trips_without_shared_memory(pair: Any) -> None:
    reference, episode = pair
    state = episode.get_state()
    twin = SingleAgentEpisode.from_state(state)
    state["custom_data"]["weather"] = "changed"
    if not episode.is_numpy:
        state["rewards"].append(9.0)
        state["infos"][0]["new"] = 9
    assert twin.equals(episode)
    assert_same_episode(twin, reference)
    assert_same_episode(episode, reference)
    arrays = lambda e: [leaf for t in e.tracks.all() if t.field.holds != "infos" for leaf in _arrays(t)]  # noqa: E731
    for first_value in arrays(episode):
        assert not any(np.shares_memory(first_value, second_value) for second_value in arrays(twin))


def _arrays(track: Any) -> list[np.ndarray]:
    items = [track.data] if hasattr(track, "data") else track.items
    return [leaf for item in items for leaf in nested.leaves(item) if isinstance(leaf, np.ndarray)]


@given(pair=episodes(ended=False), data=st.data())
def test_growing_after_cut_equals_growing_uncut(pair: Any, data: st.DataObject) -> None:
    _, episode = pair
    if episode.is_numpy or not episode.rewards.total:
        return
    whole, head = copy.deepcopy(episode), copy.deepcopy(episode)
    tail = head.cut(data.draw(st.integers(0, 5)))
    for number in range(data.draw(st.integers(0, 3))):
        step = {
            "observation": episode.observations.items[-1],
            "action": episode.actions.items[-1],
            "reward": float(number),
            "extra_model_outputs": {key: track.items[-1] for key, track in episode.extra_model_outputs.items()},
        }
        whole.add_env_step(**step)
        tail.add_env_step(**step)
    head.concat_episode(tail)
    assert head.equals(whole)


@given(pair=episodes(), data=st.data())
def test_setters_change_only_the_given_items(pair: Any, data: st.DataObject) -> None:
    reference, episode = pair
    if not reference.num_steps:
        return
    at = data.draw(st.lists(st.integers(-reference.lookback, reference.num_steps - 1), unique=True, max_size=4))
    before = episode.get_rewards(slice(-reference.lookback, None), neg_index_as_lookback=True)
    before = list(before)
    episode.set_rewards(new_data=[-1.0 - s for s in at], at_indices=at, neg_index_as_lookback=True)
    expected = [-1.0 - (i - reference.lookback) if i - reference.lookback in at else r for i, r in enumerate(before)]
    assert list(episode.get_rewards(slice(-reference.lookback, None), neg_index_as_lookback=True)) == expected
    if at:
        new = [nested.map_leaves(lambda leaf: np.zeros_like(leaf), reference.observations[s]) for s in at]
        episode.set_observations(new_data=new, at_indices=at, neg_index_as_lookback=True)
        for step, item in zip(at, new, strict=True):
            assert_same(episode.get_observations(step, neg_index_as_lookback=True), item)
        assert_same(episode.get_observations(-1), reference.observations[reference.num_steps])


def _cut() -> SingleAgentEpisode:
    episode = _growing()
    episode.cut()
    return episode


def _growing() -> SingleAgentEpisode:
    episode = SingleAgentEpisode(id_="a")
    episode.add_env_reset(np.zeros(2))
    episode.add_env_step(np.ones(2), 1, 0.5)
    episode.custom_data["key"] = [1]
    return episode


@pytest.mark.parametrize(
    "make",
    [
        SingleAgentEpisode,
        _growing,
        _cut,
        lambda: _growing().to_numpy(),
        lambda: EpisodePack.from_episodes([_growing()])[0],
    ],
    ids=["empty", "growing", "cut", "finished", "of a pack"],
)
def test_copy_equals_unpickled_episode(make: Callable[[], SingleAgentEpisode]) -> None:
    episode = make()
    copied, unpickled = copy.copy(episode), pickle.loads(pickle.dumps(episode))
    assert type(copied) is SingleAgentEpisode
    assert copied.equals(unpickled)
    assert repr(copied) == repr(unpickled) == repr(episode)
    assert copied.tracks is episode.tracks
    copied.id_, copied.custom_data["new"] = "b", 2
    assert (copied.id_, type(copied.custom_data), episode.id_) == ("b", dict, unpickled.id_)

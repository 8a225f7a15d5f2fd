"""Rules for single-agent episodes, such as correct slices, endings and lookbacks."""

# ruff: noqa: E501 (a table of bad input reads best with a case a line)

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from strategies import built, plain

from episodes import MultiAgentEpisode, SingleAgentEpisode
from episodes.errors import (
    ChunkMismatch,
    EpisodeError,
    EpisodeStateError,
    InvalidFill,
    ShapeMismatch,
    StepOutOfRange,
    TrackMismatch,
    WrongType,
)
from episodes.tracks import ListTrack


def grown(num_steps: int = 3, **last: Any) -> SingleAgentEpisode:
    """Return a growing episode of vectors with one extra output."""
    episode = SingleAgentEpisode("abc")
    episode.add_env_reset(np.zeros(2, np.float32), {"seed": 1})
    for step in range(num_steps):
        ending = last if step == num_steps - 1 else {}
        episode.add_env_step(
            np.full(2, step + 1, np.float32), step, float(step), extra_model_outputs={"logp": -0.5}, **ending
        )
    return episode


def with_lookback(finalized: bool = False) -> SingleAgentEpisode:
    """Return an episode of the steps 0..2 with two lookback items."""
    episode = built(plain("number", "number", num_steps=3, lookback=2, extras=("logp",)), "number", "number")
    return episode.to_numpy() if finalized else episode


def test_custom_data_of_part_is_a_copy() -> None:
    episode = grown(3)
    episode.custom_data["log"] = [{"n": 1}]
    for part in (episode[1:2], episode.cut(), copy.deepcopy(episode).to_numpy().cut(), episode.as_growing()):
        part.custom_data["log"][0]["n"] = 2
        part.custom_data["log"].append(3)
        assert episode.custom_data == {"log": [{"n": 1}]}


def test_one_hot_uses_start_of_discrete_space() -> None:
    space = spaces.Discrete(3, start=-1)
    for finalized in (False, True):
        episode = SingleAgentEpisode(
            observations=[-1, 0, 1], actions=[1, -1], rewards=[0.0, 0.0], len_lookback_buffer=0,
            observation_space=space, action_space=space,
        )  # fmt: skip
        if finalized:
            episode.to_numpy()
        assert np.asarray(episode.get_observations(one_hot_discrete=True)).tolist() == np.eye(3).tolist()
        assert np.asarray(episode.get_actions(0, one_hot_discrete=True)).tolist() == [0, 0, 1]
        filled = episode.get_actions(slice(-1, 3), neg_index_as_lookback=True, fill=0, one_hot_discrete=True)
        assert np.asarray(filled).tolist() == [[0, 0, 0], [0, 0, 1], [1, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("finalized", [False, True])
def test_one_hot_of_multi_discrete_and_nested_spaces(finalized: bool) -> None:
    episode = built(plain("tuple", "multi", num_steps=2), "tuple", "multi")
    if finalized:
        episode.to_numpy()
    actions = np.asarray(episode.get_actions(one_hot_discrete=True))
    assert actions.shape == (2, 3 + 4)
    assert actions.sum(axis=1).tolist() == [2, 2]
    discrete, box = episode.get_observations(-1, one_hot_discrete=True)
    assert discrete.shape == (7,)
    assert discrete.argmax() == episode.get_observations(-1)[0] - 2
    assert box.tolist() == episode.get_observations(-1)[1].tolist()


FLOAT = spaces.Box(-np.inf, np.inf, (), np.float32)
BYTE = spaces.Box(0, 255, (), np.uint8)


@pytest.mark.parametrize(
    ("space", "items"),
    [
        *((FLOAT, [value]) for value in (1e300, "1.5", 1j)),
        *((BYTE, items) for items in ([300], [1, -1])),
        (spaces.Discrete(2), [0.5]),
        (spaces.Box(-128, 127, (), np.int8), [np.int64(200)]),
        (spaces.Box(-(2**31), 2**31 - 1, (), np.int32), [2**40]),
    ],
)
def test_values_outside_space_raise(space: Any, items: list[Any]) -> None:
    episode = SingleAgentEpisode(observation_space=space)
    if len(items) == 1:
        with pytest.raises(ShapeMismatch, match=r"the reset: observations are .*; the space has"):
            episode.add_env_reset(items[0])
        assert not episode.is_reset
        return
    episode.add_env_reset(items[0])
    for item in items[1:]:
        episode.add_env_step(item, 0, 0.0)
    with pytest.raises(ShapeMismatch, match="without loss"):
        episode.to_numpy()
    assert episode.get_observations() == items


NO_ARRAYS: dict[str, list[list[Any]]] = {
    r"item 1 is of shape .*, item 0 is of shape": [
        [np.zeros(2), np.zeros(1), np.zeros(2)],
        [np.zeros(1), np.zeros(2), np.zeros(2)],
        [0.0, np.zeros(1), 0.0],
        [np.zeros((2, 3)), np.zeros((2, 4)), np.zeros((2, 3))],
    ],
    r"item 0 is .*, which holds no array": [[{}] * 3, [()] * 3, [{"a": ()}] * 3],
    r"item 0 cannot be an array: .*; give dense tensors": [[torch.ones(2, device="meta")], [torch.eye(2).to_sparse()]],
    r"item 0 is an integer of more than 64 bits": [[2**70]],
    r"item 0 is a NoneType; all items": [[None]],
}


@pytest.mark.parametrize("message", NO_ARRAYS)
def test_items_of_unequal_shapes_raise(message: str) -> None:
    for items in NO_ARRAYS[message]:
        num = len(items)
        for name, numbers in (("observations", (num, num - 1)), ("actions", (num + 1, num))):
            episode = built_of(observations=[0] * numbers[0], actions=[0] * numbers[1], rewards=[0] * numbers[1])
            episode.tracks = episode.tracks._replace(**{name: ListTrack(items, 0, False, getattr(episode, name).field)})
            with pytest.raises(ShapeMismatch, match=f"{name}: {message}"):
                episode.to_numpy()
            assert getattr(episode, f"get_{name}")(0) is items[0]


def test_tracks_have_dtypes_of_spaces() -> None:
    box = spaces.Box(-1, 1, (2,), np.float32)
    for space, actions in ((spaces.Discrete(3), [1]), (BYTE, [255])):
        episode = SingleAgentEpisode(
            observations=[np.zeros(2), np.ones(2)], actions=actions, rewards=[1], len_lookback_buffer=0,
            observation_space=box, action_space=space,
        ).to_numpy()  # fmt: skip
        assert (episode.get_observations().dtype, episode.get_actions().dtype) == (np.float32, space.dtype)
        assert episode.get_actions().tolist() == actions


@pytest.mark.parametrize(
    ("first", "then", "message"),
    [
        ({"logp": 1}, None, r"\['logp'\] would stop early, at step 1"),
        ({"logp": 1}, {}, r"\['logp'\] would stop early, at step 1"),
        ({"logp": 1}, {"logp": 1, "value": 2}, r"\['value'\] would start late, at step 1"),
        ({"logp": 1}, {"value": 2}, r"\['value'\] would start late, at step 1"),
        (None, {"logp": 1}, r"\['logp'\] would start late, at step 1"),
    ],
)
def test_extra_output_starting_late_or_stopping_early_raises(first: Any, then: Any, message: str) -> None:
    episode = SingleAgentEpisode()
    episode.add_env_reset(0)
    episode.add_env_step(1, 0, 0.0, extra_model_outputs=first)
    before = copy.deepcopy(episode)
    with pytest.raises(TrackMismatch, match=message):
        episode.add_env_step(2, 0, 0.0, extra_model_outputs=then)
    assert episode.equals(before)
    episode.validate()


def test_slice_of_finalized_episode_is_view() -> None:
    episode = built(plain("image", "multi", num_steps=6, extras=("logp",)), "image", "multi").to_numpy()
    part = episode[2:4]
    assert np.shares_memory(part.get_observations(), episode.get_observations())
    assert np.shares_memory(part.get_extra_model_outputs("logp"), episode.get_extra_model_outputs("logp"))
    assert np.shares_memory(episode.get_observations(slice(1, 3)), episode.get_observations())


def test_setter_on_slice_leaves_source() -> None:
    episode = built(plain(num_steps=4), "vector", "number").to_numpy()
    part = episode[1:3]
    part.set_rewards(new_data=[7.0, 8.0])
    assert part.get_rewards().tolist() == [7.0, 8.0]
    assert episode.get_rewards().tolist() == [0.5, 1.5, 2.5, 3.5]
    with pytest.raises(ValueError, match="read-only"):
        episode.get_rewards()[0] = 1.0


def test_constructor_data_is_lookback_by_default() -> None:
    episode = SingleAgentEpisode(observations=[0, 1, 2], actions=[0, 1], rewards=[0.0, 1.0])
    assert (len(episode), episode.lookback, episode.t_started, episode.t) == (0, 2, 0, 0)
    assert episode.get_observations() == [2]
    assert episode.get_observations(-2) == 1
    episode.add_env_step(3, 2, 2.0)
    assert episode.get_rewards(slice(-3, None)) == [0.0, 1.0, 2.0]
    longer = SingleAgentEpisode(observations=[0, 1], actions=[0], rewards=[0.0], len_lookback_buffer=10, t_started=7)
    assert (longer.lookback, longer.t) == (1, 7)


def test_new_extra_output_needs_all_items() -> None:
    for finalized in (False, True):
        episode = with_lookback(finalized)
        episode.set_extra_model_outputs(key="value", new_data=[1, 2, 3, 4, 5])
        assert list(episode.get_extra_model_outputs("value")) == [3, 4, 5]
        with pytest.raises(ShapeMismatch, match="give 5"):
            episode.set_extra_model_outputs(key="other", new_data=[1, 2, 3])
        with pytest.raises(KeyError, match="add the new key whole"):
            episode.set_extra_model_outputs(key="other", new_data=[1], at_indices=[0])


@pytest.mark.parametrize("is_reset", [False, True])
def test_observations_set_to_new_shape_keep_growing(is_reset: bool) -> None:
    episode = SingleAgentEpisode(observations=None if is_reset else [np.zeros((2, 2))])
    if is_reset:
        episode.add_env_reset(np.zeros((2, 2)))
    for step in range(3):
        episode.set_observations(new_data=episode.get_observations(-1).reshape(4), at_indices=-1)
        episode.add_env_step(np.full((2, 2), step), 0, 0.0)
    episode.set_observations(new_data=episode.get_observations(-1).reshape(4), at_indices=-1)
    assert episode.cut().get_observations(0).shape == (4,)
    assert episode.to_numpy().get_observations().shape == (4, 4)


@pytest.mark.parametrize("finish", [None, "joined", "later"])
@pytest.mark.parametrize("agents", [False, True])
def test_duration_counts_while_chunks_grow(agents: bool, finish: str | None) -> None:
    episode: Any = MultiAgentEpisode() if agents else SingleAgentEpisode()
    step, ends = (0, 0, 0.0), {"terminated": True}
    if agents:
        step, ends = ({"a": 0}, {"a": 0}, {"a": 0.0}), {"terminateds": {"__all__": True}}  # type: ignore[assignment]
    assert episode.get_duration_s() == 0
    episode.add_env_reset(**{"observations" if agents else "observation": step[0]})
    episode.add_env_step(*step)
    successor = episode.cut()
    stopped = episode.get_duration_s()
    successor.add_env_step(*step)
    if finish is not None:
        {"joined": episode, "later": successor}[finish].to_numpy()
    assert 0 < stopped == episode.get_duration_s()
    least = stopped + successor.get_duration_s()
    episode.concat_episode(successor)
    spent = episode.get_duration_s()
    assert spent >= least
    assert (episode.get_duration_s() > spent) == (finish is None)
    if finish is None:
        episode.add_env_step(*step, **ends)
        assert episode.get_duration_s() == episode.get_duration_s() > spent


def test_get_data_dict_has_one_row_per_step() -> None:
    columns = grown(2, truncated=True).to_numpy().get_data_dict()
    assert sorted(columns) == sorted(
        ["obs", "actions", "rewards", "terminateds", "truncateds", "t", "eps_id", "infos", "logp"]
    )
    assert columns["truncateds"].tolist() == [False, True]
    assert columns["t"].tolist() == [0, 1]
    assert {len(column) for column in columns.values()} == {2}


def test_episode_repr_shows_length_return_and_ending() -> None:
    assert repr(grown(3, terminated=True)) == "SingleAgentEpisode(abc: 3 steps, return 3, terminated)"
    assert repr(grown(1)) == "SingleAgentEpisode(abc: 1 step, return 0, ongoing)"
    assert "from t=3" in repr(grown(3).cut())


def following(action: Any, outputs: dict[str, Any] | None = None) -> SingleAgentEpisode:
    """Return the chunk of one step that follows an episode of three steps."""
    chunk = SingleAgentEpisode("abc", observations=[np.full(2, 3, np.float32)], t_started=3)
    chunk.add_env_step(np.zeros(2), action, 0.0, extra_model_outputs={"logp": 0.5} if outputs is None else outputs)
    return chunk


def built_of(**tracks: Any) -> SingleAgentEpisode:
    """Return an episode of two steps without lookback, built from lists."""
    return SingleAgentEpisode(
        **{"observations": [0, 0, 0], "actions": [0, 0], "rewards": [0, 0]} | tracks, len_lookback_buffer=0
    )


BAD = {
    "a step before the reset": (SingleAgentEpisode, lambda e: e.add_env_step(0, 0, 0.0), EpisodeStateError, "before the reset"),
    "a second reset": (grown, lambda e: e.add_env_reset(np.zeros(2)), EpisodeStateError, "add_env_reset after a reset"),
    "a step after the end": (
        lambda: grown(2, terminated=True),
        lambda e: e.add_env_step(np.zeros(2), 0, 0.0, extra_model_outputs={"logp": 1}),
        EpisodeStateError,
        r"after the end \(terminated at t=2\)",
    ),
    "a step on a finalized episode": (
        lambda: grown().to_numpy(),
        lambda e: e.add_env_step(np.zeros(2), 0, 0.0, extra_model_outputs={"logp": 1}),
        EpisodeStateError,
        "finalized",
    ),
    "an observation of another shape": (
        grown,
        lambda e: e.add_env_step(np.zeros(3), 0, 0.0, extra_model_outputs={"logp": 1}),
        ShapeMismatch,
        r"step 3: the observation has shape \(3,\), earlier observations have shape \(2,\)",
    ),
    "a number among array observations": (
        grown,
        lambda e: e.add_env_step(1.0, 0, 0.0, extra_model_outputs={"logp": 1}),
        ShapeMismatch,
        r"has shape \(\)",
    ),
    "an index out of range": (grown, lambda e: e.get_actions(3), StepOutOfRange, r"actions\[3\]: there are items 0\.\.2"),
    "an index that is no integer": (grown, lambda e: e.get_actions(1.5), TypeError, "an index is an int"),
    "an unknown extra output": (grown, lambda e: e.get_extra_model_outputs("x"), KeyError, r"there are \['logp'\]"),
    "a fill of another shape": (
        lambda: grown().to_numpy(),
        lambda e: e.get_observations(slice(0, 9), fill=np.zeros(3)),
        InvalidFill,
        r"has shape \(3,\); items have \(2,\)",
    ),
    "a fill of another dtype": (
        lambda: grown().to_numpy(),
        lambda e: e.get_actions(slice(0, 9), fill=0.5),
        InvalidFill,
        "without loss",
    ),
    "a fill that is no number": (grown, lambda e: e.get_rewards(9, fill="x"), InvalidFill, "fill='x'"),
    "a chunk of another episode": (
        grown, lambda e: e.concat_episode(SingleAgentEpisode("other")), ChunkMismatch, "chunk of episode other",
    ),
    "a chunk that leaves a gap": (
        grown, lambda e: e.concat_episode(grown(5)[4:]), ChunkMismatch, "begins at t=4 does not follow one that stops at t=3",
    ),
    "a chunk with another first observation": (
        grown,
        lambda e: e.concat_episode(SingleAgentEpisode("abc", observations=[np.ones(2) * 9], t_started=3)),
        ChunkMismatch,
        "first observation is not the one",
    ),
    "a chunk with other outputs": (grown, lambda e: e.concat_episode(following(5, {})), TrackMismatch, r"t=3 has extra model outputs \[\], the chunk before it \['logp'\]"),
    "a chunk with other outputs, finalized": (lambda: grown().to_numpy(), lambda e: e.concat_episode(following(5, {})), TrackMismatch, r"t=3 has extra"),
    "a chunk with other actions": (lambda: grown().to_numpy(), lambda e: e.concat_episode(following(np.zeros(3))), ShapeMismatch, r"\[3\] cannot follow items of shape \[\]"),
    "a chunk with another shape of outputs": (lambda: grown().to_numpy(), lambda e: e.concat_episode(following(5, {"logp": np.zeros(3)})), ShapeMismatch, r"\[3\] cannot follow items"),
    "joining what is no episode": (grown, lambda e: e.concat_episode(5), TypeError, "takes an episode, not a int"),
    "joining to an ended episode": (
        lambda: grown(2, truncated=True), lambda e: e.concat_episode(e), EpisodeStateError, "after the end",
    ),
    "cutting an ended episode": (lambda: grown(2, truncated=True), lambda e: e.cut(), EpisodeStateError, "cut after the end"),
    "a negative lookback": (grown, lambda e: e.cut(-1), ValueError, "0 or more"),
    "slicing with a step": (grown, lambda e: e[::2], ValueError, "step of 2"),
    "an int in brackets": (grown, lambda e: e[0], WrongType, r"sliced by steps, episode\[a:b\]"),
    "a text in brackets": (grown, lambda e: e["ab"], WrongType, "sliced by steps"),
    "slicing without a slice": (grown, lambda e: e.slice(None), WrongType, "sliced by steps"),
    "a reward of None": (grown, lambda e: built_of(rewards=[1.0, None]), WrongType, r"rewards\[1\]: the reward is a NoneType; give one real number"),
    "a reward that is an array": (grown, lambda e: built_of(rewards=[np.ones(1), 0]), ShapeMismatch, r"rewards\[0\]: the reward has shape \(1,\); give one number"),
    "an array of reward arrays": (grown, lambda e: SingleAgentEpisode.from_arrays([0, 1], [0], [[1.0]]), ShapeMismatch, r"rewards have shape \(1, 1\)"),
    "a fill longer than the texts": (
        lambda: SingleAgentEpisode.from_arrays(np.array(["ab", "cd"]), [0], [1.0]),
        lambda e: e.get_observations([5], fill="long"),
        InvalidFill,
        "without loss",
    ),
    "new data of another length": (grown, lambda e: e.set_rewards(new_data=[1.0]), ShapeMismatch, "1 new items for 3 places"),
    "new data past the end": (grown, lambda e: e.set_rewards(new_data=[1.0], at_indices=[9]), StepOutOfRange, "rewards"),
    "finalizing before the reset": (SingleAgentEpisode, lambda e: e.to_numpy(), EpisodeStateError, "no observation yet"),
    "one-hot without a space": (
        grown, lambda e: e.get_actions(one_hot_discrete=True), ValueError, "give observation_space and action_space",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_episode_bad_input_raises_and_changes_nothing(name: str) -> None:
    make, call, error, message = BAD[name]
    episode = make()
    before = copy.deepcopy(episode)
    with pytest.raises(error, match=message) as raised:
        call(episode)
    assert isinstance(raised.value, EpisodeError)
    assert episode.equals(before)


@pytest.mark.parametrize("counts", [(3, 3, 2), (2, 2, 2), (4, 2, 3)])
def test_tracks_of_unequal_lengths_raise(counts: tuple[int, int, int]) -> None:
    observations, actions, rewards = ([0] * n for n in counts)
    with pytest.raises(TrackMismatch, match="one more observation and info than rewards"):
        SingleAgentEpisode(observations=observations, actions=actions, rewards=rewards, len_lookback_buffer=0)
    with pytest.raises(TrackMismatch):
        SingleAgentEpisode.from_arrays(observations, actions, rewards)


@pytest.mark.parametrize("finalized", [False, True])
def test_cut_chunk_stays_cut_in_pickle_and_state(finalized: bool) -> None:
    chunk = grown(2)
    successor = chunk.cut()
    if finalized:
        chunk.to_numpy()
    travelled = [
        pickle.loads(pickle.dumps(chunk)),
        copy.deepcopy(chunk),
        SingleAgentEpisode.from_state(chunk.get_state()),
    ]
    for repeated in travelled:
        assert repr(repeated) == "SingleAgentEpisode(abc: 2 steps, return 1, cut)"
        if not finalized:
            with pytest.raises(EpisodeStateError, match=r"add_env_step after cut\(\); go on with the successor"):
                repeated.add_env_step(np.zeros(2), 0, 1.0)
        assert repeated.cut(1).t_started == 2
        repeated.concat_episode(successor)
        assert "ongoing" in repr(repeated)
        if not finalized:  # joined with a chunk that grows, it grows
            repeated.add_env_step(np.zeros(2), 0, 1.0, extra_model_outputs={"logp": 0.0})
            assert len(repeated) == 3


def test_cut_before_reset_returns_unreset_episode() -> None:
    episode = SingleAgentEpisode("e", t_started=3, agent_id="a")
    episode.custom_data["k"] = 1
    successor = episode.cut(2)
    assert (successor.id_, successor.agent_id, successor.t_started) == ("e", "a", 3)
    assert (successor.is_reset, len(successor), successor.custom_data) == (False, 0, {"k": 1})
    successor.add_env_reset(0)
    successor.add_env_step(1, 0, 1.0)
    assert not episode.is_reset
    assert (successor.get_observations(), successor.t) == ([0, 1], 4)


def test_fill_of_growing_track_has_current_dtype() -> None:
    episode = SingleAgentEpisode()
    episode.add_env_reset(np.int8(1))
    expected = []
    for observation in (np.int8(2), np.int16(3), np.uint8(4), np.float32(0.5), np.float64(0.5)):
        episode.add_env_step(observation, 0, 0.0)
        expected.append(copy.deepcopy(episode).to_numpy().get_observations().dtype)
        assert episode.get_observations(99, fill=0).dtype == expected[-1]
    assert len(set(expected)) == 4
    episode.set_observations(new_data=[np.int8(1)] * 6)
    assert episode.get_observations(99, fill=0).dtype == np.int8
    with pytest.raises(InvalidFill):
        episode.get_observations(99, fill=1000)

"""`EpisodePack` as a sequence of episodes, its pickles and its row arithmetic."""

from __future__ import annotations

import copy
import io
import pickle
import tracemalloc
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from strategies import lists_of_episodes

from episodes import EpisodePack, MultiAgentEpisode, SingleAgentEpisode
from episodes.errors import EpisodeError, InvalidArgument, TrackMismatch, WrongType
from episodes.facts import VersionRuns


def same(pack: EpisodePack, episodes: list[SingleAgentEpisode]) -> bool:
    finished = [SingleAgentEpisode.from_state(e.get_state()).to_numpy() for e in episodes]
    return len(pack) == len(episodes) and all(a.equals(b) for a, b in zip(pack, finished, strict=True))


@given(episodes=lists_of_episodes(ragged=None))
def test_pack_episodes_equal_given_episodes(episodes: list[SingleAgentEpisode]) -> None:
    growing = [e.is_numpy for e in episodes]
    pack = EpisodePack.from_episodes(episodes)
    assert same(pack, episodes)
    assert [e.is_numpy for e in episodes] == growing
    assert pack.returns().tolist() == pytest.approx([e.get_return() for e in episodes])
    assert pack.num_steps == sum(map(len, episodes))
    assert EpisodePack.from_episodes(pack) is pack


@given(
    episodes=lists_of_episodes(ragged=None),
    start=st.integers(-5, 5),
    stop=st.integers(-5, 5),
    step=st.sampled_from([1, 2, -1]),
    protocol=st.integers(2, 5),
)
def test_pack_selects_joins_and_pickles_like_list(
    episodes: list[SingleAgentEpisode], start: int, stop: int, step: int, protocol: int
) -> None:
    pack = EpisodePack.from_episodes(episodes)
    assert same(pack[start:stop:step], episodes[start:stop:step])
    chosen = [i for i in range(len(episodes)) if i % 2 == 0][::-1]
    assert same(pack.select(chosen), [episodes[i] for i in chosen])
    assert same(pack.select(np.arange(len(episodes)) % 2 == 1), episodes[1::2])
    assert same(EpisodePack.concat([EpisodePack.from_episodes([e]) for e in episodes]), episodes)
    assert same(EpisodePack.concat([pack] * 2), episodes * 2)
    assert pickle.loads(pickle.dumps(pack, protocol)) == pack


@given(episodes=lists_of_episodes(ragged=None))
def test_pack_rows_equal_rows_of_episodes(episodes: list[SingleAgentEpisode]) -> None:
    pack = EpisodePack.from_episodes(episodes)
    rewards = [r for e in episodes for r in e.get_rewards()]
    assert pack.rewards[pack.step_rows()].tolist() == rewards
    steps = np.concatenate([np.arange(len(e)) for e in episodes])
    begins = pack.observation_offsets[:-1] + pack.lookbacks
    expected = np.concatenate([b + np.arange(len(e)) for b, e in zip(begins, episodes, strict=True)])
    assert pack.observation_rows(0).tolist() == expected.tolist()
    assert pack.observation_rows(1).tolist() == (expected + 1).tolist()
    every = np.arange(pack.observation_offsets[-1])[pack.all_observation_rows()]
    assert every.tolist() == [b + t for b, e in zip(begins, episodes, strict=True) for t in range(len(e) + 1)]
    assert len(steps) == pack.num_steps


def many(num: int = 1000) -> EpisodePack:
    lengths = np.arange(num) % 7 + 1
    total = int(lengths.sum())
    return EpisodePack(
        observations=np.zeros((total + num, 4), np.float32),
        actions=np.zeros(total, np.int64),
        rewards=np.ones(total),
        extra_model_outputs={"logp": np.zeros(total, np.float32)},
        lengths=lengths,
        terminated=np.ones(num, bool),
    )


def test_pack_pickles_one_buffer_per_track() -> None:
    pack = many()
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(pack, 5, buffer_callback=buffers.append)
    assert len(buffers) == len(pack.tracks) == 4
    assert sum(b.raw().nbytes for b in buffers) == pack.nbytes
    twin = pickle.loads(data, buffers=buffers)
    assert np.shares_memory(twin.observations, pack.observations)
    assert twin == pack


class Looking(pickle.Pickler):
    """Pickler that records the objects for which it calls Python code, like picklers that pickle classes by value."""

    def reducer_override(self, obj: Any) -> Any:
        self.seen = [*getattr(self, "seen", []), obj]
        return NotImplemented


def looked_at(pack: EpisodePack) -> tuple[list[Any], EpisodePack]:
    """Return the objects for which such a pickler calls Python code, and the unpickled pack."""
    file = io.BytesIO()
    looking = Looking(file, 5)
    looking.dump(pack)
    return looking.seen, pickle.loads(file.getvalue())


class OwnBox(spaces.Box):
    """Space of a class that may be missing in the unpickling process."""


def test_pack_pickles_few_python_objects() -> None:
    box, word = OwnBox(-1, 1, (2,)), Fraction(1, 2)
    versions = [VersionRuns((3, 4), (1,)), VersionRuns((4,))]
    nested_space = spaces.Dict({"a": spaces.Box(-1, 1, (2,))})
    for own, options in (
        (None, {"observation_space": nested_space, "action_space": spaces.Discrete(2), "agent_ids": ["a", None]}),
        (None, {"infos": [{"speed": t / 2, "words": ["a", t]} for t in range(7)], "policy_versions": versions}),
        (box, {"action_space": OwnBox(-1, 1, ())}),
        (box, {"observation_space": spaces.Dict({"a": box})}),
        (word, {"custom_data": [{"x": word}, None]}),
        (word, {"agent_ids": [word, None]}),
    ):
        columns: Any = {"observations": {"a": np.zeros((7, 2))}, "actions": np.zeros(5), "rewards": np.zeros(5)}
        pack = EpisodePack(**columns, lengths=[2, 3], **options)
        pickled, twin = looked_at(pack)
        assert pickled[0] is pack
        assert len(pickled) == 2 if own is None else any(type(item) is type(own) for item in pickled)  # a space: a copy
        assert twin == pack
        assert twin.facts.columns[-2:] == pack.facts.columns[-2:]
        assert twin.facts.spaces == pack.facts.spaces
        assert list(twin.infos) == list(pack.infos)
        assert not any(array.flags.writeable for array in twin.tracks.values())


@pytest.mark.parametrize("ids", [["left", "right"], [0, 1], [0.5, 2.0]])
def test_ids_of_agents_in_an_array_are_python_objects_in_the_episodes(ids: list[Any]) -> None:
    columns: Any = {"observations": np.zeros(7), "actions": np.zeros(5), "rewards": np.zeros(5), "lengths": [2, 3]}
    pack = EpisodePack(**columns, agent_ids=np.array(ids), module_ids=np.array(ids))
    for episode, id_ in zip(pack, ids, strict=True):
        for stored in (episode.agent_id, episode.module_id):
            assert type(stored) is type(id_)
            assert stored == id_


class Point(NamedTuple):
    x: Any
    y: Any


@pytest.mark.parametrize("num", [2, 100])
@pytest.mark.parametrize("protocol", [4, 5])
def test_pack_arrays_of_any_dtype_pickle_equal(protocol: int, num: int) -> None:
    numbers, size = np.arange(4.0 * num).reshape(num, 4), [num]
    kinds: dict[str, Any] = {
        "half": numbers.astype(np.float16),
        "complex": numbers * 1j,
        "flags": numbers > 3,
        "nothing": np.zeros((num, 0), np.int8),
        "words": numbers.astype("U5"),
        "bytes": numbers.astype("S5"),
        "times": numbers.astype("M8[ms]"),
        "fields": np.zeros(num, [("a", "f4"), ("b", "i2")]),
        "by column": np.asfortranarray(numbers),
        "every other": np.repeat(numbers, 2, axis=0)[::2],
        "nested": {"point": Point(numbers, (numbers[:, 0],))},
    }
    if protocol == 5:
        kinds["swapped"] = numbers.astype(">f4")  # numpy swaps them back in older ones
    pack = EpisodePack(
        observations=np.zeros(num + 1),
        actions=np.zeros(num),
        rewards=np.zeros(num),
        lengths=size,
        extra_model_outputs=kinds,
    )
    twin = pickle.loads(pickle.dumps(pack, protocol))
    assert twin.columns == pack.columns
    for path, track in pack.tracks.items():
        assert twin.tracks[path].dtype == track.dtype
        assert not twin.tracks[path].flags.writeable
    assert type(twin.extra_model_outputs["nested"]["point"]) is Point


def test_pack_episodes_are_views() -> None:
    num = 1000
    observations = np.zeros((5 * num, 84, 84), np.uint8)
    pack = EpisodePack(
        observations=observations, actions=np.zeros(4 * num), rewards=np.zeros(4 * num), lengths=np.full(num, 4)
    )
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    episodes = list(pack)
    added = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert added < 5_000 * num < pack.nbytes / 5
    assert all(np.shares_memory(e.get_observations(), observations) for e in episodes)
    assert all(np.shares_memory(pack[2:5].tracks[path], track) for path, track in pack.tracks.items())


def test_pack_is_read_only() -> None:
    rewards = np.ones(2)
    pack = EpisodePack(observations=np.zeros((3, 2)), actions=np.zeros(2), rewards=rewards, lengths=[2])
    with pytest.raises(ValueError, match="read-only"):
        pack.rewards[0] = 2
    rewards[0] = 1.0  # the caller's own array stays writable


def test_pack_track_paths_escape_slashes() -> None:
    pack = EpisodePack.from_episodes(
        [SingleAgentEpisode.from_arrays({"a/b": np.zeros(2), "c": (np.zeros(2), np.zeros(2))}, [0], [0.0])]
    )
    assert list(pack.tracks) == ["observations/a~1b", "observations/c/0", "observations/c/1", "actions", "rewards"]


def test_pack_repr_separates_whole_episodes_and_chunks() -> None:
    whole = SingleAgentEpisode.from_arrays(np.zeros(3), [0, 1], [1.0, 2.0], terminated=True)
    begun = SingleAgentEpisode.from_arrays(np.zeros(2), [0], [50.0])
    remaining = SingleAgentEpisode.from_arrays(np.zeros(2), [0], [9.0], t_started=7, truncated=True)
    pack = EpisodePack.from_episodes([whole, begun, remaining])
    for part, text in (
        (many(10), "10 episodes, 34 steps, mean return 3.4, 10 terminated, 0 truncated"),
        (pack, "1 whole episode with mean return 3, 2 chunks, 4 steps, 1 terminated, 1 truncated, "),
        (pack[1:], "2 chunks, 2 steps, 0 terminated, 1 truncated, "),
        (pack[:0], "0 episodes, 0 steps, 0 terminated, "),
    ):
        assert repr(part).startswith(f"EpisodePack({text}")


def test_random_ids_are_unique() -> None:
    assert len({*many().ids.tolist(), *(SingleAgentEpisode().id_ for _ in range(1000))}) == 2000


def pack_with(**changes: Any) -> EpisodePack:
    return EpisodePack(
        **{"observations": np.arange(4), "actions": [0, 1], "rewards": np.ones(2), "lengths": [1, 1]} | changes
    )


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "no episodes": (lambda: EpisodePack.from_episodes([]), ValueError, "at least one episode"),
    "no packs": (lambda: EpisodePack.concat([]), ValueError, "at least one pack"),
    "one episode": (
        lambda: EpisodePack.from_episodes(many(1)[0]),  # type: ignore[arg-type]
        WrongType,
        r"give \[episode\]",
    ),
    "a selection that is not there": (lambda: many(3).select([0, 3]), IndexError, r"there are episodes 0\.\.2"),
    "a multi-agent episode": (
        lambda: EpisodePack.from_episodes([MultiAgentEpisode()]),  # type: ignore[list-item]
        WrongType,
        "not a MultiAgentEpisode; pack_agents makes packs",
    ),
    "episodes of other shapes": (
        lambda: EpisodePack.from_episodes(
            [SingleAgentEpisode.from_arrays(np.zeros((2, n)), [0], [0.0], id_=f"of{n}") for n in (2, 3)]
        ),
        TrackMismatch,
        r"items of episode of3 have shape \[3\], items of of2 have \[2\]",
    ),
    "episodes with other extra outputs": (
        lambda: EpisodePack.from_episodes(
            [SingleAgentEpisode.from_arrays([0, 1], [0], [0.0], extra_model_outputs=x) for x in ({}, {"logp": [1]})]
        ),
        TrackMismatch,
        r"has the extra model outputs \['logp'\], others have \[\]",
    ),
    "packs with other tracks": (
        lambda: EpisodePack.concat([many(2), EpisodePack.from_episodes([SingleAgentEpisode.from_arrays([0], [], [])])]),
        TrackMismatch,
        "other tracks",
    ),
    "a track of another length": (
        lambda: EpisodePack(observations=np.zeros(3), actions=np.zeros(3), rewards=np.zeros(2), lengths=[2]),
        TrackMismatch,
        "track 'actions' has 3 rows, the episodes' lengths ask for 2",
    ),
    "an episode that is not there": (lambda: many(3)[3], IndexError, r"pack\[3\]: there are episodes 0\.\.2"),
    "an index that is no integer": (lambda: many(3)["x"], WrongType, "give an int or a slice"),
    "a selection in two dimensions": (lambda: many(3).select([[0, 1]]), WrongType, r"not an array \[1, 2\] of int64"),
    "a selection by one int": (lambda: many(3).select(1), WrongType, r"not an array \[\] of int64"),
    "a selection by floats": (lambda: many(3).select([0.5]), WrongType, r"not an array \[1\] of float64"),
    "a ragged selection": (lambda: many(3).select([[0], [0, 1]]), WrongType, "not a ragged list"),
    "a negative length": (lambda: pack_with(lengths=[-1, 3]), InvalidArgument, "give"),
    "lengths that are no integers": (lambda: pack_with(lengths=[1.7, 0.3]), InvalidArgument, "give"),
    "one length": (lambda: pack_with(lengths=2), InvalidArgument, "give"),
    "a negative lookback": (lambda: pack_with(lookbacks=[-1, 1]), InvalidArgument, "give"),
    "a start that is no integer": (lambda: pack_with(t_started=[0.5, 1]), InvalidArgument, "give"),
    "ids in one string": (lambda: pack_with(ids="ab"), WrongType, "list of ids"),
}


@pytest.mark.parametrize("name", BAD)
def test_pack_bad_input_raises(name: str) -> None:
    call, error, message = BAD[name]
    with pytest.raises(error, match=message) as raised:
        call()
    assert isinstance(raised.value, EpisodeError)


def test_pack_without_steps_concats_with_any() -> None:
    reset, stepped = SingleAgentEpisode("reset"), SingleAgentEpisode("stepped")
    for episode in (reset, stepped):
        episode.add_env_reset(np.zeros(2))
    stepped.add_env_step(np.ones(2), {"move": 1}, 1.0, extra_model_outputs={"state_out": {"h": np.zeros(2)}})
    packs = [EpisodePack.from_episodes([episode]) for episode in (reset, stepped)]
    for ordered in (packs, packs[::-1]):
        whole = EpisodePack.concat(ordered)
        assert [episode.id_ for episode in whole] == [pack[0].id_ for pack in ordered]
        assert same(whole.select(whole.lengths > 0), [stepped])
        assert whole.num_steps == 1


def test_finalize_gives_native_byte_order() -> None:
    episode = SingleAgentEpisode(observations=list(np.array([[1.0], [2.0]], ">f4")), actions=[1], rewards=[3.0])
    episode.add_env_step(np.array([3.0], ">f4"), np.array(1, ">i8"), np.array(4.0, ">f8"))
    episode.to_numpy()
    assert (episode.observations.data.dtype, episode.actions.data.dtype) == (np.float32, np.int64)
    assert episode.observations.data.tolist() == [[1.0], [2.0], [3.0]]


def one_step(id_: str = "a", **arguments: Any) -> SingleAgentEpisode:
    return SingleAgentEpisode.from_arrays(np.zeros((2, 2)), [0], [1.0], id_=id_, **arguments)


def test_pack_properties_are_read_only() -> None:
    infos = [{"speed": np.arange(3.0), "log": {"words": ["a"]}} for _ in range(4)]
    episode = SingleAgentEpisode.from_arrays(np.zeros((4, 2)), np.zeros(3), np.zeros(3), infos=infos)
    pack = EpisodePack.from_episodes([episode, episode])
    other_parts = [
        pickle.loads(pickle.dumps(pack)),
        copy.deepcopy(pack),
        pack.copied(),
        pack.select([1, 0]),
        pack[::-1],
    ]
    for current in (episode, pack[0], *(parts[0] for parts in other_parts), EpisodePack.concat(other_parts)[9]):
        for array in (
            current.get_observations(),
            current.get_observations(0),
            current.get_rewards(),
            current.get_infos(0)["speed"],
        ):
            with pytest.raises(ValueError, match="read-only"):
                array[:] = 1
        current.get_infos(0)["log"]["words"].append("b")
        assert current.get_infos(0)["log"] == {"words": ["a"]}


def test_pack_custom_data_is_a_copy() -> None:
    for episode in (one_step(custom_data={"tags": ["new"]}), one_step()):
        given_data: list[Any] = [{"tags": ["new"]}]
        pack = EpisodePack.from_episodes([episode]).replace(custom_data=given_data)
        packed = EpisodePack.from_episodes(list(pack))
        copies = copy.copy(pack[0]), copy.copy(pack[:1][0])
        for changed in (given_data[0], *(episode.custom_data for episode in copies), pack.custom_data[0]):
            changed["tags"].append("changed")
            changed["mine"] = 1
        assert [e.custom_data for e in (*pack, *packed)] == [{"tags": ["new"]}] * 2


def test_pack_select_nothing_is_empty() -> None:
    pack = EpisodePack.from_episodes([one_step("a"), one_step("b")])
    for nothing in ([], np.zeros(0), np.zeros(0, np.int64), [False, False]):
        assert len(pack.select(nothing)) == 0


def test_pack_ids_keep_trailing_nul() -> None:
    pack = EpisodePack.from_episodes([one_step("a\0"), one_step("a")])
    for same_pack in (pack, pickle.loads(pickle.dumps(pack)), EpisodePack.concat([pack[:1], pack[1:]])):
        assert [episode.id_ for episode in same_pack] == ["a\0", "a"]


def test_pack_of_unequal_spaces_raises() -> None:
    narrow, wide = (one_step(id_, observation_space=spaces.Box(-x, x, (2,))) for id_, x in (("n", 1), ("w", 2)))
    with pytest.raises(TrackMismatch, match="episode w has the observation_space"):
        EpisodePack.from_episodes([narrow, wide])
    with pytest.raises(TrackMismatch, match="episode w has the observation_space"):
        EpisodePack.concat([EpisodePack.from_episodes([e]) for e in (narrow, wide)])
    mixed = EpisodePack.from_episodes([one_step(), wide])
    assert mixed.observation_space == wide.observation_space

"""Round trips: tracks of every kind, infos, custom data, ids and endings are read as they were written."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pyarrow as pa
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import lists_of_episodes

from episodes import EpisodePack, MultiAgentEpisode, SingleAgentEpisode, unpack_agents
from episodes.errors import EpisodeError, WrongType
from episodes.storage import EpisodeDataset, EpisodeWriter
from episodes.storage.arrow import text_column


def written(path: Path, episodes: Sequence[SingleAgentEpisode], **options: Any) -> EpisodeDataset:
    with EpisodeWriter(path, **options) as writer:
        writer.add(episodes)
    return EpisodeDataset(path)


def some(num: int = 6, **options: Any) -> EpisodePack:
    """Return episodes of 1, 2, ... steps with distinct numbers."""
    episodes = [
        SingleAgentEpisode.from_arrays(
            np.arange(4.0 * i, 4.0 * i + 2 * k + 2).reshape(-1, 2),
            np.arange(k),
            np.arange(k) + i / 8,
            terminated=i % 2 == 0,
            id_=f"e{i}",
            **options,
        )
        for i, k in enumerate(range(1, num + 1))
    ]
    return EpisodePack.from_episodes(episodes)


@given(
    episodes=lists_of_episodes(ragged=None),
    compression=st.sampled_from(["auto", "none", "zstd"]),
    cuts=st.lists(st.integers(0, 5), max_size=3),
    flushed=st.booleans(),
)
def test_any_episodes_round_trip(
    episodes: list[SingleAgentEpisode], compression: str, cuts: list[int], flushed: bool
) -> None:
    bounds = [0, *sorted(min(cut, len(episodes)) for cut in cuts), len(episodes)]
    with tempfile.TemporaryDirectory() as path:
        with EpisodeWriter(path, compression=compression, shard_bytes=4096) as writer:
            for start, stop in pairwise(bounds):
                writer.add(episodes[start:stop])
                if flushed:
                    writer.flush()
        dataset = EpisodeDataset(path)
        expected = [SingleAgentEpisode.from_state(e.get_state()).to_numpy() for e in episodes]
        assert len(dataset) == len(expected)
        assert all(a.equals(b) for a, b in zip(dataset, expected, strict=True))
        assert dataset.pack() == EpisodePack.from_episodes(expected)
        assert dataset.num_steps == sum(map(len, expected))
        facts = {
            "id": [e.id_ for e in expected],
            "agent_id": [e.agent_id for e in expected],
            "length": [*map(len, expected)],
            "return": [e.get_return() for e in expected],
            "t_started": [e.t_started for e in expected],
            "terminated": [e.is_terminated for e in expected],
            "truncated": [e.is_truncated for e in expected],
        }
        assert {name: dataset.metadata[name].tolist() for name in facts} == facts


DTYPES = [
    "?",
    "u1",
    "i1",
    "u2",
    "i4",
    "i8",
    "u8",
    "f2",
    "f4",
    "f8",
    "c8",
    "c16",
    "g",
    ">f4",
    "S3",
    "U5",
    "M8[ns]",
    "m8[s]",
]


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_strided_arrays_of_every_dtype_and_shape_round_trip(tmp_path: Path, dtype: str, compression: str) -> None:
    for shape in [(), (1,), (3,), (0,), (2, 0, 3), (2, 3, 4)]:
        observations = np.arange(8 * int(np.prod(shape))).reshape(8, *shape).astype(dtype)[::2]
        pack = EpisodePack(observations=observations, actions=np.arange(3), rewards=np.zeros(3), lengths=[3])
        dataset = written(tmp_path / str(shape), pack, compression=compression)
        result = dataset[0].get_observations()
        assert (result.dtype, result.shape) == (observations.dtype, observations.shape)
        assert result.tobytes() == observations.tobytes()


TEXTS = st.lists(st.text("aé\U0001f600 ", max_size=40), min_size=1, max_size=4)


@settings(max_examples=15)
@given(of_writers=st.lists(st.lists(TEXTS, min_size=1, max_size=4), min_size=1, max_size=3), zstd=st.booleans())
def test_text_of_any_length_by_many_writers_round_trips(of_writers: list[list[list[str]]], zstd: bool) -> None:
    with tempfile.TemporaryDirectory() as path:
        for of_writer in of_writers:
            with EpisodeWriter(path, compression="zstd" if zstd else "auto") as writer:
                for words in of_writer:
                    action = np.array(words[1:], "U40" if len(words) > 2 else None)
                    arrays = np.array(words), action, np.ones(len(words) - 1)
                    writer.add([SingleAgentEpisode.from_arrays(*arrays) if len(words) > 1 else _seen(words[0])])
                    writer.flush()
        dataset = EpisodeDataset(path, verify=True)
        expected = [words for of_writer in of_writers for words in of_writer]
        assert [episode.get_observations().tolist() for episode in dataset] == expected
        assert [episode.get_observations().tolist() for episode in dataset.pack()] == expected
        steps = [pair for words in expected for pair in pairwise(words)]
        if steps:
            batch = dataset.sampler(steps=99, order="stored").draw()
            assert list(zip(batch["obs"].tolist(), batch["actions"].tolist(), strict=True)) == steps


def _seen(word: str) -> SingleAgentEpisode:
    return SingleAgentEpisode.from_arrays(np.array([word]), np.zeros(0, "U1"), np.zeros(0))


WORDS = st.sampled_from([1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33]).map("x".__mul__)


@settings(max_examples=25)
@given(st.lists(st.lists(WORDS, min_size=1, max_size=3), min_size=1, max_size=5))
def test_text_columns_widen_to_the_next_power_of_two(episodes: list[list[str]]) -> None:
    width = 0
    with tempfile.TemporaryDirectory() as path:
        with EpisodeWriter(path) as writer:
            for texts in episodes:
                steps, outputs = np.zeros(len(texts)), {"said": np.array(texts)}
                writer.add([SingleAgentEpisode.from_arrays([*steps, 0.0], steps, steps, extra_model_outputs=outputs)])
                longest = max(map(len, texts))
                if longest > width:
                    width = longest if not width else 1 << (longest - 1).bit_length()
        stored = [episode.get_extra_model_outputs("said") for episode in EpisodeDataset(path)]
        assert [list(texts) for texts in stored] == episodes
        assert stored[-1].dtype == np.dtype(f"U{width}")


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_slash_int_and_tuple_keys_round_trip(tmp_path: Path, compression: str) -> None:
    observations = {"a/b": np.zeros((2, 1)), "~": (np.ones(2), {7: np.arange(2)}), "0": np.zeros(2, np.int8)}
    extra = {"state/out": {"h": np.zeros((1, 2)), "c": (np.ones((1, 2)),)}, "plain": np.zeros(1)}
    episode = SingleAgentEpisode.from_arrays(observations, [0], [0.0], extra_model_outputs=extra)
    dataset = written(tmp_path, [episode], compression=compression)
    assert dataset[0].equals(episode)
    assert list(dataset[0].get_observations()) == ["a/b", "~", "0"]
    assert dataset.pack() == EpisodePack.from_episodes([episode])


def test_add_ignores_the_order_of_keys(tmp_path: Path) -> None:
    episodes = [
        SingleAgentEpisode.from_arrays({key: np.full(2, i) for key in keys}, [0], [0.0])
        for i, keys in enumerate(("ab", "ba", "ab", "ba"))
    ]
    with EpisodeWriter(tmp_path) as writer:
        for episode in episodes:
            writer.add([episode])
    dataset = EpisodeDataset(tmp_path)
    assert all(a.equals(b) for a, b in zip(dataset, episodes, strict=True))
    assert len(list(dataset.packs())) == 1


INFOS: dict[str, list[dict[Any, Any]]] = {
    "numbers": [{"x": 1, "y": 0.5}, {"x": 2}, {}],
    "nested": [{}, {"episode": {"r": 1.0, "l": 3}, "a/b": True}, {"empty": {}}],
    "arrays": [{"a": np.arange(3)}, {"a": np.arange(3)}, {"a": np.arange(3)}],
    "one-dimensional arrays of other lengths": [{"a": np.arange(1)}, {"a": np.arange(2)}, {}],
    "strings": [{"s": "a"}, {"s": "longer"}, {"s": ""}],
    "numpy's own": [{"n": np.float32(1), "s": np.str_("x")}, {"n": np.float32(2)}, {}],
    "of other kinds": [{"k": 1}, {"k": "one"}, {"k": None}],
    "lists and tuples": [{"k": [1, (2, "x")]}, {"k": (1, 2)}, {}],
    "keys that are no strings": [{1: "a"}, {}, {2: {3: 4}}],
    "times": [{"t": np.datetime64("2020-01-01")}, {}, {}],
    "spans of time": [{"t": np.timedelta64(3, "s")}, {"t": np.timedelta64(4, "h")}, {"t": np.timedelta64(5, "s")}],
}


@pytest.mark.parametrize("name", INFOS)
def test_infos_of_all_kinds_round_trip(tmp_path: Path, name: str) -> None:
    def of(infos: list[dict[Any, Any]], number: int) -> SingleAgentEpisode:
        return SingleAgentEpisode.from_arrays(np.zeros(3), [0, 1], [0.0, 0.0], infos=infos, id_=f"{name} {number}")

    episodes = [of(INFOS[name], 0), of([{}, {}, {}], 1), of(INFOS[name][::-1], 2)]
    assert all(a.equals(b) for a, b in zip(written(tmp_path / "at once", episodes), episodes, strict=True))
    with EpisodeWriter(tmp_path / "one by one") as writer:
        for episode in episodes:
            writer.add([episode])
    dataset = EpisodeDataset(tmp_path / "one by one")
    assert all(a.equals(b) for a, b in zip(dataset, episodes, strict=True))
    result, expected = dataset[0].infos[0], INFOS[name][0]
    assert {key: type(value) for key, value in result.items()} == {key: type(value) for key, value in expected.items()}


def test_timedelta_keeps_its_unit(tmp_path: Path) -> None:
    spans = [np.timedelta64(3, "s"), np.timedelta64(4, "s"), np.timedelta64(1, "m")]
    episode = SingleAgentEpisode(observations=spans, actions=[0, 1], rewards=[0.0, 0.0], len_lookback_buffer=0)
    (result,) = written(tmp_path / "data", [episode.to_numpy()])
    assert result.get_observations().tolist() == np.array(spans).tolist()


@pytest.mark.parametrize("num", [1, 3])
def test_masked_array_raises(tmp_path: Path, num: int) -> None:
    masked = np.ma.array([1, 2], mask=[False, True])
    infos = [{"k": masked}] * num + [{}] * (3 - num)
    episode = SingleAgentEpisode.from_arrays(np.zeros(3), [0, 1], [0.0, 0.0], infos=infos)
    with pytest.raises(WrongType, match=r"infos\['k'\].*its data and its mask"):
        written(tmp_path / "data", [episode])


def test_infos_of_changing_kinds_start_few_shards(tmp_path: Path) -> None:
    values = [1, 0.5, np.arange(2), "text", np.arange(3), None, [1], 2, 3.5, np.zeros((2, 2))] * 3
    episodes = [
        SingleAgentEpisode.from_arrays(np.zeros(2), [0], [0.0], infos=[{"k": value}, {}], id_=str(i))
        for i, value in enumerate(values)
    ]
    with EpisodeWriter(tmp_path) as writer:
        for episode in episodes:
            writer.add([episode])
    assert all(a.equals(b) for a, b in zip(EpisodeDataset(tmp_path), episodes, strict=True))
    assert len(list(tmp_path.glob("*.arrow"))) == 2  # typed; then documents


def test_ids_of_any_kind_round_trip(tmp_path: Path) -> None:
    ids: list[Any] = [7, "seven", (1, "a"), b"raw", 1.5]
    episodes = [
        SingleAgentEpisode.from_arrays([0.0, 1.0], [0], [0.0], id_=id_, agent_id=id_, module_id=None if i else "m")
        for i, id_ in enumerate(ids)
    ]
    dataset = written(tmp_path, episodes)
    assert [e.id_ for e in dataset] == ids
    assert all(a.equals(b) for a, b in zip(dataset, episodes, strict=True))
    assert dataset.metadata["agent_id"].tolist() == ids


@given(
    st.lists(st.text(st.sampled_from("ab\0\x7f\x80é€"), max_size=3), max_size=4), st.sampled_from(["<U3", ">U3", "O"])
)
def test_text_column_equals_arrows_own(texts: list[str], dtype: str) -> None:
    of_one_length = [text for text in texts if len(text) == len(texts[0])]
    for array in (np.array(texts, dtype), np.array(of_one_length, dtype), np.array(of_one_length, dtype)[::-2]):
        array = array.astype(f"{dtype[0]}U{max(map(len, array.tolist()), default=0)}") if dtype != "O" else array
        result = text_column(array)
        result.validate(full=True)
        assert result.equals(pa.array(array.tolist(), pa.string()))


SPACES: dict[str, spaces.Space] = {
    "box": spaces.Box(-np.inf, np.inf, (4,), np.float32),
    "box with bounds": spaces.Box(np.array([0.0, -np.inf]), np.array([1.0, 2.0]), dtype=np.float64),
    "image": spaces.Box(0, 255, (8, 8, 3), np.uint8),
    "discrete": spaces.Discrete(5, start=-2),
    "multi-discrete": spaces.MultiDiscrete([[2, 3], [4, 5]]),
    "multi-discrete with start": spaces.MultiDiscrete([2, 3], start=[5, 6]),
    "multi-binary": spaces.MultiBinary([2, 3]),
    "flat multi-binary": spaces.MultiBinary(4),
    "text": spaces.Text(7, min_length=2, charset="abc"),
    "ragged": spaces.Sequence(spaces.Discrete(100), stack=True),
    "nested": spaces.Dict({"z": spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 1, ()))), "a": spaces.MultiBinary(1)}),
}


@pytest.mark.parametrize("name", SPACES)
def test_spaces_round_trip(tmp_path: Path, name: str) -> None:
    EpisodeWriter(tmp_path, observation_space=SPACES[name], action_space=spaces.Discrete(2)).close()
    dataset = EpisodeDataset(tmp_path)
    assert dataset.observation_space == SPACES[name]
    assert getattr(dataset.observation_space, "dtype", None) == getattr(SPACES[name], "dtype", None)
    assert dataset.action_space == spaces.Discrete(2)
    assert len(dataset) == 0


def test_env_spec_and_metadata_round_trip(tmp_path: Path) -> None:
    spec = gym.spec("CartPole-v1")
    plain = {"author": "me", "scores": [1, 2.5, (2,)], "pair": (1, 2), "nan": float("nan"), 3: None}
    facts = plain | {"table": np.arange(3)}
    EpisodeWriter(tmp_path / "a", env_spec=spec, metadata=facts).close()
    dataset = EpisodeDataset(tmp_path / "a")
    assert dataset.env_spec == spec
    assert dataset.user_metadata.pop("table").tolist() == [0, 1, 2]
    assert repr(dataset.user_metadata) == repr(plain)
    EpisodeWriter(tmp_path / "b", env_spec="CartPole-v1", metadata={"n": 1}).close()
    assert EpisodeDataset(tmp_path / "b").env_spec == "CartPole-v1"
    assert EpisodeDataset(tmp_path / "b").user_metadata == {"n": 1}


def test_metadata_has_seeds(tmp_path: Path) -> None:
    make = lambda **data: SingleAgentEpisode.from_arrays([0.0, 1.0], [0], [0.0], custom_data=data)  # noqa: E731
    dataset = written(tmp_path, [make(seed=3), make(), make(seed=np.int64(5)), make(seed="none"), make(seed=-1)])
    assert dataset.metadata["seed"].tolist() == [3, -1, 5, -1, -1]


def test_added_episode_may_be_changed_before_flush(tmp_path: Path) -> None:
    rewards, facts, info = np.ones(2), {"k": 1}, {"i": 1}
    plain, other = (SingleAgentEpisode.from_arrays(np.zeros(3), [0, 1], rewards) for _ in range(2))
    episode = SingleAgentEpisode.from_arrays(np.zeros(3), [0, 1], rewards, infos=[info, {}, {}], custom_data=facts)
    with EpisodeWriter(tmp_path) as writer:
        for added in (episode, plain, other):  # the last one waits unpacked
            writer.add([added])
        rewards[:] = 7.0
        episode.custom_data["k"] = info["i"] = 2
    dataset = EpisodeDataset(tmp_path)
    assert [result.get_rewards().tolist() for result in dataset] == [[1.0, 1.0]] * 3
    assert (dataset[0].custom_data, dataset[0].infos[0]) == ({"k": 1}, {"i": 1})


def test_episodes_without_steps_in_any_order(tmp_path: Path) -> None:
    reset = SingleAgentEpisode("reset only", observations=[np.zeros(2, np.float32)], len_lookback_buffer=0)
    step = SingleAgentEpisode.from_arrays(
        np.zeros((2, 2), np.float32), np.zeros((1, 3), np.float16), [1.0], extra_model_outputs={"v": np.ones((1, 2))}
    )
    with EpisodeWriter(tmp_path) as writer:
        for episode in (reset, step, reset):
            writer.add([episode])
            writer.flush()
    dataset = EpisodeDataset(tmp_path)
    assert [len(e) for e in dataset] == [0, 1, 0]
    assert dataset[1].equals(step)
    assert dataset.pack()[2].get_observations().tolist() == [[0.0, 0.0]]
    assert dataset[0].get_observations().tolist() == [[0.0, 0.0]]


def multi_agent_episode(length: int) -> MultiAgentEpisode:
    """Return an episode of two agents that take turns, one with a pending action at the end."""
    episode = MultiAgentEpisode(f"game{length}")
    episode.add_env_reset(observations={"a": np.zeros(2)}, infos={"a": {"begin": 1}})
    for t in range(length):
        left, second = ("a", "b") if t % 2 == 0 else ("b", "a")
        episode.add_env_step({second: np.full(2, float(t))}, {left: t % 2}, {left: 0.5 * t})
    return episode


def test_multi_agent_episodes_round_trip(tmp_path: Path) -> None:
    games = [multi_agent_episode(n) for n in (4, 7)]
    with EpisodeWriter(tmp_path) as writer:
        for game in games:
            writer.add([game])
    dataset = EpisodeDataset(tmp_path)
    assert len(dataset) == 4
    assert dataset.metadata["agent_id"].tolist() == ["a", "b", "a", "b"]
    result = {game.id_: game for game in unpack_agents(list(dataset.packs()))}
    assert all(result[game.id_].equals(game.to_numpy()) for game in games)


def test_files_contain_no_pickles(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            raise AssertionError("pickled")

    with EpisodeWriter(tmp_path) as writer:
        with pytest.raises(EpisodeError, match=r"custom_data\['trap'\]"):
            writer.add([SingleAgentEpisode.from_arrays([0.0, 1.0], [0], [0.0], custom_data={"trap": Trap()})])
        infos = [{"deep": {"trap": Trap()}}, {}]
        with pytest.raises(EpisodeError, match=r"infos\['deep'\]\['trap'\]"):
            writer.add([SingleAgentEpisode.from_arrays([0.0, 1.0], [0], [0.0], infos=infos)])
        writer.add(some(infos=None, custom_data={"k": (1, 2)}))
    assert len(EpisodeDataset(tmp_path)) == 6
    assert not any(b"cnumpy" in file.read_bytes() or b"numpy._core" in file.read_bytes() for file in tmp_path.iterdir())


def test_other_byte_order_round_trips(tmp_path: Path) -> None:
    arrays = {"observations": {"a": np.ones((3, 2), ">f4")}, "actions": np.ones(2, ">i4"), "rewards": np.ones(2, ">f8")}
    first, second = both = [SingleAgentEpisode.from_arrays(**arrays, id_=id_) for id_ in "ab"]
    packs = [EpisodePack(**arrays, lengths=[2], ids=[id_]) for id_ in "ab"]
    for number, written in enumerate(([first], both, packs[0], EpisodePack.concat(packs))):
        with EpisodeWriter(tmp_path / str(number)) as writer:
            writer.add(written)
        for read in EpisodeDataset(tmp_path / str(number))[:]:
            assert read.equals(second if read.id_ == "b" else first)
            assert read.actions.data.dtype.str == ">i4"


@pytest.mark.parametrize("keys", [[0, 1], [1, 0], ["a", 1]])
def test_observations_with_int_keys_round_trip(tmp_path: Path, keys: list[Any]) -> None:
    episode = SingleAgentEpisode()
    episode.add_env_reset({key: np.zeros(2, np.float32) for key in keys})
    episode.add_env_step({key: np.full(2, n, np.float32) for n, key in enumerate(keys)}, 0, 1.0, terminated=True)
    pack = EpisodePack.from_episodes([episode.to_numpy(), episode])
    assert pack[1].equals(episode)
    with EpisodeWriter(tmp_path) as writer:
        writer.add(pack[:1])
    read = EpisodeDataset(tmp_path)[0]
    assert read.equals(episode)
    assert list(read.get_observations(0)) == keys

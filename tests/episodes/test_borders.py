"""Arrays and infos of any type survive every kind of storage unchanged, or raise a clear error."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from episodes import EpisodePack, SingleAgentEpisode, VectorRecorder
from episodes.errors import EpisodeError, ShapeMismatch
from episodes.replay import EpisodeReplayBuffer
from episodes.storage import EpisodeDataset, EpisodeWriter
from episodes.tracks import nested

DTYPES = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "g", "c8", "c16", "U3", "S3"]
DTYPES += ["M8[s]", "m8[ns]", ">f4", ">i8", "O", "a:f4", "V4"]
SHAPES: list[tuple[int, ...]] = [(), (1,), (3,), (2, 3), (0,), (2, 0, 3), (2, 2, 2)]
TRACKS = ("observations", "actions", "rewards", "extra_model_outputs")


def an_array(rng: np.random.Generator, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return an array with rare values: bounds, NaN, NaT, infinities."""
    dtype = np.dtype([("a", "f4"), ("b", "i2")] if dtype == "a:f4" else dtype)
    num = int(np.prod(shape))
    if dtype.kind in "iu":
        values = [[0, 7, np.iinfo(dtype).min, np.iinfo(dtype).max][i] for i in rng.integers(0, 4, num)]
    elif dtype.kind in "fc":
        values = rng.choice([0.5, -1.25, np.nan, np.inf, 3.0], num).tolist()
    elif dtype.kind in "US":
        values = rng.choice(["a", "bc", "", "x\0y"], num).tolist()
    elif dtype.kind in "Mm":
        values = [np.array(["NaT", 5][i], dtype) for i in rng.integers(0, 2, num)]
    else:
        values = np.zeros(num, dtype).tolist() if dtype.kind != "?" else (rng.random(num) < 0.5).tolist()
    array = np.zeros(num, dtype)
    for i, value in enumerate(values):
        array[i] = value
    return array.reshape(shape)


def laid_out(rng: np.random.Generator, array: np.ndarray, path: Path) -> Any:
    """Return the array in another memory layout, or an equivalent object."""
    if not array.ndim:
        return [array, array[()]][int(rng.integers(2))]
    kind = int(rng.integers(8))
    if kind == 0:
        return np.asfortranarray(array)
    if kind == 1:
        return np.ascontiguousarray(array[::-1])[::-1]
    if kind == 2:
        apart = np.zeros((2 * len(array), *array.shape[1:]), array.dtype)
        apart[::2] = array
        return apart[::2]
    if kind == 3:
        return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 0, -1)), -1, 0)
    if kind == 4:
        array = array.copy()
        array.flags.writeable = False
    if kind == 5 and array.size and not array.dtype.hasobject:
        array.tofile(file := path / f"{rng.integers(1 << 60)}")
        return np.memmap(file, array.dtype, "r", shape=array.shape)
    if kind == 6 and array.size and array.dtype.str[1:] in ("i8", "f8", "U3", "b1"):
        return array.tolist()
    return np.broadcast_to(array[:1], array.shape) if kind == 7 else array


@contextmanager
def refused_by_name(*names: str) -> Iterator[None]:
    """Return a context manager that accepts errors of this library with one of these names."""
    try:
        yield
    except EpisodeError as error:
        if not any(name in str(error) for name in names):
            raise


def check_arrays(episode: SingleAgentEpisode, items: dict[str, list[Any]], first: int = 0) -> None:
    """Assert that the episode has these items from step `first` on."""
    result = {"observations": episode.get_observations(), "actions": episode.get_actions()}
    result |= {"rewards": episode.get_rewards(), "extra": episode.get_extra_model_outputs("extra")}
    for name, track in result.items():
        assert len(track) == len(items[name]) - first
        for item, expected in zip(track, items[name][first:], strict=True):
            assert nested.equal_arrays(item, expected), (name, item, expected)
            assert name == "rewards" or np.asarray(item).dtype.kind == np.asarray(expected).dtype.kind


@pytest.mark.parametrize("seed", range(6))
def test_arrays_of_any_layout_round_trip_or_raise(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    for run in range(40):
        num = int(rng.integers(1, 4))
        items: dict[str, list[Any]] = {}
        for name, size in (("observations", num + 1), ("actions", num), ("extra", num), ("rewards", num)):
            dtype, shape = rng.choice(DTYPES), SHAPES[rng.integers(len(SHAPES))]
            if name == "rewards":
                dtype, shape = rng.choice(["f4", "f8", "i1", "u2", "?", "f2"]), ()
            items[name] = [laid_out(rng, an_array(rng, dtype, shape), tmp_path) for _ in range(size)]
        check_every_way(rng, items, tmp_path / f"data{run}")


def check_every_way(rng: np.random.Generator, items: dict[str, list[Any]], path: Path) -> None:
    """Send an episode of the items through every kind of storage, and compare."""
    episode = SingleAgentEpisode("e")
    episode.add_env_reset(items["observations"][0])
    steps = zip(*(items[name] for name in ("actions", "rewards", "extra")), items["observations"][1:], strict=True)
    for action, reward, extra, observation in steps:
        episode.add_env_step(observation, action, reward, extra_model_outputs={"extra": extra})
    check_arrays(episode, items)
    grown = pickle.loads(pickle.dumps(episode))
    check_arrays(grown, items)
    with refused_by_name(*TRACKS):
        episode.to_numpy()
    check_arrays(episode, items)
    if not episode.is_numpy:
        return
    repr(episode)
    check_arrays(episode[1:], items, 1)
    first, remaining = episode[: (at := int(rng.integers(len(episode) + 1)))], episode[at:]
    first.concat_episode(remaining)
    grown.concat_episode(grown.cut())
    with refused_by_name(*TRACKS):
        first.id_, grown.id_ = "first", "grown"  # an id belongs to one episode of a data set
        pack = EpisodePack.from_episodes([episode, first, grown])
        for current in (*pack, *pickle.loads(pickle.dumps(pack, 5)), *EpisodePack.concat([pack, pack])):
            check_arrays(current, items)
        assert SingleAgentEpisode.from_state(episode.get_state()).equals(pack[0])
        assert pickle.loads(pickle.dumps(pack)) == pack
        with EpisodeWriter(path) as writer:
            writer.add(pack)
        for current in (stored := EpisodeDataset(path).pack()):
            check_arrays(current, items)
        assert stored == pack
    with refused_by_name(*TRACKS):
        (buffer := EpisodeReplayBuffer(50, seed=0)).add([episode])
        buffer.sample(2)
        check_arrays(buffer.sample_episodes(1)[0], items)


@pytest.mark.parametrize(
    ("items", "named"),
    [
        (["a", "b\0"], r"item 1, 'b\\x00', ends with a NUL"),
        ([b"a\0", b"b"], "item 0, .* ends with a NUL"),
        ([1, "a"], "item 1 is 'a', item 0 is 1; give items of one kind"),
        (["a", b"a"], "item 1 is b'a', item 0 is 'a'"),
        ([{"x": "a"}, {"x": np.str_("b\0")}], "item 1, .* ends with a NUL"),
    ],
)
def test_strings_that_arrays_would_change_raise(items: list[Any], named: str) -> None:
    episode = SingleAgentEpisode("e", observations=items, actions=[0], rewards=[1.0], len_lookback_buffer=0)
    with pytest.raises(ShapeMismatch, match=f"observations: {named}"):
        episode.to_numpy()
    assert episode.get_observations() == items


# --- infos -------------------------------------------------------------------------------------------------------


class Thing:
    """An object without any encoding."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thing)

    __hash__ = None  # type: ignore[assignment]


def a_value(rng: np.random.Generator, depth: int = 0) -> Any:
    """Return a random value of an info, of any kind."""
    n, deeper = int(rng.integers(-5, 99)), depth < 2
    kinds: list[Any] = [None, n, n / 3, True, "s" * (n % 7), "a\0", "x/y~z", float("nan"), 2**70 + n, b"\0\xff"]
    kinds += [
        -(2**70),
        np.float32(n),
        np.int8(n),
        np.bool_(n % 2),
        np.str_("q\0"),
        np.datetime64("2020-01-01"),
        np.array(3.5),
    ]
    kinds += [np.arange(n % 4), np.zeros((2, n % 3)), np.array(["a", "bcd"]), np.ones((2, 3), order="F")[:, ::-1]]
    kinds += [lambda: [a_value(rng, depth + 1) for _ in range(n % 3)], lambda: (a_value(rng, depth + 1),)] * deeper
    kinds += [lambda: {f"k{i}": a_value(rng, depth + 1) for i in range(n % 3)}, lambda: {1: n}] * deeper
    value = kinds[rng.integers(len(kinds))]
    return value() if callable(value) else value


def an_info(rng: np.random.Generator) -> dict[str, Any]:
    """Return a random info, with unusual keys."""
    keys = ["a", "b", "a/b", "", "~", "log", "_a", "long" * 20]
    return {key: a_value(rng) for key in rng.choice(keys, rng.integers(0, 4), replace=False).tolist()}


def check_same(value: Any, expected: Any, label: str = "") -> None:
    """Assert that both values are equal and of the same types."""
    assert type(value) is type(expected), label
    if isinstance(expected, dict):
        assert value.keys() == expected.keys(), label
        for key, part in expected.items():
            check_same(value[key], part, f"{label}[{key!r}]")
    elif isinstance(expected, (list, tuple)):
        assert len(value) == len(expected), label
        for i, part in enumerate(expected):
            check_same(value[i], part, f"{label}[{i}]")
    elif isinstance(expected, np.ndarray):
        assert value.dtype == expected.dtype, label
        assert nested.equal_arrays(value, expected), label
    else:
        assert value == expected or value != value, label


@pytest.mark.parametrize("seed", range(4))
def test_infos_of_any_kind_round_trip_everywhere(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    for run in range(30):
        infos = [an_info(rng) if rng.random() < 0.8 else {} for _ in range(int(rng.integers(2, 6)))]
        if rng.random() < 0.3:
            infos = [infos[0]] * len(infos)
        episode = SingleAgentEpisode("e")
        episode.add_env_reset(0.0, infos[0])
        for info in infos[1:]:
            episode.add_env_step(0.0, 0, 1.0, info)
        check_same(episode.get_infos(), infos)
        check_same(episode.to_numpy().get_infos(), infos)
        check_same(episode[1:].get_infos(), infos[1:])
        (whole := episode[:1]).concat_episode(episode[1:])
        whole.id_, (again := copy.copy(whole)).id_ = "whole", "again"  # an id belongs to one episode of a data set
        pack = EpisodePack.from_episodes([episode, whole])
        with EpisodeWriter(path := tmp_path / str(run)) as writer:
            writer.add(pack)
            writer.add([again])
        (buffer := EpisodeReplayBuffer(50, seed=0)).add([episode])
        ways = [*pack, *pack.select([1]), *pickle.loads(pickle.dumps(pack)), *EpisodePack.concat([pack, pack[:1]])]
        ways += [*EpisodeDataset(path), pickle.loads(pickle.dumps(episode)), buffer.sample_episodes(1)[0]]
        for current in ways:
            check_same(current.get_infos(), infos)
        assert EpisodeDataset(path).pack()[:2] == pack


def test_objects_in_infos_raise_when_sent_or_written(tmp_path: Path) -> None:
    infos = [{"log": {"deep": [1, Thing()]}}, {}]
    episode = SingleAgentEpisode.from_arrays(np.zeros(2), np.zeros(1), np.zeros(1), infos=infos)
    pack = EpisodePack.from_episodes([episode])
    assert pack[0].get_infos() == infos
    for travel in (lambda: pickle.dumps(pack), lambda: EpisodeWriter(tmp_path).add(pack)):
        with pytest.raises(EpisodeError, match=r"infos\['log'\]\['deep'\]\[1\] cannot be written.*Thing"):
            travel()


def a_row(rng: np.random.Generator, num: int, depth: int = 0) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a vector environment's info with masks, and the info of each environment."""
    row: dict[str, Any] = {}
    current: list[dict[str, Any]] = [{} for _ in range(num)]
    for key in rng.choice(["a", "b", "x/y", "log"], rng.integers(0, 4), replace=False).tolist():
        objects = np.empty(num, object)
        objects[:] = [Ellipsis] * num
        for env in range(num):
            objects[env] = a_value(rng, 1)
        arrays = [rng.random(num, np.float32), rng.integers(0, 9, (num, 2)), rng.random(num) < 0.5, objects]
        kind = int(rng.integers(7 if depth < 2 else 6))
        if kind == 6:
            row[key], dealt = a_row(rng, num, depth + 1)
        elif kind > 3:
            row[key] = [1.5, "all"][kind - 4]
            dealt = [row[key]] * num
        else:
            row[key] = arrays[kind]
            dealt = list(arrays[kind])
        present = rng.random(num) < 0.6
        if kind < 4 or kind == 6:
            row["_" + key] = present
        for env in np.flatnonzero(present if "_" + key in row else np.ones(num, bool)).tolist():
            if kind != 6 or dealt[env]:
                current[env][key] = dealt[env]
    return row, current


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_vector_infos_with_masks_reach_each_environment(mode: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for run in range(25):
        num = int(rng.integers(1, 4))
        recorder = VectorRecorder(num, autoreset_mode=mode)
        rows = [a_row(rng, num) for _ in range(5)]
        recorder.reset(np.zeros(num), rows[0][0])
        for row, _ in rows[1:]:
            recorder.step(*np.zeros((3, num)), np.zeros(num, bool), np.zeros(num, bool), row)
        pack = recorder.take()
        with EpisodeWriter(path := tmp_path / str(run)) as writer:
            writer.add(pack)
        for way in (pack, pickle.loads(pickle.dumps(pack)), EpisodeDataset(path)):
            for env in range(num):
                check_same(way[env].get_infos(), [current[env] for _, current in rows])

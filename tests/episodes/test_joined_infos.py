"""Infos of concatenated packs are joined at the first read, and every reader gets equal values."""

from __future__ import annotations

import copy
import pickle
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from episodes import EpisodePack
from episodes.replay import EpisodeReplayBuffer
from episodes.storage import EpisodeDataset, EpisodeWriter
from episodes.tracks.infos.info_column import TypedColumn
from episodes.tracks.infos.infos import same_info
from episodes.tracks.infos.joined_column import JoinedColumn
from tests.episodes.test_held_memory import pickled_apart, sent, sent_all

STEPS, EPISODES = 5, 3
ROWS = EPISODES * (STEPS + 1)
WAIT = 60  # seconds that no thread needs

VALUES: dict[str, Callable[[np.random.Generator], Any]] = {  # long ones: what is short is copied at once
    "beams": lambda rng: rng.random(256),
    "log/pixels": lambda rng: rng.integers(0, 256, (32, 64), np.uint8),
    "words": lambda rng: "".join(rng.choice(list("abc"), 300)),
    "counts": lambda rng: rng.integers(0, 99, 256, np.int64),
    "energy": lambda rng: float(rng.random()),
    "moves": lambda rng: ["e4"] * int(rng.integers(0, 3)),
}


def pack_with(infos: list[dict[str, Any]], num: int = EPISODES, seed: int = 0) -> EpisodePack:
    """Return a pack with read-only infos, like packs of recorders, messages and pickles."""
    rng = np.random.default_rng(seed)
    steps = (len(infos) - num) // num
    pack = EpisodePack(
        observations=rng.standard_normal((len(infos), 2), np.float32),
        actions=rng.integers(0, 2, num * steps),
        rewards=rng.random(num * steps, np.float32),
        lengths=[steps] * num,
        infos=infos,
        ids=[f"{seed}-{i}" for i in range(num)],
    )
    return pickled_apart(pack)


def info_rows(paths: frozenset[str], seed: int, gaps: bool) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    for _ in range(ROWS):
        info: dict[str, Any] = {}
        for path in sorted(paths):
            *parents, last = path.split("/")
            inner = info
            for parent in parents:
                inner = inner.setdefault(parent, {})
            if not gaps or rng.random() < 0.7:
                inner[last] = VALUES[path](rng)
        rows.append(info)
    return rows


@st.composite
def packs(draw: st.DrawFn) -> list[EpisodePack]:
    """Draw packs with mostly equal keys of infos, some of them parts of larger packs."""
    paths = draw(st.frozensets(st.sampled_from(sorted(VALUES)), min_size=1))
    result_value = []
    for seed in range(draw(st.integers(2, 3))):
        current = draw(st.frozensets(st.sampled_from(sorted(VALUES)))) if draw(st.integers(0, 3)) == 0 else paths
        pack = pack_with(info_rows(current, seed, draw(st.booleans())), seed=seed)
        result_value.append(pack[draw(st.sampled_from([slice(None), slice(None), slice(1, 3), slice(2, None)]))])
    return result_value


def joined(parts: list[EpisodePack]) -> EpisodePack:
    return EpisodePack.concat(parts)


def joined_at_once(parts: list[EpisodePack]) -> EpisodePack:
    """Return the concatenation of writable copies, whose infos are joined at once."""
    pack = EpisodePack.concat([part.copied() for part in parts])
    assert not waiting(pack)
    return pack


def waiting(pack: EpisodePack) -> list[str]:
    """Return the paths of the infos that are not joined yet."""
    infos = pack.columns.infos.data
    return [path for path, column in infos.columns.items() if isinstance(column, TypedColumn) and len(column.parts) > 1]


def columns(pack: EpisodePack) -> Any:
    infos = pack.infos
    typed = [(path, column) for path, column in infos.columns.items() if isinstance(column, TypedColumn)]
    return {path: {"values": c.values, "mask": c.present, "plain": c.plain, "num": c.num} for path, c in typed}


def one_by_one(pack: EpisodePack) -> Any:
    return [episode.get_infos(t) for episode in pack for t in range(len(episode) + 1)]


def stored(pack: EpisodePack) -> Any:
    with tempfile.TemporaryDirectory() as place:
        with EpisodeWriter(Path(place) / "data") as writer:
            writer.add(pack)
        return list(EpisodeDataset(Path(place) / "data").pack().infos)


def replayed(pack: EpisodePack) -> Any:
    buffer = EpisodeReplayBuffer(1000, seed=0)
    buffer.add(pack)
    return [list(buffer.sample(8, include_infos=True).infos), dict(buffer.sample(8, include_infos="columns").infos)]


READERS: dict[str, Callable[[EpisodePack], Any]] = {
    "get_infos": lambda pack: [episode.get_infos() for episode in pack],
    "get_infos(t)": one_by_one,
    "get_infos([...])": lambda pack: [episode.get_infos([0, -1]) for episode in pack],
    "infos": lambda pack: list(pack.infos),
    "infos[i]": lambda pack: [pack.infos[row] for row in range(len(pack.infos))],
    "infos[::-1]": lambda pack: list(pack.infos[::-1]),
    "columns": columns,
    "equality": lambda pack: pack == pack.copied(),
    "select": lambda pack: list(pack.select([0, len(pack) - 1]).infos),
    "select of a mask": lambda pack: list(pack.select(np.arange(len(pack)) % 2 == 0).infos),
    "a slice": lambda pack: list(pack[1:3].infos),
    "an episode's slice": lambda pack: list(pack[-1][1:3].infos),
    "from_episodes": lambda pack: list(EpisodePack.from_episodes(list(pack)).infos),
    "replace": lambda pack: list(pack.replace(rewards=pack.rewards * 2).infos),
    "state": lambda pack: [episode.get_state() for episode in pack],
    "copied": lambda pack: list(pack.copied().infos),
    "copy": lambda pack: list(copy.copy(pack).infos),
    "deepcopy": lambda pack: columns(copy.deepcopy(pack)),
    "pickle": lambda pack: list(pickle.loads(pickle.dumps(pack, 4)).infos),
    "pickle of an episode": lambda pack: list(pickle.loads(pickle.dumps(pack[0], 5)).infos),
    "pickle with buffers": lambda pack: list(pickled_apart(pack).infos),
    "disk": stored,
    "replay": replayed,
    "transport": lambda pack: list(sent(pack).infos),
    "transport, together": lambda pack: [list(part.infos) for part in sent_all([pack, pack])],
    "concat": lambda pack: list(EpisodePack.concat([pack, pack[1:2], pack]).infos),
    "concat of parts": lambda pack: list(EpisodePack.concat([pack[1:2], pack[:1]]).infos),
    "repr": repr,
}


@settings(max_examples=40)
@given(parts=packs(), readers=st.lists(st.sampled_from(sorted(READERS)), min_size=1, max_size=4))
def test_joined_infos_equal_eager_join(parts: list[EpisodePack], readers: list[str]) -> None:
    late, at_once = joined(parts), joined_at_once(parts)
    for reader in readers:
        assert same_info(READERS[reader](late), READERS[reader](at_once))
    assert same_info(columns(late), columns(at_once))
    assert late == at_once


@pytest.mark.parametrize("reader", sorted(READERS))
def test_joined_infos_any_first_reader_gets_equal_values(reader: str) -> None:
    paths = frozenset({"beams", "log/pixels", "words"})
    parts = [pack_with(info_rows(paths, seed, gaps=False), seed=seed) for seed in range(3)]
    late = joined(parts)
    assert waiting(late) == ["beams", "log/pixels", "words"]
    assert same_info(READERS[reader](late), READERS[reader](joined_at_once(parts)))


def numbers(seed: int, num: int = 4, steps: int = 1000) -> EpisodePack:
    """Return a pack with one number of 8 bytes per info."""
    rng = np.random.default_rng(seed)
    return pack_with([{"energy": energy} for energy in rng.random(num * (steps + 1)).tolist()], num, seed)


def test_joined_infos_are_not_joined_without_read() -> None:
    pack = joined([numbers(0), numbers(1)])
    assert len(pack.infos) == 8008
    assert pack[3:5].num_steps == 2000
    assert [len(episode.infos) for episode in pack] == [1001] * 8
    assert pack.returns().shape == (8,)
    repr(pack)
    assert waiting(pack) == ["energy"]


def test_joined_infos_are_joined_once_and_release_parts() -> None:
    parts = [numbers(0), numbers(1)]
    pack = joined(parts)
    (column,) = pack.infos.columns.values()  # type: ignore[attr-defined]
    assert isinstance(column, JoinedColumn)
    assert [len(part) for part in column.parts] == [4004] * 2
    assert pack.infos[5000] == parts[1].infos[996]
    assert not waiting(pack)
    (first,) = pack.infos.arrays()
    assert column.parts == (first,)
    assert pack.infos.arrays()[0] is first
    assert not any(np.shares_memory(first, current) for part in parts for current in part.infos.arrays())
    assert not first.flags.writeable
    with pytest.raises(AttributeError, match="a column has no attribute 'speed'"):
        _ = column.speed  # type: ignore[attr-defined]


def test_joined_infos_of_joined_packs_join_once() -> None:
    parts = [numbers(seed) for seed in range(4)]
    pack = joined([joined([joined(parts[:2]), parts[2]]), parts[3]])
    (column,) = pack.infos.columns.values()  # type: ignore[attr-defined]
    assert [len(part) for part in column.parts] == [4004] * 4
    assert same_info(list(pack.infos), [info for part in parts for info in part.infos])


@pytest.mark.parametrize("brought", [sent, pickled_apart])
def test_joined_pack_retained_nbytes_is_exact(brought: Any) -> None:
    pack = joined([brought(numbers(0)), brought(numbers(1))])
    infos = 2 * 4004 * 8
    before = pack.retained_nbytes
    assert pack.nbytes + infos <= before <= 1.25 * (pack.nbytes + infos)
    assert len(waiting(pack)) <= 1
    list(pack.infos)
    assert pack.nbytes + infos <= pack.retained_nbytes <= before


def test_joined_infos_of_few_rows_release_long_packs() -> None:
    long = [numbers(0, num=12), numbers(1, num=12)]
    pack = joined([long[0][2:5], long[1][2:5]])
    assert not waiting(pack)
    assert pack.retained_nbytes <= 1.25 * (pack.nbytes + 6 * 1001 * 8)
    assert same_info(list(pack.infos), [*long[0][2:5].infos, *long[1][2:5].infos])


def test_writable_infos_are_joined_at_once() -> None:
    rows = [{"beams": np.full(256, i)} for i in range(ROWS)]
    current = [pack_with(rows).copied(), pack_with(rows).copied()]
    pack = joined(current)
    assert not waiting(pack)
    current[0].infos.columns["beams"].values.base[1] = -1  # who has the memory that it views
    assert pack.infos[1]["beams"].tolist() == [1] * 256


def test_reused_memory_is_joined_at_once() -> None:
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(numbers(0), 5, buffer_callback=buffers.append)
    memory = [bytearray(buffer) for buffer in buffers]
    shared = pickle.loads(data, buffers=[memoryview(part).toreadonly() for part in memory])
    pack = joined([shared, shared])
    for part in memory:
        part[:] = bytes(len(part))
    assert same_info(list(pack.infos), list(numbers(0).infos) * 2)


def test_joined_infos_of_unequal_kinds_stay_equal() -> None:
    rows = [[{"x": np.full(256, i, dtype)} for i in range(ROWS)] for dtype in (np.float64, np.float32)]
    pack = joined([pack_with(current) for current in rows])
    assert not waiting(pack)
    assert [info["x"].dtype for info in pack.infos] == [np.float64] * ROWS + [np.float32] * ROWS


def test_joined_infos_read_by_threads_are_equal() -> None:
    parts = [numbers(seed) for seed in range(3)]
    expected = np.concatenate([part.infos.arrays()[0] for part in parts])
    with ThreadPoolExecutor(4) as pool:
        for _ in range(30):
            pack, together = joined(parts), Barrier(4)
            read = [pool.submit(_read, pack, together) for _ in range(4)]
            result_value = [item.result(WAIT) for item in read]
            assert all(np.array_equal(values, expected) for values in result_value)
            assert np.array_equal(pack.infos.arrays()[0], expected)


def _read(pack: EpisodePack, together: Barrier) -> np.ndarray:
    together.wait(WAIT)
    (column,) = pack.infos.columns.values()  # type: ignore[attr-defined]
    return column.values

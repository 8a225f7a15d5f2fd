"""Infos read as dicts in any form, and their encoding without pickles."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from episodes import EpisodePack, SingleAgentEpisode
from episodes.errors import WrongType
from episodes.recorder.info_rows import InfoRows
from episodes.replay import EpisodeReplayBuffer
from episodes.storage import EpisodeDataset, EpisodeWriter
from episodes.tracks.infos import Infos
from episodes.tracks.infos import msgpack_codec as encoding
from episodes.tracks.infos.dicts import infos_of
from episodes.tracks.infos.info_column import PackedColumn, TypedColumn
from episodes.tracks.infos.infos import same_info
from episodes.tracks.infos.joining import joined_infos

values = st.one_of(
    st.booleans(),
    st.integers(-(2**70), 2**63),
    st.floats(),
    st.text(max_size=4),
    st.none(),
    st.builds(lambda n: np.arange(n, dtype=np.int16), st.integers(0, 3)),
    st.builds(np.float32, st.integers(0, 5)),
    st.tuples(st.integers(0, 3), st.text(max_size=2)),
    st.lists(st.integers(0, 3), max_size=2),
)
infos = st.dictionaries(
    st.sampled_from(["a", "b/c", "d~"]),
    values | st.dictionaries(st.sampled_from(["x", "y"]), values, max_size=2),
    max_size=3,
)


@given(items=st.lists(infos, max_size=6), data=st.data())
def test_infos_of_dicts_read_as_equal_dicts(items: list[dict[str, Any]], data: st.DataObject) -> None:
    columns = infos_of(items)
    assert same_info(list(columns), items)
    assert same_info([columns[row] for row in range(len(items))], items)
    assert [list(map(type, a.values())) for a in columns] == [
        list(map(type, a.values())) for a in sorted_like(columns, items)
    ]
    start = data.draw(st.integers(0, len(items)))
    assert same_info(list(columns[start:]), items[start:])
    assert same_info(list(travelled(columns[start:])), items[start:])
    assert same_info(list(pickle.loads(pickle.dumps(columns[start:]))), items[start:])
    rows = np.array(data.draw(st.lists(st.integers(0, max(len(items) - 1, 0)), max_size=3)) if items else [], int)
    assert same_info(list(columns.take(rows)), [items[r] for r in rows])


def travelled(infos: Infos) -> Infos:
    return infos.without_objects()


def sorted_like(columns: Infos, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: item[key] for key in read} for read, item in zip(columns, items, strict=True)]


@given(parts=st.lists(st.lists(infos, max_size=3), min_size=1, max_size=4), data=st.data())
def test_joined_infos_read_as_concatenated_parts(parts: list[list[dict[str, Any]]], data: st.DataObject) -> None:
    items = [info for part in parts for info in part]
    joined = joined_infos([infos_of(part) for part in parts])
    assert same_info(list(joined), items)
    start, stop = sorted(data.draw(st.tuples(st.integers(0, len(items)), st.integers(0, len(items)))))
    assert same_info(list(joined[start:stop]), items[start:stop])
    assert same_info(list(joined[::-1]), items[::-1])


def test_info_values_are_typed_columns_or_msgpack() -> None:
    columns = travelled(infos_of([{"n": 1, "who": "me"}, {"n": 2, "odd": None}, {}]))
    assert isinstance(columns.columns["n"], TypedColumn)
    assert columns.columns["n"].present.tolist() == [True, True, False]
    assert isinstance(columns.columns["odd"], PackedColumn)
    assert columns[1] == {"n": 2, "odd": None}


def test_infos_with_non_string_keys_round_trip() -> None:
    items = [{1: 2, "a": {"b": 3}}, {}, {"a": {"b": 4}}]
    columns = infos_of(items)
    assert list(columns) == items
    assert list(pickle.loads(pickle.dumps(columns))) == items


def test_empty_infos_need_no_arrays() -> None:
    infos = infos_of([{}, {}, {}])
    assert (infos.arrays(), list(infos[1:])) == ([], [{}, {}])
    with pytest.raises(IndexError, match=r"infos\[3\]: there are infos 0\.\.2"):
        infos[3]


def test_info_changes_stay_local() -> None:
    array, moves = np.zeros(2), ["e4"]
    infos = infos_of([{"n": 1, "array": array, "moves": moves}, {"n": 2, "array": np.ones(3), "moves": []}])
    array[0] = 5
    moves.append("e5")
    read = infos[0]
    assert same_info(read, {"n": 1, "array": np.zeros(2), "moves": ["e4"]})
    read["n"] = 7
    read["moves"].append("d4")
    read["array"][1] = 9
    assert same_info(infos[0], {"n": 1, "array": np.zeros(2), "moves": ["e4"]})


def test_vector_infos_scalars_are_shared_by_environments() -> None:
    rows = InfoRows(2)
    slot = rows.add(
        {"fps": 30, "log": {"mean": np.float32(0.5), "name": "run"}, "per env": ["a", "b"], "steps": [1, 2, 3]}
    )
    infos = rows.gather(slot * 2 + np.arange(2))
    shared = {"fps": 30, "log": {"mean": np.float32(0.5), "name": "run"}, "steps": [1, 2, 3]}
    assert list(infos) == [{**shared, "per env": "a"}, {**shared, "per env": "b"}]
    assert list(pickle.loads(pickle.dumps(infos))) == list(infos)


VECTOR_VALUES = [np.arange(3), np.arange(3.0), np.arange(6, dtype=np.float32).reshape(3, 2), 4, 0.5, "s", [*"xyz"]]
VECTOR_INFOS = st.dictionaries(st.sampled_from(["a", "b/c", "d"]), st.sampled_from(VECTOR_VALUES), max_size=3)


@given(
    given_rows=st.lists(st.tuples(VECTOR_INFOS, st.tuples(*[st.booleans()] * 3)), min_size=1, max_size=6),
    drops=st.booleans(),
)
def test_vector_info_rows_read_per_environment(given_rows: list[Any], drops: bool) -> None:
    rows, recorded = InfoRows(3), {}
    for info, mask in given_rows:  # the mask is that of the first key
        masks = dict.fromkeys(list(info)[:1], mask)
        slot = rows.add(info | {f"_{key}": np.array(mask) for key, mask in masks.items()})
        recorded[slot] = [
            {key: dealt(item, env) for key, item in info.items() if masks.get(key, (True,) * 3)[env]}
            for env in range(3)
        ]
    if drops:
        stored = np.array(sorted(recorded))
        recorded = {int(new): recorded[old] for old, new in zip(stored.tolist(), rows.keep(stored), strict=True)}
    for slot, infos in recorded.items():
        assert same_info(list(rows.gather(slot * 3 + np.arange(3))), infos)


def dealt(item: Any, env: int) -> Any:
    return item[env] if isinstance(item, (np.ndarray, list)) else item


@given(
    value=st.recursive(values, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=3), v, max_size=3))
)
def test_msgpack_codec_round_trips(value: Any) -> None:
    assert same_info(encoding.decode(encoding.encode(value, "value")), value)


def test_info_tensors_round_trip_as_arrays() -> None:
    class Own: ...

    number = torch.ones(2, requires_grad=True) * 3
    infos = infos_of([{"t": number, "b": number.to(torch.bfloat16)}, {"t": "none"}])
    travelled = pickle.loads(pickle.dumps(infos)).item(0)
    assert [travelled[key].tolist() for key in "tb"] == [[3.0, 3.0], [3.0, 3.0]]
    infos = infos_of([{"o": Own()}, {"o": 1, "list": [1]}])
    copied = copy.deepcopy(infos)
    assert type(copied.item(0)["o"]) is Own
    assert copied.item(0)["o"] is not infos.item(0)["o"]
    with pytest.raises(WrongType, match="Own"):
        pickle.dumps(infos)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({}, "infos is a dict"),
        ({"a": [1, 2, 3]}, "infos is a dict"),
        ("abc", "infos is a str"),
        (3, "infos is a int"),
        (iter([{}, {}, {}]), "infos is a list_iterator"),
        ([{}, None, {}], r"infos\[1\] is a NoneType"),
        ([1, 2, 3], r"infos\[0\] is a int"),
    ],
)
def test_infos_that_are_no_list_of_dicts_are_named(wrong: Any, message: str) -> None:
    arrays = {"observations": np.zeros((3, 1)), "actions": np.zeros(2, np.int64), "rewards": np.zeros(2)}
    pack = EpisodePack(**arrays, lengths=[2])
    calls = [
        lambda: EpisodePack(**arrays, lengths=[2], infos=wrong),
        lambda: SingleAgentEpisode.from_arrays(**arrays, infos=wrong),
        lambda: pack.replace(infos=wrong),
    ]
    for call in calls:
        with pytest.raises(WrongType, match=f"{message}.*; give a"):
            call()


@pytest.mark.parametrize("num_dimensions", [32, 33, 64])
def test_infos_of_many_dimensions_are_kept_everywhere(num_dimensions: int, tmp_path: Path) -> None:
    from episodes.transport.wire import Schemas, decoded, encoded, layouts_of

    value = np.full((1,) * num_dimensions, 3.0)
    growing = SingleAgentEpisode(id_="a")
    growing.add_env_reset(np.zeros(1, np.float32), {"value": value})
    growing.add_env_step(np.ones(1, np.float32), 0, 1.0, {"value": value + 1})
    episode = growing.to_numpy()
    pack = EpisodePack.from_episodes([episode])
    message, buffer = encoded([pack], Schemas()), EpisodeReplayBuffer(10, seed=0)
    buffer.add(episode)
    with EpisodeWriter(tmp_path / "data") as writer:
        writer.add(episode)
    results = {
        "episode": episode,
        "pack": pack[0],
        "pickle": pickle.loads(pickle.dumps(episode)),
        "file": EpisodeDataset(tmp_path / "data")[0],
        "message": decoded(layouts_of(message.schema), message.parts())[0][0],
        "replay": buffer.sample_episodes(1)[0],
    }
    for place, result in results.items():
        assert same_info(list(result.get_infos()), [{"value": value}, {"value": value + 1}]), place

"""Infos are dicts when read, whatever they are kept as, and travel without pickles."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from episodes.errors import WrongType
from episodes.tracks.infos import Infos
from episodes.tracks.infos import documents as encoding
from episodes.tracks.infos.columns import ColumnInfos, PackedColumn, TypedColumn
from episodes.tracks.infos.kinds import EmptyInfos, ListInfos, VectorInfos, same_info

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


def in_msgpack_range(value: Any) -> bool:
    if isinstance(value, dict | list | tuple):
        return all(in_msgpack_range(v) for v in (value.values() if isinstance(value, dict) else value))
    return not (type(value) is int and not -(2**63) <= value < 2**64)


@given(items=st.lists(infos.filter(in_msgpack_range), max_size=6), data=st.data())
def test_infos_as_columns_read_as_the_dicts_that_went_in(items: list[dict[str, Any]], data: st.DataObject) -> None:
    columns = ColumnInfos.of(ListInfos.of(items))
    assert same_info(list(columns), items)
    assert [list(map(type, a.values())) for a in columns] == [
        list(map(type, a.values())) for a in sorted_like(columns, items)
    ]
    start = data.draw(st.integers(0, len(items)))
    assert same_info(list(columns[start:]), items[start:])
    assert same_info(list(ColumnInfos.of(columns[start:])), items[start:])
    assert same_info(list(pickle.loads(pickle.dumps(columns[start:]))), items[start:])
    rows = np.array(data.draw(st.lists(st.integers(0, max(len(items) - 1, 0)), max_size=3)) if items else [], int)
    assert same_info(list(columns.take(rows)), [items[r] for r in rows])


def sorted_like(columns: Infos, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: item[key] for key in read} for read, item in zip(columns, items, strict=True)]


@given(parts=st.lists(st.lists(infos, max_size=3), min_size=1, max_size=4), data=st.data())
def test_joined_infos_read_as_their_parts_one_after_another(
    parts: list[list[dict[str, Any]]], data: st.DataObject
) -> None:
    items = [info for part in parts for info in part]
    kept = [ListInfos.of(part) for part in parts]
    joined = Infos.concat(kept)
    assert same_info(list(joined), items)
    start, stop = sorted(data.draw(st.tuples(st.integers(0, len(items)), st.integers(0, len(items)))))
    assert same_info(list(joined[start:stop]), items[start:stop])
    assert same_info(list(joined[::-1]), items[::-1])


def test_regular_values_are_typed_columns_and_others_are_msgpack() -> None:
    columns = ColumnInfos.of(ListInfos.of([{"n": 1, "who": "me"}, {"n": 2, "odd": None}, {}]))
    assert isinstance(columns, ColumnInfos)
    assert isinstance(columns.columns["n"], TypedColumn)
    assert columns.columns["n"].present.tolist() == [True, True, False]
    assert isinstance(columns.columns["odd"], PackedColumn)
    assert columns[1] == {"n": 2, "odd": None}


def test_what_cannot_travel_is_named_by_its_key() -> None:
    with pytest.raises(WrongType, match=r"infos\['a'\]\['b'\]\[1\] cannot be written as msgpack: a object"):
        ColumnInfos.of(ListInfos.of([{"a": {"b": (1, object())}}]))


def test_infos_whose_keys_are_no_strings_travel_whole() -> None:
    items = [{1: 2, "a": {"b": 3}}, {}, {"a": {"b": 4}}]
    columns = ColumnInfos.of(ListInfos.of(items))
    assert list(pickle.loads(pickle.dumps(columns))) == items


def test_infos_of_a_vector_environment_are_read_per_environment() -> None:
    row = {
        "speed": np.array([1.0, 2.0]),
        "_speed": np.array([True, False]),
        "nested": {"x": np.array([5, 6]), "_x": np.array([True, True])},
        "_nested": np.array([False, True]),
        "final_obs": np.array([None, None], object),
    }
    infos = VectorInfos([row, {}], np.array([0, 0, 1]), np.array([0, 1, 0]))
    assert list(infos) == [{"speed": 1.0}, {"nested": {"x": 6}}, {}]
    assert infos[1:][0] == {"nested": {"x": 6}}


def test_empty_infos_take_no_room_and_read_as_empty_dicts() -> None:
    infos = ListInfos.of([{}, {}, {}])
    assert isinstance(infos, EmptyInfos)
    assert list(infos[1:]) == [{}, {}]
    with pytest.raises(IndexError, match=r"infos\[3\]: there are infos 0\.\.2"):
        infos[3]


@given(
    value=st.recursive(values, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=3), v, max_size=3))
)
def test_msgpack_gives_back_the_very_value(value: Any) -> None:
    if in_msgpack_range({"": value}):
        assert same_info(encoding.decode(encoding.encode(value, "value")), value)
    else:
        with pytest.raises(WrongType, match="value"):
            encoding.encode(value, "value")

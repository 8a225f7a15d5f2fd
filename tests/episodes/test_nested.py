"""Functions of nested values."""

from __future__ import annotations

import pickle
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import tree
from hypothesis import given
from hypothesis import strategies as st

from episodes import errors
from episodes.tracks import nested

keys = st.text(alphabet="ab/~", max_size=3)
values = st.recursive(
    st.integers(0, 9),
    lambda v: st.dictionaries(keys, v, min_size=1, max_size=3) | st.lists(v, min_size=1, max_size=3).map(tuple),
    max_leaves=6,
)
Pair = namedtuple("Pair", "left right")


@given(value=values)
def test_flatten_gives_unique_paths_and_unflattens(value: Any) -> None:
    flat = nested.flatten(value)
    assert list(flat.values()) == nested.leaves(value)
    assert nested.unflatten_like(value, list(flat.values())) == value
    assert nested.map_leaves(lambda leaf: leaf, value) == value


@given(value=values)
def test_nested_agrees_with_dm_tree(value: Any) -> None:
    assert nested.map_leaves(lambda leaf: leaf + 1, value) == tree.map_structure(lambda leaf: leaf + 1, value)
    assert sorted(nested.leaves(value)) == sorted(tree.flatten(value))
    paths = {"/".join(nested.escape(str(part)) for part in path): leaf for path, leaf in tree.flatten_with_path(value)}
    assert nested.flatten(value) == paths


def test_nested_mismatch_error_names_path() -> None:
    with pytest.raises(errors.TrackMismatch, match="only one of them has 'left'"):
        nested.map_leaves(lambda x, y: x, {"camera": {"left": 1}}, {"camera": {}})


@given(key=st.text(max_size=5))
def test_escape_and_unescape_are_inverse(key: str) -> None:
    assert "/" not in nested.escape(key)
    assert nested.unescape(nested.escape(key)) == key


@given(value=values, num=st.integers(1, 4))
def test_stack_then_take_is_identity(value: Any, num: int) -> None:
    batch = nested.stack([value] * num)
    assert all(len(leaf) == num for leaf in nested.leaves(batch))
    assert nested.equal(nested.take(batch, num - 1), value)
    assert nested.equal(nested.concatenate([batch, batch]), nested.stack([value] * 2 * num))


def test_nested_keeps_key_order_and_list_leaves() -> None:
    value = {"z": [1, 2], "a": (3, {"y": 4, "b": 5})}
    assert nested.leaves(value) == [[1, 2], 3, 4, 5]
    assert list(nested.flatten(value)) == ["z", "a/0", "a/1/y", "a/1/b"]
    assert list(nested.map_leaves(lambda leaf: leaf, value)) == ["z", "a"]
    assert nested.same_structure({"z": [1], "a": 2}, {"a": 2, "z": [1, 2, 3]})


def test_nested_keeps_named_tuples() -> None:
    doubled = nested.map_leaves(lambda x: 2 * x, Pair(1, {"a": 2}))
    assert doubled == Pair(2, {"a": 4})
    assert isinstance(doubled, Pair)


def test_same_structure_detects_differences() -> None:
    for a, b in [({"a": 1}, {"b": 1}), ((1, 2), (1,)), ({"a": 1}, 1), ((1,), {"0": 1})]:
        assert not nested.same_structure(a, b)
        assert not nested.equal(a, b)
        if not nested.is_leaf(a):
            with pytest.raises(errors.TrackMismatch, match="nested values differ"):
                nested.map_leaves(lambda x, y: x, a, b)


def test_nested_equal_compares_nan_and_shapes() -> None:
    assert nested.equal(np.array([np.nan, 1]), np.array([np.nan, 1]))
    assert not nested.equal(np.zeros(2), np.zeros((1, 2)))


ERRORS = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, errors.EpisodeError)]


@pytest.mark.parametrize("cls", ERRORS)
def test_errors_pickle_and_derive_from_builtins(cls: type[errors.EpisodeError]) -> None:
    error = pickle.loads(pickle.dumps(cls("what was asked; what is there; what to do")))
    assert type(error) is cls
    assert str(error) == "what was asked; what is there; what to do"
    if cls is not errors.EpisodeError:
        assert any(base.__module__ == "builtins" for base in cls.__bases__)

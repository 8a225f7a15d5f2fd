"""`TrajectoryAccumulator` against lists that are stacked at the end, for examples and items of any kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import tree
from hypothesis import given
from hypothesis import strategies as st

from episodes.errors import EpisodeError
from episodes.transport import TrajectoryAccumulator

LEAVES = st.tuples(
    st.sampled_from(["f4", "f8", "i1", "i8", "u1", "?", ">f4", "c8"]), st.sampled_from([(), (1,), (2,), (2, 3), (0,)])
)
KINDS = st.recursive(
    LEAVES.map(lambda leaf: ("leaf", leaf)),
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3).map(lambda parts: ("dict", parts)),
        st.lists(inner, max_size=3).map(lambda parts: ("tuple", parts)),
    ),
    max_leaves=5,
)


def made(kind: Any, leaf: Any) -> Any:
    """Return a nested value of a kind, with leaves from `leaf(dtype, shape)`."""
    name, inner = kind
    if name == "leaf":
        return leaf(*inner)
    if name == "dict":
        return {key: made(part, leaf) for key, part in inner.items()}
    return tuple(made(part, leaf) for part in inner)


def item_of(kind: Any, rng: np.random.Generator, is_odd: bool) -> Any:
    """Return an item of a kind, with its leaves in any accepted form, or with one leaf that fits nowhere."""
    wrong = [int(rng.integers(len(tree.flatten(made(kind, lambda *leaf: 0))))) if is_odd else -1]

    def leaf(dtype: str, shape: tuple[int, ...]) -> Any:
        array = rng.integers(0, 2, shape).astype(dtype)
        wrong[0] -= 1
        if wrong[0] == -1:
            return np.zeros((*shape, 7), dtype) if rng.random() < 0.5 else array.astype("U3")
        way = int(rng.integers(3))
        if way == 0:
            return array[None]
        return array[()] if way == 1 or shape or array.dtype.kind == "c" else array.item()

    return made(kind, leaf)


@given(
    KINDS.filter(lambda kind: tree.flatten(made(kind, lambda *leaf: 0))),
    st.integers(2, 4),
    st.integers(0, 99),
    st.data(),
)
def test_build_equals_added_items_despite_rejected_ones(
    kind: Any, capacity: int, seed: int, data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    example = made(kind, lambda dtype, shape: np.ones((capacity, *shape), dtype))
    accumulator = TrajectoryAccumulator({"step": example, "end": np.ones((1, 2))}, partial="mask")
    items: list[Any] = []
    for _ in range(data.draw(st.integers(0, 3 * capacity))):
        does = data.draw(st.sampled_from(["add", "add", "add", "odd", "build", "reset"]))
        if does == "build":
            check(accumulator.build(), example, items)
            items = []
        elif does == "reset":
            accumulator.reset()
            items = []
        else:
            item = item_of(kind, rng, does == "odd")
            try:
                accumulator.add("step", item)
            except EpisodeError:
                assert does == "odd" or len(items) == capacity
                continue
            assert does == "add"
            items.append(item)
    accumulator.add("end", np.ones(2))
    assert accumulator.is_full == (len(items) == capacity)
    check(accumulator.build(), example, items, num_ends=1)


def check(built: Any, example: Any, items: list[Any], num_ends: int = 0) -> None:
    """Assert that the built arrays hold the items in order, and zeros behind the items."""
    assert built["valid_lengths"] == {"step": len(items), "end": num_ends}
    assert (built["end"] == num_ends).all()
    tree.assert_same_structure(built["step"], example)
    given_leaves = [tree.flatten(item) for item in items]
    for place, (result, like) in enumerate(zip(tree.flatten(built["step"]), tree.flatten(example), strict=True)):
        expected_values = np.zeros_like(like)
        for row, leaves in enumerate(given_leaves):
            expected_values[row] = np.reshape(leaves[place], like.shape[1:])
        assert result.dtype == like.dtype
        np.testing.assert_array_equal(result, expected_values)

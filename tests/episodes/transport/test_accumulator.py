"""`TrajectoryAccumulator` against lists that are stacked at the end, for examples and items of any kind."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import tree
from hypothesis import given
from hypothesis import strategies as st

from episodes.errors import EpisodeError, EpisodeStateError, InvalidArgument, UnknownKey
from episodes.transport import TrajectoryAccumulator

F32 = np.float32
DTYPES = ["f4", "f8", "i1", "i8", "u1", "?", ">f4", "c8", "U3", "M8[s]"]
LEAVES = st.tuples(st.sampled_from(DTYPES), st.sampled_from([(), (1,), (2,), (2, 3), (0,)]))
KINDS = st.recursive(
    LEAVES.map(lambda leaf: ("leaf", leaf)),
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3).map(lambda parts: ("dict", parts)),
        st.lists(inner, max_size=3).map(lambda parts: ("tuple", parts)),
        st.tuples(inner, inner).map(lambda parts: ("point", parts)),
    ),
    max_leaves=5,
)


class Point(NamedTuple):
    x: Any
    y: Any


def made(kind: Any, leaf: Any, rng: np.random.Generator | None = None) -> Any:
    """Return a nested value of a kind, with leaves from `leaf(dtype, shape)`.

    With `rng`, some dicts have their keys in another order, and some tuples are lists or plain tuples.
    """
    name, inner = kind
    is_changed = rng is not None and rng.random() < 0.3
    if name == "leaf":
        return leaf(*inner)
    if name == "dict":
        parts = {key: made(part, leaf, rng) for key, part in inner.items()}
        return dict(reversed(parts.items())) if is_changed else parts
    parts = tuple(made(part, leaf, rng) for part in inner)
    if is_changed:
        return list(parts) if name == "tuple" else parts
    return Point(*parts) if name == "point" else parts


def item_of(kind: Any, rng: np.random.Generator, is_odd: bool) -> Any:
    """Return an item of a kind, with its leaves in any accepted form, or with one leaf that fits nowhere."""
    wrong = [int(rng.integers(len(tree.flatten(made(kind, lambda *leaf: 0))))) if is_odd else -1]

    def leaf(dtype: str, shape: tuple[int, ...]) -> Any:
        array = np.asarray(rng.integers(0, 2, shape)).astype(dtype)  # one number is no array yet
        wrong[0] -= 1
        if wrong[0] == -1:
            return np.zeros((*shape, 7), dtype) if rng.random() < 0.5 else np.full(shape, "too long")
        way = int(rng.integers(3))
        if way == 0:
            return array[None]
        if array.dtype.kind == "U":
            return array  # numpy's and Python's strings have the dtype of their length
        return array[()] if way == 1 or shape or array.dtype.kind in "cM" else array.item()

    return made(kind, leaf, rng)


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
    example = made(kind, lambda dtype, shape: np.ones((capacity, *shape)).astype(dtype))
    accumulator = TrajectoryAccumulator({"step": example, "end": np.ones((1, 2))}, partial="mask")
    before = tree.map_structure(np.copy, example)
    addresses = [array.ctypes.data for array in tree.flatten(accumulator.buffers)]
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
    assert [array.ctypes.data for array in tree.flatten(accumulator.buffers)] == addresses
    tree.map_structure(np.testing.assert_array_equal, before, example)


@pytest.mark.parametrize("dtype", ["U3", "S3", "M8[s]", "m8[s]", "f4", ">f4", "c8", "?"])
def test_item_with_an_additional_axis_has_the_dtype_of_the_example(dtype: str) -> None:
    values = np.array([0, 1]).astype(dtype)
    accumulator = TrajectoryAccumulator({"step": values})
    for i in range(2):
        accumulator.add("step", values[i : i + 1])
    np.testing.assert_array_equal(accumulator.build()["step"], values)


def leaves_of(example: Any, item: Any) -> list[Any]:
    """Return the leaves of an item in the order of `tree.flatten(example)`."""
    if isinstance(example, np.ndarray):
        return [item]
    keys = sorted(example) if isinstance(example, dict) else range(len(example))
    return [leaf for key in keys for leaf in leaves_of(example[key], item[key])]


def check(built: Any, example: Any, items: list[Any], num_ends: int = 0) -> None:
    """Assert that the built arrays hold the items in order, and zeros behind the items."""
    assert built["valid_lengths"] == {"step": len(items), "end": num_ends}
    assert (built["end"] == num_ends).all()
    tree.assert_same_structure(built["step"], example)
    given_leaves = [leaves_of(example, item) for item in items]
    for place, (result, like) in enumerate(zip(tree.flatten(built["step"]), tree.flatten(example), strict=True)):
        expected_values = np.zeros_like(like)
        for row, leaves in enumerate(given_leaves):
            expected_values[row] = np.reshape(leaves[place], like.shape[1:])
        assert result.dtype == like.dtype
        np.testing.assert_array_equal(result, expected_values)


# --- single items, and items that do not fit --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("example", "item", "expected"),
    [
        (np.zeros((1, 3)), np.ones(3), [[1, 1, 1]]),
        (np.float64(0), 2.5, 2.5),
        ((np.zeros(()), np.zeros((2, 3))), (1.5, np.ones((2, 3))), (1.5, np.ones((2, 3)))),
        ((np.zeros(()), np.zeros((1, 3))), (1.5, np.ones((1, 3))), (1.5, np.ones((1, 3)))),
    ],
)
def test_build_returns_a_single_item(example: Any, item: Any, expected: Any) -> None:
    accumulator = TrajectoryAccumulator({"end": example})
    for _ in range(3):  # later items are read in the way of the first one
        accumulator.add("end", item)
        assert accumulator.is_full
        tree.map_structure_up_to(example, np.testing.assert_array_equal, accumulator.build()["end"], expected)


def example(num: int = 3) -> dict[str, Any]:
    return {
        "obs": {"camera": np.zeros((num, 4, 4), np.uint8), "joints": (np.zeros((num, 2), F32), np.zeros(num, F32))},
        "action": np.zeros(num, np.int64),
        "done": np.zeros(num, bool),
    }


def item(t: int, **changed: Any) -> dict[str, Any]:
    """Return an item of the example. The keys of `changed` are paths, such as `obs_camera`."""
    parts: dict[str, Any] = {
        "obs": {"camera": np.full((4, 4), t, np.uint8), "joints": (np.array([t, -t], F32), F32(t / 2))},
        "action": np.int64(t),
        "done": np.bool_(t == 2),
    }
    for path, value in changed.items():
        name, _, inner = path.partition("_")
        parts[name] = parts[name] | {inner: value} if inner else value
    return parts


class Liar:
    """Item that fails when it is converted to an array."""

    shape, dtype = (), np.dtype(bool)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("no numbers here")


@pytest.mark.parametrize("warm", [False, True], ids=["first", "after others"])
@pytest.mark.parametrize(
    ("misfit", "message"),
    [
        ({"action": 1, "obs": 2}, r"keys \['action', 'obs'\]"),
        (item(0, z=1), "'z'"),
        (item(0, obs={"Camera": 1, "joints": 2}), "at 'obs': a dict with keys"),
        (item(0, obs=np.zeros(3)), "at 'obs': an array of shape"),
        (item(0, action={"x": 1}), "leaf 'action'"),
        (item(0, obs_joints=(1, 2, 3)), "a tuple of 3"),
        (item(0, action=np.zeros(2, np.int64)), r"'action': shape \(2,\), an item has"),
        (item(0, obs_camera=np.uint8(1)), r"shape \(\)"),  # which would broadcast
        (item(0, action=np.int32(1)), "dtype int32, the example has int64"),
        (item(0, action=np.float64(1)), "dtype float64, the example has int64"),  # of the same size
        (item(0, action=True), "dtype bool"),
        (item(0, action=1.0), "dtype float64"),
        (item(0, action=2**70), "does not fit into int64"),
        (item(0, obs_joints=(np.zeros(2, F32), 1e300)), "does not fit into float32"),
        (item(0, done="yes"), "leaf 'done'"),
        (item(0, done=Liar()), "leaf 'done': a Liar that is not an array: no numbers here"),
        (None, "a NoneType was given"),
        (item(0, action=[[1], [1, 2]]), "leaf 'action'"),
    ],
)
def test_add_wrong_item_names_it_and_writes_nothing(misfit: Any, message: str, warm: bool) -> None:
    accumulator = TrajectoryAccumulator({"step": example()})
    for t in range(warm):
        accumulator.add("step", item(t))
    before = tree.map_structure(np.copy, accumulator.buffers)
    with pytest.raises(ValueError, match=message) as caught:
        accumulator.add("step", misfit)
    assert isinstance(caught.value, EpisodeError)
    assert "timescale 'step'" in str(caught.value)
    tree.map_structure(np.testing.assert_array_equal, before, accumulator.buffers)
    for t in range(warm, 3):
        accumulator.add("step", item(t))  # the slot is still free
    np.testing.assert_array_equal(accumulator.build()["step"]["action"], [0, 1, 2])


def test_add_number_out_of_range_raises_after_valid_ones() -> None:
    accumulator = TrajectoryAccumulator({"step": {"n": np.zeros(6, np.int8), "x": np.zeros(6, F32)}})
    for bad in ({"n": 128, "x": 1.0}, {"n": 1, "x": 1e39}):
        accumulator.add("step", {"n": -128, "x": 1.0})
        with pytest.raises(ValueError, match="does not fit"):
            accumulator.add("step", bad)
    for number in (float("nan"), float("inf"), -float("inf"), 2):
        accumulator.add("step", {"n": 127, "x": number})
    built = accumulator.build()["step"]
    np.testing.assert_array_equal(built["x"], [1, 1, np.nan, np.inf, -np.inf, 2])
    assert built["n"].tolist() == [-128] * 2 + [127] * 4


def test_incomplete_and_unknown_timescales_raise() -> None:
    accumulator = TrajectoryAccumulator({"step": example(), "end": np.zeros(())})
    with pytest.raises(UnknownKey, match="'steps': there are 'step', 'end'"):
        accumulator.add("steps", 1.0)
    accumulator.add("step", item(0))
    with pytest.raises(EpisodeStateError, match="'step' has 1 of 3 items"):
        accumulator.build()
    accumulator.add("step", item(1))
    accumulator.add("step", item(2))
    with pytest.raises(EpisodeStateError, match="'end' has 0 of 1 items"):
        accumulator.build()
    accumulator.add("end", 1.0)
    for name, message in {"step": "'step': item 3 of a capacity of 3", "end": "'end': item 1 of"}.items():
        with pytest.raises(IndexError, match=message):
            accumulator.add(name, 2.0)
    assert accumulator.build()["step"]["action"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("example", "options", "message"),
    [
        ({}, {}, "one at least"),
        ([np.zeros(2)], {}, "give a dict"),
        ({"step": {}}, {}, "no arrays"),
        ({"step": {"a": np.zeros(2), "b": np.zeros(3)}}, {}, "leading dimensions {'a': 2, 'b': 3}"),
        ({"step": np.zeros((0, 3))}, {}, "leading dimensions"),
        ({"step": np.array([None, None])}, {}, "items of object"),
        ({"step": {1: np.zeros(2), "a": np.zeros(2)}}, {}, "timescale 'step'"),
        ({"valid_lengths": np.zeros(2)}, {"partial": "mask"}, "rename it"),
        ({"step": np.zeros(2)}, {"partial": "pad"}, "'raise' or 'mask'"),
    ],
)
def test_accumulator_with_invalid_arguments_raises(example: Any, options: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        TrajectoryAccumulator(example, **options)


def test_echo_accepts_built_arrays() -> None:
    echo = pytest.importorskip("echo")
    shapes = {"step": example(4), "end": {"value": np.zeros((), F32)}, "last": {"obs": np.zeros((1, 3), F32)}}
    accumulators = TrajectoryAccumulator(shapes), echo.TrajectoryAccumulator(shapes)
    server = echo.Server(shapes, 2, echo.TcpTransport(0, num_threads=1), num_drainers=1)
    server.start()
    client = None
    try:
        client = echo.TcpClient("127.0.0.1", server.port, shapes)
        for rollout in range(4):
            accumulator = accumulators[rollout % 2]
            for t in range(4):
                accumulator.add("step", item(t + 10 * (rollout // 2)))
            accumulator.add("end", {"value": F32(rollout // 2)})
            accumulator.add("last", {"obs": np.full((1, 3), rollout // 2, F32)})
            client.send(accumulator.build())
            client.wait()
        for rollout in range(2):  # a batch of two: ours and theirs
            batch = server.sample().batch
            assert batch["step"]["action"].tolist() == [[10 * rollout + t for t in range(4)]] * 2
            for leaf in tree.flatten(batch):
                np.testing.assert_array_equal(leaf[0], leaf[1])
    finally:
        if client is not None:
            client.close()
        server.close()

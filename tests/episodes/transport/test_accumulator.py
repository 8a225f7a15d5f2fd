"""`TrajectoryAccumulator`: what goes in comes out whole, what does not fit changes nothing, and echo takes it."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest
import tree

from episodes.errors import EpisodeError, EpisodeStateError, InvalidArgument, UnknownKey
from episodes.transport import TrajectoryAccumulator

F32 = np.float32


class Point(NamedTuple):
    x: Any
    y: Any


def example(num: int = 3) -> dict[str, Any]:
    """Return a nested buffered timescale."""
    return {
        "obs": {"camera": np.zeros((num, 4, 4), np.uint8), "joints": (np.zeros((num, 2), F32), np.zeros(num, F32))},
        "action": np.zeros(num, np.int64),
        "done": np.zeros(num, bool),
    }


def item(t: int) -> dict[str, Any]:
    return {
        "obs": {"camera": np.full((4, 4), t, np.uint8), "joints": (np.array([t, -t], F32), F32(t / 2))},
        "action": np.int64(t),
        "done": np.bool_(t == 2),
    }


# --- a table of cases: the example of one timescale, the items that are added, and the arrays that come out -----------

CASES: dict[str, tuple[Any, list[Any], Any]] = {
    "numbers": (np.zeros(3), [1.0, np.float64(2), 3], [1, 2, 3]),
    "integers that fit": (np.zeros(3, np.int8), [-128, 127, np.int8(5)], [-128, 127, 5]),
    "floats beyond numbers": (np.zeros(3, F32), [float("inf"), float("nan"), -float("inf")], [np.inf, np.nan, -np.inf]),
    "T = 1": (np.zeros((1, 3)), [np.ones((1, 3))], [[1, 1, 1]]),
    "T = 1 without the 1": (np.zeros((1, 3)), [np.ones(3)], [[1, 1, 1]]),
    "0-d": (np.zeros(()), [2.5], 2.5),
    "0-d of numpy": (np.float64(0), [np.float64(2.5)], 2.5),
    "0-d beside any shape": ((np.zeros(()), np.zeros((2, 3))), [(1.5, np.ones((2, 3)))], (1.5, np.ones((2, 3)))),
    "0-d beside a leading 1": ((np.zeros(()), np.zeros((1, 3))), [(1.5, np.ones((1, 3)))], (1.5, np.ones((1, 3)))),
    "a named tuple": (Point(np.zeros(2), np.zeros((2, 1))), [Point(1.0, np.ones(1))] * 2, Point([1, 1], [[1], [1]])),
    "a tuple for a named one": (Point(np.zeros(2), np.zeros(2)), [(1.0, 2.0)] * 2, Point([1, 1], [2, 2])),
    "a list for a tuple": ((np.zeros(2), np.zeros(2)), [[1.0, 2.0]] * 2, ([1, 1], [2, 2])),
    "keys in any order": (
        {"a": np.zeros(2), "b": np.zeros(2)},
        [{"b": 2.0, "a": 1.0}, OrderedDict(b=2.0, a=1.0)],
        {"a": [1, 1], "b": [2, 2]},
    ),
    "strings": (np.zeros(2, "U3"), [np.str_("abc"), np.array("xyz")], np.array(["abc", "xyz"])),
    "times": (np.zeros(2, "M8[s]"), [np.datetime64(5, "s")] * 2, np.array([5, 5], "M8[s]")),
}


@pytest.mark.parametrize("case", CASES)
def test_build_returns_added_items(case: str) -> None:
    shapes, items, expected = CASES[case]
    accumulator = TrajectoryAccumulator({"step": shapes})
    for _ in range(3):  # the second and third rollout go the way that the first one paved
        assert not accumulator.is_full
        for value in items:
            accumulator.add("step", value)
        assert accumulator.is_full
        built = accumulator.build()["step"]
        tree.assert_same_structure(built, shapes)
        assert [a.dtype for a in tree.flatten(built)] == [np.asarray(a).dtype for a in tree.flatten(shapes)]
        tree.map_structure_up_to(shapes, np.testing.assert_array_equal, built, expected)


# --- whatever does not fit: what is given, the error, and what it says ---

MISFITS: dict[str, tuple[Any, type[Exception], str]] = {
    "a key less": ({k: v for k, v in item(0).items() if k != "done"}, ValueError, r"keys \['action', 'obs'\]"),
    "a key more": ({**item(0), "z": 1}, ValueError, "'z'"),
    "another key": ({k.replace("done", "Done"): v for k, v in item(0).items()}, ValueError, "Done"),
    "another inner key": ({**item(0), "obs": {"Camera": 1, "joints": 2}}, ValueError, "at 'obs': a dict with keys"),
    "no container": ({**item(0), "obs": np.zeros(3)}, ValueError, "at 'obs': an array of shape"),
    "a container for a leaf": ({**item(0), "action": {"x": 1}}, ValueError, "leaf 'action'"),
    "a longer tuple": ({**item(0), "obs": {**item(0)["obs"], "joints": (1, 2, 3)}}, ValueError, "a tuple of 3"),
    "another shape": ({**item(0), "action": np.zeros(2, np.int64)}, ValueError, r"'action': shape \(2,\), an item has"),
    "what would broadcast": ({**item(0), "obs": {**item(0)["obs"], "camera": np.uint8(1)}}, ValueError, r"shape \(\)"),
    "another dtype": ({**item(0), "action": np.int32(1)}, ValueError, "dtype int32, the example has int64"),
    "the same item size": ({**item(0), "action": np.float64(1)}, ValueError, "dtype float64, the example has int64"),
    "a bool into integers": ({**item(0), "action": True}, ValueError, "dtype bool"),
    "a float into integers": ({**item(0), "action": 1.0}, ValueError, "dtype float64"),
    "an integer too large": ({**item(0), "action": 2**70}, ValueError, "does not fit into int64"),
    "a float too large": (
        {**item(0), "obs": {**item(0)["obs"], "joints": (np.zeros(2, F32), 1e300)}},
        ValueError,
        "does not fit into float32",
    ),
    "a string": ({**item(0), "done": "yes"}, ValueError, "leaf 'done'"),
    "nothing": (None, ValueError, "a NoneType was given"),
    "a ragged list": ({**item(0), "action": [[1], [1, 2]]}, ValueError, "leaf 'action'"),
}


@pytest.mark.parametrize("warm", [False, True], ids=["first", "after others"])
@pytest.mark.parametrize("misfit", MISFITS)
def test_add_wrong_item_names_it_and_writes_nothing(misfit: str, warm: bool) -> None:
    expected, error, message = MISFITS[misfit]
    accumulator = TrajectoryAccumulator({"step": example()})
    for t in range(warm):
        accumulator.add("step", item(t))
    before = tree.map_structure(np.copy, accumulator.buffers)
    with pytest.raises(error, match=message) as caught:
        accumulator.add("step", expected)
    assert isinstance(caught.value, EpisodeError)
    assert "timescale 'step'" in str(caught.value)
    tree.map_structure(np.testing.assert_array_equal, before, accumulator.buffers)
    for t in range(warm, 3):
        accumulator.add("step", item(t))  # the slot is still free
    np.testing.assert_array_equal(accumulator.build()["step"]["action"], [0, 1, 2])


def test_add_number_out_of_range_raises_after_valid_ones() -> None:
    accumulator = TrajectoryAccumulator({"step": {"n": np.zeros(4, np.int8), "x": np.zeros(4, F32)}})
    for bad in ({"n": 128, "x": 1.0}, {"n": 1, "x": 1e39}):
        accumulator.add("step", {"n": 1, "x": 1.0})
        with pytest.raises(ValueError, match="does not fit"):
            accumulator.add("step", bad)
    accumulator.add("step", {"n": 2, "x": float("nan")})


def test_add_to_unknown_timescale_lists_the_known_ones() -> None:
    with pytest.raises(KeyError, match="'steps': there are 'step', 'end'") as caught:
        TrajectoryAccumulator({"step": np.zeros(2), "end": np.zeros(())}).add("steps", 1.0)
    assert isinstance(caught.value, UnknownKey)


def test_add_beyond_the_capacity_raises() -> None:
    accumulator = TrajectoryAccumulator({"step": np.zeros(2), "end": np.zeros(())})
    for _ in range(2):
        accumulator.add("step", 1.0)
    accumulator.add("end", 7.0)
    for name, message in {
        "step": "'step': item 2 of a capacity of 2",
        "end": "'end': item 1 of a capacity of 1",
    }.items():
        with pytest.raises(IndexError, match=message):
            accumulator.add(name, 2.0)
    built = accumulator.build()
    assert built["step"].tolist() == [1, 1]
    assert built["end"] == 7


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({}, "one at least"),
        ([np.zeros(2)], "give a dict"),
        ({"step": {}}, "no arrays"),
        ({"step": {"a": np.zeros(2), "b": np.zeros(3)}}, "leading dimensions {'a': 2, 'b': 3}"),
        ({"step": {"a": np.zeros((1, 2)), "b": np.zeros(3)}}, "leading dimensions"),
        ({"step": np.zeros((0, 3))}, "leading dimensions"),
        ({"step": np.array([None, None])}, "items of object"),
        ({"step": {1: np.zeros(2), "a": np.zeros(2)}}, "timescale 'step'"),
    ],
)
def test_accumulator_with_invalid_example_raises(shapes: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        TrajectoryAccumulator(shapes)


def test_build_with_empty_slots_raises_and_keeps_items() -> None:
    accumulator = TrajectoryAccumulator({"step": example(), "end": np.zeros(())})
    accumulator.add("step", item(0))
    with pytest.raises(EpisodeStateError, match="'step' has 1 of 3 items"):
        accumulator.build()
    accumulator.add("step", item(1))
    accumulator.add("step", item(2))
    with pytest.raises(EpisodeStateError, match="'end' has 0 of 1 items"):
        accumulator.build()
    accumulator.add("end", 1.0)
    assert accumulator.build()["step"]["action"].tolist() == [0, 1, 2]


def test_accumulator_with_wrong_partial_raises() -> None:
    with pytest.raises(InvalidArgument, match="rename it"):
        TrajectoryAccumulator({"valid_lengths": np.zeros(2)}, partial="mask")
    with pytest.raises(InvalidArgument, match="'raise' or 'mask'"):
        TrajectoryAccumulator({"step": np.zeros(2)}, partial="pad")  # type: ignore[arg-type]


def test_build_returns_the_same_arrays_each_time() -> None:
    accumulator = TrajectoryAccumulator({"step": example(), "end": np.zeros(())}, partial="mask")
    addresses = [array.ctypes.data for array in tree.flatten(accumulator.buffers)]
    first = accumulator.build()
    for rollout in range(1, 3):
        for _ in range(3):
            accumulator.add("step", item(rollout))
        built = accumulator.build()
        assert built is first
        assert [array.ctypes.data for array in tree.flatten(built)] == addresses
        assert first["step"]["action"].tolist() == [rollout] * 3  # kept over the next one, it changes: copy it


def test_accumulator_copies_the_example() -> None:
    shapes = {"step": np.ones(2)}
    accumulator = TrajectoryAccumulator(shapes)
    for _ in range(2):
        accumulator.add("step", 5.0)
    accumulator.build()
    assert shapes["step"].tolist() == [1, 1]


class Liar:
    """Item that fails when it is converted to an array."""

    shape, dtype = (), np.dtype(F32)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("no numbers here")


def test_add_item_that_fails_while_read_writes_nothing() -> None:
    accumulator = TrajectoryAccumulator({"step": {"a": np.zeros(1, F32), "b": np.zeros(1, F32)}}, partial="mask")
    with pytest.raises(ValueError, match="leaf 'b': a Liar that is not an array: no numbers here"):
        accumulator.add("step", {"a": F32(1), "b": Liar()})
    assert not accumulator.build()["step"]["a"].any()


# --- echo ---


def test_echo_accepts_built_arrays() -> None:
    echo = pytest.importorskip("echo")
    shapes = {"step": example(4), "end": {"value": np.zeros((), F32)}, "last": {"obs": np.zeros((1, 3), F32)}}
    ours, other_accumulator = TrajectoryAccumulator(shapes), echo.TrajectoryAccumulator(shapes)
    server = echo.Server(shapes, 2, echo.TcpTransport(0, num_threads=1), num_drainers=1)
    server.start()
    clients: list[Any] = []
    try:
        client = echo.TcpClient("127.0.0.1", server.port, shapes)
        clients.append(client)
        for rollout in range(4):
            accumulator = (ours, other_accumulator)[rollout % 2]
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
        for client in clients:
            client.close()
        server.close()

"""Benchmark of `TrajectoryAccumulator`, which fills arrays of a fixed size item by item."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.figure import Figure, Side, Size, Timed, at_least
from benchmarks.peers import ECHO

SLOTS = 64


def rollout(num_leaves: int, num_slots: int, numbers: type) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a dict of arrays with `num_slots` slots, and a matching dict with a single item. Vectors of length 4 and
    numbers alternate.
    """
    vectors = {f"vector_{i}": np.zeros((num_slots, 4), np.float32) for i in range(0, num_leaves, 2)}
    scalars = {f"number_{i}": np.zeros(num_slots, np.float32) for i in range(1, num_leaves, 2)}
    item = {name: array[0].copy() for name, array in vectors.items()} | {name: numbers(1) for name in scalars}
    return vectors | scalars, item


def our_class() -> Callable[..., Any]:
    """Return this library's `TrajectoryAccumulator`."""
    from episodes.transport import TrajectoryAccumulator

    return TrajectoryAccumulator


def echo_class() -> Callable[..., Any]:
    """Return echo's `TrajectoryAccumulator`."""
    import echo

    return echo.TrajectoryAccumulator


def accumulating(size: Size, made: Callable[[], Callable[..., Any]], num_leaves: int, numbers: type) -> Timed:
    """Time adding 64 items to an accumulator and building the arrays, per item."""
    num_slots = max(2, size(SLOTS))
    example, item = rollout(num_leaves, num_slots, numbers)
    accumulator = made()({"step": example})

    def fill() -> None:
        for _ in range(num_slots):
            accumulator.add("step", item)
        accumulator.build()

    fill()
    return Timed(fill, num_slots)


def add_figure(name: str, num_leaves: int, numbers: type) -> Figure:
    """Return a benchmark of `TrajectoryAccumulator.add` compared with echo."""
    ours = Side("ours", partial(accumulating, made=our_class, num_leaves=num_leaves, numbers=numbers))
    peer = Side("echo", partial(accumulating, made=echo_class, num_leaves=num_leaves, numbers=numbers), ECHO)
    return Figure(f"transport/add, {name}", ours, peer, at_least(2.5), "us")


FIGURES = (
    add_figure("2 leaves", 2, np.float32),
    add_figure("6 leaves", 6, np.float32),
    add_figure("6 leaves with Python's numbers", 6, float),
)

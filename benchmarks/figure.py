"""Definition of a benchmark: this library's side, the other side, and the required ratio of their costs.

Functions of the benchmarks that take a `Size` prepare a workload of this size, and warm it up if needed. If their
docstrings begin with "Time", they return a `Timed` workload; if they begin with "Count" or "Measure", a `Counted` cost.
`functools.partial` sets their other arguments.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any


class NotHere(Exception):
    """Error of a benchmark side that cannot run on this machine. The message is printed in the result row."""


@dataclass(frozen=True, slots=True)
class Size:
    """Workload size of a benchmark: `size(100_000)` is 100,000 in a real run, and at most `most` in a test."""

    most: int | None = None

    def __call__(self, full: int) -> int:
        return full if self.most is None else min(full, self.most)


@dataclass(frozen=True, slots=True)
class Timed:
    """Workload that is timed: a function `run` that does `items` units of work per call.

    With `fresh`, every call gets a new input, which is created outside of the timed part: `run(fresh())`. `clock`
    is read before and after: wall time, or `cpu_seconds` of this process, which other processes on the machine do not
    change.
    """

    run: Callable[..., object]
    items: float = 1
    fresh: Callable[[], Any] | None = None
    clock: Callable[[], float] = time.perf_counter


cpu_seconds = time.process_time


@dataclass(frozen=True, slots=True)
class Counted:
    """Cost that is counted and not timed, such as bytes per transition."""

    amount: float


@dataclass(frozen=True, slots=True)
class Side:
    """Side of a benchmark, such as this library. `prepare` creates and warms up the workload, and `needs` lists
    required modules.
    """

    name: str
    prepare: Callable[[Size], Timed | Counted]
    needs: tuple[str, ...] = ()


class Direction(Enum):
    """Meaning of a benchmark's ratio: how many times faster this library is, or how many times higher its cost is."""

    FASTER = "at least"  # ratio = the other side's cost / ours
    COST = "at most"  # ratio = our cost / the other side's


@dataclass(frozen=True, slots=True)
class Bar:
    """Required ratio between the costs of both sides of a benchmark."""

    sense: Direction
    limit: float

    def ratio(self, ours: float, reference: float) -> float:
        """Return the ratio of the costs of both sides: the speedup of this library, or its relative cost, as `sense`
        requires.
        """
        return float(reference / ours if self.sense is Direction.FASTER else ours / reference)

    def holds(self, ratio: float) -> bool:
        """Return True if a ratio meets the required limit."""
        return ratio >= self.limit if self.sense is Direction.FASTER else ratio <= self.limit

    def __str__(self) -> str:
        return f"{self.sense.value} {self.limit:g}x" + (" as fast" if self.sense is Direction.FASTER else "")


def at_least(times: float) -> Bar:
    """Return the requirement that this library is at least `times` times as fast as the other side."""
    return Bar(Direction.FASTER, times)


def at_most(times: float) -> Bar:
    """Return the requirement that this library costs at most `times` times as much as the other side."""
    return Bar(Direction.COST, times)


def limit(name: str, amount: float) -> Side:
    """Return a benchmark side that is a fixed cost per item, as a limit instead of another library."""
    return Side(name, lambda size: Counted(amount))


@dataclass(frozen=True, slots=True)
class Figure:
    """Definition of one benchmark: name, both sides, required ratio, and unit of costs in the table."""

    name: str
    ours: Side
    other: Side
    bar: Bar
    unit: str

"""What a figure is: our side, the other side, and the bar that their ratio is held against."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any


class NotHere(Exception):
    """Raised by a side that this machine cannot measure; the row says why."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much work a side prepares: `size(100_000)` is 100,000 in a benchmark and at most `most` in a test."""

    most: int | None = None

    def __call__(self, full: int) -> int:
        return full if self.most is None else min(full, self.most)


@dataclass(frozen=True, slots=True)
class Timed:
    """Work under the clock: one call of `run` does `items` of what the figure counts.

    With `fresh`, every call gets an input of its own, made off the clock: `run(fresh())`. `clock` is read before and
    after: seconds of the wall, or `cpu_seconds` of this process, which others on the machine do not lengthen.
    """

    run: Callable[..., object]
    items: float = 1
    fresh: Callable[[], Any] | None = None
    clock: Callable[[], float] = time.perf_counter


cpu_seconds = time.process_time


@dataclass(frozen=True, slots=True)
class Counted:
    """A cost that needs no clock: bytes per transition, or the seconds that a bar names."""

    amount: float


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a figure. `prepare` builds and warms everything; `needs` are the modules it imports."""

    name: str
    prepare: Callable[[Size], Timed | Counted]
    needs: tuple[str, ...] = ()


class Direction(Enum):
    """Which way a ratio is read."""

    FASTER = "at least"  # ratio = the other side's cost / ours
    COST = "at most"  # ratio = our cost / the other side's


@dataclass(frozen=True, slots=True)
class Bar:
    """The limit of a ratio."""

    sense: Direction
    limit: float

    def ratio(self, ours: float, other: float) -> float:
        """How many times faster we are, or how many times the other side's cost ours is."""
        return float(other / ours if self.sense is Direction.FASTER else ours / other)

    def holds(self, ratio: float) -> bool:
        """Whether a ratio is on the right side of the limit."""
        return ratio >= self.limit if self.sense is Direction.FASTER else ratio <= self.limit

    def __str__(self) -> str:
        return f"{self.sense.value} {self.limit:g}x" + (" as fast" if self.sense is Direction.FASTER else "")


def at_least(times: float) -> Bar:
    """We are at least this many times as fast."""
    return Bar(Direction.FASTER, times)


def at_most(times: float) -> Bar:
    """We cost at most this many times what the other side costs."""
    return Bar(Direction.COST, times)


def limit(name: str, amount: float) -> Side:
    """A side that is no competitor but a number: what one item may cost."""
    return Side(name, lambda size: Counted(amount))


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table. `unit` is what costs are shown in: see `benchmarks.table.UNITS`."""

    name: str
    ours: Side
    other: Side
    bar: Bar
    unit: str

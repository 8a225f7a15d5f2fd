"""Definition of a benchmark: this library's side, the other side, and the required ratio of their costs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any


class NotHere(Exception):
    """Raised by a side that cannot run on this machine. The message is printed in the result row."""


@dataclass(frozen=True, slots=True)
class Size:
    """Workload size of a side: `size(100_000)` is 100,000 in a benchmark, and at most `most` in a test."""

    most: int | None = None

    def __call__(self, full: int) -> int:
        return full if self.most is None else min(full, self.most)


@dataclass(frozen=True, slots=True)
class Timed:
    """Workload to be timed. One call of `run` does `items` units of work.

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
    """Cost that is counted, not timed, such as bytes per transition."""

    amount: float


@dataclass(frozen=True, slots=True)
class Side:
    """A side of a benchmark. `prepare` builds and warms up the workload, `needs` lists required modules."""

    name: str
    prepare: Callable[[Size], Timed | Counted]
    needs: tuple[str, ...] = ()


class Direction(Enum):
    """Meaning of a ratio: how many times faster this library is, or how many times its cost is the other's."""

    FASTER = "at least"  # ratio = the other side's cost / ours
    COST = "at most"  # ratio = our cost / the other side's


@dataclass(frozen=True, slots=True)
class Bar:
    """Required ratio of the costs of both sides."""

    sense: Direction
    limit: float

    def ratio(self, ours: float, reference: float) -> float:
        """Return the speedup of this library, or its cost divided by the other side's cost, as `sense` requires."""
        return float(reference / ours if self.sense is Direction.FASTER else ours / reference)

    def holds(self, ratio: float) -> bool:
        """Return True if the ratio meets the required limit."""
        return ratio >= self.limit if self.sense is Direction.FASTER else ratio <= self.limit

    def __str__(self) -> str:
        return f"{self.sense.value} {self.limit:g}x" + (" as fast" if self.sense is Direction.FASTER else "")


def at_least(times: float) -> Bar:
    """Require that this library is at least `times` times as fast as the other side."""
    return Bar(Direction.FASTER, times)


def at_most(times: float) -> Bar:
    """Require that this library costs at most `times` times as much as the other side."""
    return Bar(Direction.COST, times)


def limit(name: str, amount: float) -> Side:
    """Create a side that is a fixed cost per item instead of another library."""
    return Side(name, lambda size: Counted(amount))


@dataclass(frozen=True, slots=True)
class Figure:
    """Definition of one benchmark: name, both sides, required ratio, and the unit of costs in the table."""

    name: str
    ours: Side
    other: Side
    bar: Bar
    unit: str

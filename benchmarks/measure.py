"""Measurement of benchmarks: both sides run in alternating rounds (A B, B A, A B, ...), and the results are medians
over the rounds.
"""

from __future__ import annotations

import gc
import statistics
import traceback
from dataclasses import dataclass
from importlib.util import find_spec

from benchmarks.figure import Counted, Figure, NotHere, Side, Size, Timed


@dataclass(frozen=True, slots=True)
class Effort:
    """Duration of a measurement: number of rounds, and minimal seconds of one round."""

    rounds: int
    seconds: float


FULL = Effort(rounds=15, seconds=0.02)
QUICK = Effort(rounds=5, seconds=0.006)


@dataclass(frozen=True, slots=True)
class Row:
    """Result of one benchmark: median costs and ratio of both sides, or a note with the reason for a missing result.

    The ratio is the median over the ratios of all rounds, so that a disturbance that slows both sides down has no
    effect.
    """

    figure: Figure
    ours: float | None = None  # seconds (or bytes) per item
    other: float | None = None  # likewise
    ratio: float | None = None
    note: str = ""

    @property
    def holds(self) -> bool | None:
        """Whether the required ratio is met, or None if no ratio was measured."""
        return None if self.ratio is None else self.figure.bar.holds(self.ratio)


def measure(figure: Figure, effort: Effort, size: Size | None = None) -> Row:
    """Measure both sides of a benchmark, and return the result. If a side cannot run on this machine, the result has a
    note.
    """
    size = size or Size()
    missing = [module for module in figure.other.needs if not installed(module)]
    sides = [figure.ours] if missing else [figure.ours, figure.other]
    try:
        costs = measure_in_turns([side.prepare(size) for side in sides], effort)
    except NotHere as reason:
        return Row(figure, note=str(reason))
    ours = statistics.median(costs[0])
    if missing:
        return Row(figure, ours=ours, note=f"not installed: {', '.join(missing)}")
    ratio = statistics.median(map(figure.bar.ratio, *costs))
    return Row(figure, ours=ours, other=statistics.median(costs[1]), ratio=ratio)


def failure_row(figure: Figure, error: Exception) -> Row:
    """Return the result of a benchmark that raised `error`: a row with the error as note."""
    return Row(figure, note=traceback.format_exception_only(error)[-1].strip().splitlines()[0])


def installed(module: str) -> bool:
    """Return True if a module can be imported. The function does not import it."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def measure_in_turns(works: list[Timed | Counted], effort: Effort) -> list[list[float]]:
    """Measure the costs per item of several workloads in alternating rounds, and return one list of costs per
    workload.
    """
    gc.collect()
    gc.freeze()
    try:
        calls = [enough_calls(work, effort.seconds) for work in works]
        order = list(range(len(works)))
        costs: list[list[float]] = [[] for _ in works]
        for _ in range(effort.rounds):
            for index in order:
                costs[index].append(cost(works[index], calls[index]))
            order.reverse()
    finally:
        gc.unfreeze()
    return costs


def enough_calls(work: Timed | Counted, seconds: float) -> int:
    """Warm up a workload, and return the number of calls that take at least `seconds`."""
    calls = 1
    if isinstance(work, Timed):
        cost(work, calls)
    while isinstance(work, Timed):
        spent = cost(work, calls) * calls * work.items
        if spent >= seconds:
            break
        calls = max(calls + 1, min(10 * calls, int(1.2 * calls * seconds / max(spent, 1e-9))))
    return calls


def cost(work: Timed | Counted, calls: int) -> float:
    """Call a workload `calls` times with the garbage collector off, and return the seconds per item. For a `Counted`
    cost, return its amount.
    """
    if isinstance(work, Counted):
        return work.amount
    run = work.run
    inputs = None if work.fresh is None else [work.fresh() for _ in range(calls)]
    gc.collect()
    gc.disable()
    try:
        start = work.clock()
        if inputs is None:
            for _ in range(calls):
                run()
        else:
            for value in inputs:
                run(value)
        return (work.clock() - start) / (calls * work.items)
    finally:
        gc.enable()


def try_once(side: Side, size: Size) -> float:
    """Run one small call of a benchmark side, and return its cost per item, to check that the side works."""
    return cost(side.prepare(size), 1)

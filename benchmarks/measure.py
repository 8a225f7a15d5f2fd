"""Measurement of both sides in alternating rounds (A B, B A, A B, ...), with medians over the rounds."""

from __future__ import annotations

import gc
import statistics
import traceback
from dataclasses import dataclass
from importlib.util import find_spec

from benchmarks.figure import Counted, Figure, NotHere, Side, Size, Timed


@dataclass(frozen=True, slots=True)
class Effort:
    """Duration of a measurement: number of rounds, and minimal seconds of a round."""

    rounds: int
    seconds: float


FULL = Effort(rounds=15, seconds=0.02)
QUICK = Effort(rounds=5, seconds=0.006)


@dataclass(frozen=True, slots=True)
class Row:
    """Result of one benchmark: medians over the rounds, or a note with the reason for a missing result.

    The ratio is the median of the rounds' own ratios, so that a disturbance that both sides share falls out.
    """

    figure: Figure
    ours: float | None = None  # seconds (or bytes) per item
    other: float | None = None  # likewise
    ratio: float | None = None
    note: str = ""

    @property
    def holds(self) -> bool | None:
        """True if the required ratio is met. None without a comparison."""
        return None if self.ratio is None else self.figure.bar.holds(self.ratio)


def measure(figure: Figure, effort: Effort, size: Size | None = None) -> Row:
    """Measure one benchmark. If a side cannot run on this machine, the result has a note."""
    size = size or Size()
    missing = [module for module in figure.other.needs if not installed(module)]
    sides = [figure.ours] if missing else [figure.ours, figure.other]
    try:
        costs = interleaved([side.prepare(size) for side in sides], effort)
    except NotHere as reason:
        return Row(figure, note=str(reason))
    ours = statistics.median(costs[0])
    if missing:
        return Row(figure, ours=ours, note=f"not installed: {', '.join(missing)}")
    ratio = statistics.median(map(figure.bar.ratio, *costs))
    return Row(figure, ours=ours, other=statistics.median(costs[1]), ratio=ratio)


def failure(figure: Figure, error: Exception) -> Row:
    """Return the result row of a benchmark that raised an error."""
    return Row(figure, note=traceback.format_exception_only(error)[-1].strip().splitlines()[0])


def installed(module: str) -> bool:
    """Return True if a module can be imported. The module is not imported."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def interleaved(works: list[Timed | Counted], effort: Effort) -> list[list[float]]:
    """Return the costs per item of each workload for each round. The workloads alternate in going first."""
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
    """Warm up the workload, and return how many calls take at least `seconds`."""
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
    """Return the seconds per item of `calls` calls in a row, with the garbage collector off."""
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
    """Return the cost per item of one small call, to check that a side works at all."""
    return cost(side.prepare(size), 1)

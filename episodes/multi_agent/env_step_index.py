"""Conversion of env steps to positions in one agent's lists of items, since an agent may skip env steps.

`times` are the env steps at which one agent's observations arrived, or at which it acted. Env steps that the agent
skipped are not stored, so rows are found by bisection.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

import numpy as np

MISSING = -1  # the row of an env step without an item


def ints(times: Sequence[int]) -> Sequence[int]:
    """Return an array of env steps as a memoryview, in which bisection is five times faster. Lists are unchanged."""
    return memoryview(times) if type(times) is np.ndarray else times


def row_at(times: Sequence[int], t: int) -> int:
    """Return the position of env step `t` in the sorted list `times`, or `MISSING` (-1). O(log n).

    >>> row_at([0, 2, 5], 2), row_at([0, 2, 5], 3)
    (1, -1)
    """
    times = ints(times)
    row = bisect_left(times, t)
    return row if row < len(times) and times[row] == t else MISSING


def rows_between(times: Sequence[int], begin: int, end: int) -> tuple[int, int]:
    """Return the positions [first, stop) of all items of the sorted list `times` with env steps in [begin, end).

    >>> rows_between([0, 2, 5], 1, 6)
    (1, 3)
    """
    times = ints(times)
    if not len(times):
        return 0, 0
    first = 0 if times[0] >= begin else bisect_left(times, begin)
    return first, len(times) if times[-1] < end else bisect_left(times, end, first)


def rows_of(times: Sequence[int], env_steps: Iterable[int], earliest: int) -> list[int]:
    """Return the position of each of `env_steps` in the sorted list `times`, or `MISSING` (-1) if a step is absent.

    Env steps before `earliest` count as absent.

    >>> rows_of([0, 2, 5], [5, 4, 2, 0], earliest=1)
    [2, -1, 1, -1]
    """
    times = ints(times)
    return [row_at(times, t) if t >= earliest else MISSING for t in env_steps]


def chunk_rows(
    observation_times: Sequence[int], action_times: Sequence[int], bounds: tuple[int, int], lookback: int
) -> tuple[int, ...]:
    """Return the positions of an agent's observations in a chunk: the first of the lookback, of step 0, and the last.

    A step belongs to the chunk in which its next observation arrives. So an agent with a pending action at `begin`
    starts with the earlier observation on which it acted, and one with a pending action at `end` leaves that step to
    the next chunk.

    Args:
        observation_times: env steps at which observations arrived, [k + 1].
        action_times: env steps at which the agent acted, [k] or [k + 1].
        bounds: begin and end of the chunk.
        lookback: number of env steps before `begin` to keep.

    Returns:
        The row of the first observation kept, of the observation of step 0, and of the last one, `MISSING` if the agent
        has no observation yet.

    >>> chunk_rows([0, 2, 4, 6], [0, 2, 4], bounds=(3, 5), lookback=2)
    (1, 1, 2)
    """
    begin, end = bounds
    observation_times = ints(observation_times)
    zero = _newest_row(observation_times, begin)
    zero = zero if zero > 0 else 0
    first = bisect_left(ints(action_times), begin - lookback, 0, zero) if zero and lookback else zero
    return first, zero, _newest_row(observation_times, end, zero)


def _newest_row(times: Sequence[int], t: int, low: int = 0) -> int:
    """Return the position of the last item in the sorted list `times` whose env step is at most `t`.

    The search starts at position `low`. If no item qualifies, the result is `low - 1`.
    """
    return bisect_right(times, t, low) - 1

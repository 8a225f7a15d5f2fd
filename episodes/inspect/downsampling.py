"""Downsampling of time series for plots: runs of items (cells) are reduced to their lowest and highest numbers.

Every view draws cells, and never every n-th item, so an outlier is in the picture wherever it is:

    items    3 1 2 | 9 2 2 | 1 1 NaN         n = 9, every = 3, k = 3
    low      1       2       1
    high     3       9       1
    num_nan  0       0       1
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

MOST_AT_ONCE = 1 << 22  # numbers that are summarized together


@dataclass(frozen=True)
class Cells:
    """Time series of items with d numbers, downsampled to k cells, each of which summarizes a run of items.

    `low` and `high` are float64 [k, d] over the finite numbers of a cell, and NaN if it has none. `low_at` and
    `high_at` are the indices of these items, int64 [k, d], or of the first item of a cell without finite numbers.
    `ends` are the first finite number of the first cell and the last finite number of the last cell, float64 [2, d], or
    NaN. `ends_at` are the indices of these items, int64 [2, d]. The counts are int64 [k, d]. A missing value is an item
    without the key of an info, which is not NaN.
    """

    every: int  # items in each cell but the last, which may have fewer
    low: np.ndarray
    high: np.ndarray
    low_at: np.ndarray
    high_at: np.ndarray
    ends: np.ndarray
    ends_at: np.ndarray
    num_missing: np.ndarray
    num_nan: np.ndarray
    num_above: np.ndarray  # numbers that are plus infinity
    num_below: np.ndarray  # numbers that are minus infinity

    def __len__(self) -> int:
        return len(self.low)

    @property
    def is_exact(self) -> bool:
        """Whether each cell has a single item, so that no information is lost."""
        return self.every == 1

    def starts(self) -> np.ndarray:
        """Return the index of the first item of each cell, int64 [k]."""
        return np.arange(len(self)) * self.every

    def line(self, column: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the points of a line plot of component `column`: item indices [m] and numbers [m].

        The points are the lowest and the highest of each cell in the order of the items, the first item and the last
        one. A cell without finite numbers is NaN, which interrupts the line.
        """
        at = np.stack([self.low_at[:, column], self.high_at[:, column]], 1)
        numbers = np.stack([self.low[:, column], self.high[:, column]], 1)
        falls = at[:, 0] > at[:, 1]
        at[falls], numbers[falls] = at[falls, ::-1], numbers[falls, ::-1]
        first, last = self.ends[:, column]
        first_at, last_at = self.ends_at[:, column]
        at = np.concatenate([[first_at], at.reshape(-1), [last_at]])
        numbers = np.concatenate([[first], numbers.reshape(-1), [last]])
        is_new = np.diff(at, prepend=-1) != 0
        return at[is_new], numbers[is_new]

    def edges(self, column: int) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """Return the upper and the lower edge of a band of component `column`: item indices and numbers, [k + 2] each.

        They are the extremes of each cell where they are, and at the first and the last finite item those of the first
        and the last cell. A cell without finite numbers is NaN.
        """
        first_at, last_at = self.ends_at[:, column]
        upper, lower = (
            (np.concatenate([[first_at], at[:, column], [last_at]]), numbers[[0, *range(len(self)), -1], column])
            for at, numbers in ((self.high_at, self.high), (self.low_at, self.low))
        )
        return upper, lower


def downsample(values: np.ndarray, max_cells: int, *, present: np.ndarray | None = None) -> Cells:
    """Reduce the items `values` [n, d] to at most `max_cells` cells of equally many items. n is at least 1.

    Args:
        present: bool [n], False for missing items.

    >>> cells = downsample(np.array([3.0, 1, 2, 9, 2, 2, 1, 1, np.nan])[:, None], 3)
    >>> cells.low[:, 0].tolist(), cells.high[:, 0].tolist(), cells.num_nan[:, 0].tolist()
    ([1.0, 2.0, 1.0], [3.0, 9.0, 1.0], [0, 0, 1])
    >>> cells.line(0)[0].tolist()
    [0, 1, 3, 4, 6, 7]
    """
    total, width = values.shape
    every = -(-total // max_cells)
    step = max(MOST_AT_ONCE // total, 1)
    parts = [_summarize(values[:, k : k + step], every, present) for k in range(0, max(width, 1), step)]
    if len(parts) == 1:
        return parts[0]
    names = [field.name for field in fields(Cells)][1:]
    return Cells(every, *(np.concatenate([getattr(part, name) for part in parts], 1) for name in names))


def stacked_items(numbers: np.ndarray, every: int, num_rows: int) -> np.ndarray:
    """Return the numbers [n] of each cell of `every` items in order, float64 [num_rows, k] with the highest first.

    A number has as many of the rows as its share of the cell. The lowest and the highest number are always there. NaN
    is left out.

    >>> stacked_items(np.array([2.0, 1, 1, 1, 3, 3, 3, 3]), 4, 4).T.tolist()
    [[2.0, 1.0, 1.0, 1.0], [3.0, 3.0, 3.0, 3.0]]
    """
    num_cells = -(-len(numbers) // every)
    cells = np.full(num_cells * every, np.nan)
    cells[: len(numbers)] = numbers
    cells = np.sort(cells.reshape(num_cells, every), 1)  # NaN is last
    counts = (~np.isnan(cells)).sum(1)
    picked = ((np.arange(num_rows)[::-1, None] + 0.5) / num_rows * counts).astype(np.intp)  # [num_rows, k]
    if num_rows > 1:
        picked[0], picked[-1] = np.maximum(counts - 1, 0), 0
    return np.take_along_axis(cells.T, picked, 0)


def _summarize(values: np.ndarray, every: int, present: np.ndarray | None) -> Cells:
    """Reduce `values` [n, d] to cells of `every` items."""
    total, width = values.shape
    starts = np.arange(0, total, every)
    numbers = _in_cells(values, every)
    is_finite = np.isfinite(numbers)
    if present is not None:
        is_finite &= _in_cells(present[:, None], every)
    has_finite = is_finite.any(2)
    all_finite = bool(is_finite.all())  # then no copy is needed
    low_at = (numbers if all_finite else np.where(is_finite, numbers, np.inf)).argmin(2)
    high_at = (numbers if all_finite else np.where(is_finite, numbers, -np.inf)).argmax(2)
    low, high = (
        np.where(has_finite, np.take_along_axis(numbers, at[:, :, None], 2)[:, :, 0].astype(np.float64), np.nan).T
        for at in (low_at, high_at)
    )
    last_at = starts[-1] + every - 1 - is_finite[:, -1, ::-1].argmax(1)
    ends_at = np.stack([is_finite[:, 0].argmax(1), np.minimum(last_at, total - 1)])
    ends = np.where(is_finite[:, [0, -1]].any(2).T, np.take_along_axis(values, ends_at, 0), np.nan)
    counts = np.zeros((4, len(starts), width), np.int64)
    if not all_finite:
        is_there = np.ones((total, 1), bool) if present is None else present[:, None]
        unusual = (np.isnan(values), values == np.inf, values == -np.inf)
        for count, mask in zip(counts, [~is_there, *(mask & is_there for mask in unusual)], strict=True):
            count[:] = np.add.reduceat(mask, starts, 0, np.int64)
    return Cells(every, low, high, (starts + low_at).T, (starts + high_at).T, ends, ends_at, *counts)


def _in_cells(items: np.ndarray, every: int) -> np.ndarray:
    """Return items [n, d] as cells [d, k, every]. Copies of the last item fill the last cell, and change no extreme."""
    total, width = items.shape
    num_cells = -(-total // every)
    cells = np.empty((width, num_cells * every), items.dtype)
    cells[:, :total], cells[:, total:] = items.T, items[-1:].T
    return cells.reshape(width, num_cells, every)

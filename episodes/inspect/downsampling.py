"""Downsampling of time series for plots: runs of items (cells) are reduced to lowest, highest, first, last.

Every view draws cells, and never every n-th item, so an outlier is in the picture wherever it is:

    items    3 1 2 | 9 2 2 | 1 1 NaN         n = 9, every = 3, k = 3
    low      1       2       1
    high     3       9       1
    first    3       9       1
    last     2       2       1
    num_nan  0       0       1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

MOST_AT_ONCE = 1 << 22  # numbers that are summarized together


@dataclass(frozen=True)
class Cells:
    """Time series of items with d numbers, downsampled to k cells, each of which summarizes a run of items.

    `low`, `high`, `first` and `last` are float64 [k, d] over the finite numbers of a cell, and NaN if it has none.
    The fields that end in `_at` are the indices of these items, int64 [k, d], or -1 if the cell has no finite number.
    The counts are int64 [k, d]. A missing value is an item without the key of an info, which is not NaN.
    """

    total: int  # n
    every: int  # items in each cell but the last, which may have fewer
    low: np.ndarray
    high: np.ndarray
    first: np.ndarray
    last: np.ndarray
    low_at: np.ndarray
    high_at: np.ndarray
    first_at: np.ndarray
    last_at: np.ndarray
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
        one. A cell without finite numbers is one NaN, which interrupts the line.
        """
        low_at, high_at = self.low_at[:, column], self.high_at[:, column]
        is_up = low_at <= high_at
        at = np.where(is_up, [low_at, high_at], [high_at, low_at])
        numbers = np.where(
            is_up, [self.low[:, column], self.high[:, column]], [self.high[:, column], self.low[:, column]]
        )
        at = np.where(at < 0, self.starts(), at).T.reshape(-1)
        numbers = numbers.T.reshape(-1)
        for end, row in ((0, self.first), (-1, self.last)):
            if len(self) and not np.isnan(row[end, column]):
                index = (self.first_at if end == 0 else self.last_at)[end, column]
                place = 0 if end == 0 else len(at)
                at, numbers = np.insert(at, place, index), np.insert(numbers, place, row[end, column])
        is_new = np.diff(at, prepend=-1) != 0
        return at[is_new], numbers[is_new]


def downsample(
    values: np.ndarray, max_cells: int, *, present: np.ndarray | None = None, columns: Sequence[int] | None = None
) -> Cells:
    """Reduce the items `values` [n, d] to at most `max_cells` cells of equally many items.

    Args:
        present: bool [n], False for missing items.
        columns: the numbers of an item to use, all by default.

    >>> cells = downsample(np.array([3.0, 1, 2, 9, 2, 2, 1, 1, np.nan])[:, None], 3)
    >>> cells.low[:, 0].tolist(), cells.high[:, 0].tolist(), cells.num_nan[:, 0].tolist()
    ([1.0, 2.0, 1.0], [3.0, 9.0, 1.0], [0, 0, 1])
    >>> cells.line(0)[0].tolist()
    [0, 1, 3, 4, 6, 7]
    """
    total = len(values)
    every = max(1, -(-total // max(max_cells, 1)))
    chosen = np.arange(values.shape[1]) if columns is None else np.asarray(columns, np.intp)
    width = max(MOST_AT_ONCE // max(total, 1), 1)
    parts = [_fields(values[:, chosen[k : k + width]], every, present) for k in range(0, max(len(chosen), 1), width)]
    names = [field.name for field in fields(Cells)][2:]
    return Cells(total, every, **{name: np.concatenate([part[name] for part in parts], 1) for name in names})


def _fields(values: np.ndarray, every: int, present: np.ndarray | None) -> dict[str, np.ndarray]:
    """Return the arrays [k, d] of `Cells`, by name, for cells of `every` items of `values` [n, d]."""
    total, width = values.shape
    num_cells = -(-total // every)
    numbers = np.full((width, num_cells * every), np.nan)
    numbers[:, :total] = values.T
    is_there = np.zeros(num_cells * every, bool)
    is_there[:total] = True if present is None else present
    numbers, is_there = numbers.reshape(width, num_cells, every), is_there.reshape(num_cells, every)
    is_finite = np.isfinite(numbers) & is_there
    has_any = is_finite.any(2)
    at = {
        "low": np.where(is_finite, numbers, np.inf).argmin(2),
        "high": np.where(is_finite, numbers, -np.inf).argmax(2),
        "first": is_finite.argmax(2),
        "last": every - 1 - is_finite[:, :, ::-1].argmax(2),
    }
    starts = np.arange(num_cells) * every
    cells = {}
    for name, index in at.items():
        picked = np.take_along_axis(numbers, index[:, :, None], 2)[:, :, 0]
        cells[name] = np.where(has_any, picked, np.nan).T
        cells[f"{name}_at"] = np.where(has_any, starts + index, -1).T
    missing = np.minimum(every, total - starts) - is_there.sum(1)
    cells["num_missing"] = np.repeat(missing[:, None], width, 1)
    unusual = ~is_finite & is_there
    has_odd = unusual.any()
    for name, kind in (("num_nan", np.isnan), ("num_above", np.isposinf), ("num_below", np.isneginf)):
        cells[name] = (unusual & kind(numbers)).sum(2).T if has_odd else np.zeros((num_cells, width), np.int64)
    return cells

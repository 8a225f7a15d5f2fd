"""Items of tracks that are compressed in some or all record batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from episodes.storage.sampling.window_grid import WindowGrid


class Rows(Protocol):
    """The rows of a track of one record batch."""

    def take(self, rows: np.ndarray) -> np.ndarray: ...


class PlainRows:
    """Those of an array [rows, ...]."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def take(self, rows: np.ndarray) -> np.ndarray:
        return self._array[rows]


class DecodedColumn:
    """One track of all batches, whose unit is a row; see `MappedColumn`, which it can stand for.

    Args:
        batches: the rows of each batch.
        sizes: how many they are.
    """

    step = 1

    def __init__(self, batches: Sequence[Rows], sizes: Sequence[int], dtype: np.dtype, shape: tuple[int, ...]) -> None:
        self.dtype, self.shape = dtype, shape
        self._batches = batches
        ends = np.cumsum([0, *sizes])
        self.bases, self._ends = ends[:-1], ends[1:]

    def take(self, units: np.ndarray) -> np.ndarray:
        """The items [..., *shape] with these row numbers [...]."""
        rows = units.ravel()
        found = np.empty((len(rows), *self.shape), self.dtype)
        if len(self._batches) == 1:
            found[:] = self._batches[0].take(rows)
        else:
            of = self._ends.searchsorted(rows, side="right")
            for batch in np.unique(of).tolist():
                own = np.flatnonzero(of == batch)
                found[own] = self._batches[batch].take(rows[own] - self.bases[batch])
        return found.reshape(*units.shape, *self.shape)

    def windows(self, units: np.ndarray, grid: WindowGrid) -> np.ndarray:
        """The windows [B, W, *shape] whose first columns have the row numbers [B]; zeros where there is no item."""
        found = np.zeros((*grid.there.shape, *self.shape), self.dtype)
        rows = units[:, None] + np.arange(grid.there.shape[1])
        found[grid.there] = self.take(rows[grid.there])
        return found

"""Fast gathering of array items by memory address, as if the arrays in all memory-mapped files were one array.

A track of a record batch is contiguous, so an item is at address `base(batch) + row * bytes`. One array spans the
addresses of all batches, and an item begins at each `unit` bytes. So sampling from any number of files is one gather,
and a window of T successive items is one item of T times the size.

    addresses  lo ... | file 1: rewards | ........ | file 2: rewards | ... hi
    units      0 1 2 3 ...
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from episodes.storage.sampling.window_grid import WindowGrid

_MOVED_AS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}
"""Dtypes as which array items are copied, by item size in bytes: numpy copies numbers faster than bytes."""


class _Memory:
    """Read-only buffer of all memory between the addresses `lo` and `hi`, which numpy can view as one array of bytes.

    Addresses between the record batches are never read.
    """

    def __init__(self, lo: int, hi: int, owners: object) -> None:
        self.__array_interface__ = {"version": 3, "shape": (hi - lo,), "typestr": "|u1", "data": (lo, True)}
        self.owners = owners


class MappedColumn:
    """Array of a data set (such as the rewards) that is read like a single array, though its parts are in
    many memory-mapped files.

    Args:
        arrays: of each batch [rows, *shape], C-contiguous; None for a batch without the track.
        dtype: of the items.
        shape: of one item.

    Attributes:
        step: units from one item to the next.
        bases: unit of each batch's first row, int64 [batches].
    """

    def __init__(self, arrays: Sequence[np.ndarray | None], dtype: np.dtype, shape: tuple[int, ...]) -> None:
        self.dtype, self.shape = dtype, shape
        self._bytes_of_item = dtype.itemsize * math.prod(shape)
        present = [array for array in arrays if array is not None and array.nbytes]
        starts = [array.ctypes.data for array in present]
        lo = min(starts, default=0)
        hi = max((start + array.nbytes for start, array in zip(starts, present, strict=True)), default=lo)
        self._size = hi - lo
        self._unit = math.gcd(self._bytes_of_item, *(start - lo for start in starts)) or 1
        self.step = self._bytes_of_item // self._unit
        self._memory = np.asarray(_Memory(lo, hi, present)) if present else np.zeros(0, np.uint8)
        self._views: dict[int, np.ndarray] = {}
        self._each = self._items(1) if self._bytes_of_item else self._memory
        self._is_each = self._each.dtype == dtype and not shape
        self.bases = np.array(
            [(array.ctypes.data - lo) // self._unit if array is not None and array.nbytes else 0 for array in arrays],
            np.int64,
        )

    def take(self, units: np.ndarray) -> np.ndarray:
        """Return the items at the memory offsets `units` [...] as an array [..., *shape]."""
        if not self._bytes_of_item:
            return np.zeros(units.shape + self.shape, self.dtype)
        items = self._each[units]
        return items if self._is_each else items.view(self.dtype).reshape(units.shape + self.shape)

    def windows(self, units: np.ndarray, grid: WindowGrid) -> np.ndarray:
        """Return B windows of W successive items, [B, W, *shape], which begin at the memory offsets `units` [B]. Items
        that `grid` marks as padding are zeros."""
        shape = (*grid.layout.exists.shape, *self.shape)
        if not self._bytes_of_item:
            return np.zeros(shape, self.dtype)
        if grid.apart is None:
            result = self._items(shape[1])[units].view(self.dtype).reshape(shape)
        else:
            result = np.empty(shape, self.dtype)
            inside = np.flatnonzero(~grid.apart)
            if len(inside):
                whole = self._items(shape[1])[units[inside]].view(self.dtype)
                result[inside] = whole.reshape(len(inside), *shape[1:])
            result[grid.apart] = self.take(units[grid.apart, None] + grid.nearest() * self.step)
        if len(grid.padding):
            result.reshape(-1, *self.shape)[grid.padding] = np.zeros((), self.dtype)
        return result

    def _items(self, count: int) -> np.ndarray:
        """Return a view in which element u is `count` successive items, beginning at memory offset u.
        Elements overlap in memory."""
        view = self._views.get(count)
        if view is None:
            size = self._bytes_of_item * count
            moved: Any = _MOVED_AS.get(size, f"V{size}") if self._unit % min(size, 8) == 0 else f"V{size}"
            if count == 1 and not self.shape and np.dtype(moved).kind == "u":
                moved = self.dtype
            num = max((self._size - size) // self._unit + 1, 0)
            view = np.ndarray((num,), moved, self._memory.data, 0, (self._unit,))
            self._views[count] = view
        return view

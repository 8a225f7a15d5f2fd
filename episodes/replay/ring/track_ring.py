"""Rings of rows: arrays that are written from left to right and, once full, from the left again.

Rows are numbered by arrival, from 0 and for ever; row number k lies at position k % size. After the last position
comes one more row, of zeros: gathering from there is how draws are padded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from episodes.errors import ShapeMismatch, TrackMismatch
from episodes.replay.ring.mapped_files import MappedFiles, file_name_of
from episodes.tracks import nested

CACHE_LINE = 64
"""In bytes."""
SMALL = 16
"""Bytes of an item up to which it is moved as a whole."""
UNCHECKED: Any = "clip"
"""Mode of a `take` whose indices are in range: to check them takes a third of its time, and copies its `out` twice."""


class Allocator:
    """Creates the arrays of rings: in memory, or in the files of a directory.

    Args:
        files: where mapped files are created; None for arrays in memory.
    """

    def __init__(self, files: MappedFiles | None = None) -> None:
        self.files = files

    def empty(self, size: int, item: np.ndarray) -> np.ndarray:
        """Return an array [size + 1, ...] for items like those of `item` [k, ...]. Its last row is zeros."""
        shape = (size + 1, *item.shape[1:])
        if self.files is None:
            array = aligned(shape, item.dtype)
        elif item.dtype.hasobject:
            raise TrackMismatch("a buffer with files cannot store Python objects; give arrays of numbers, or no path")
        else:
            array = self.files.array(shape, item.dtype)
        array[size] = np.zeros((), item.dtype)
        return array

    @property
    def names(self) -> list[str]:
        """Names of all files in use."""
        return [] if self.files is None else list(self.files.names)

    def remove(self, names: Iterable[str]) -> None:
        """Delete files of arrays that are no longer used."""
        if self.files is not None:
            self.files.remove(names)

    def remove_all_but(self, names: Iterable[str]) -> None:
        """Delete the files that were created since only `names` were in use."""
        if self.files is not None:
            self.files.remove_all_but(names)


def aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An empty array that begins where a cache line does, so that small rows do not lie across two."""
    if dtype.hasobject or not dtype.itemsize:
        return np.empty(shape, dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(nbytes + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + nbytes].view(dtype).reshape(shape)


class TrackRing:
    """One track: nested arrays [size + 1, ...], the last row zeros.

    Attributes:
        items: the same memory as an array [size + 1] with an element for each item, which gathers faster; None where
            items are nested or too large for that.
        item: the dtype that makes an array [..., ...] of such elements [...] again; None where it is one already.
    """

    __slots__ = ("data", "item", "items", "name", "plain", "size")
    items: Any

    def __init__(self, name: str, size: int, data: Any) -> None:
        self.name = name
        self.size = size
        self.plain = nested.is_leaf(data)
        self.data = data
        self.items = as_scalars(data) if self.plain else None
        one_each = self.items is None or self.items is data
        self.item = None if one_each else np.dtype((data.dtype, data.shape[1:]))

    @staticmethod
    def like(name: str, size: int, items: Any, allocator: Allocator) -> TrackRing:
        """A ring with room of its own for items like these, nested arrays [k, ...]."""
        return TrackRing(name, size, nested.map_leaves(lambda leaf: allocator.empty(size, leaf), items))

    @property
    def nbytes(self) -> int:
        return sum(leaf.nbytes for leaf in nested.leaves(self.data))

    def check(self, items: Any) -> None:
        """Raise unless the items [k, ...] are of this track's structure and shape, and of a dtype that fits."""
        if self.plain and type(items) is np.ndarray:
            self._check_leaf(self.data, items, self.name)
            return
        if not nested.same_structure(self.data, items):
            raise TrackMismatch(f"{self.name}: {nested.describe(items)}; the buffer holds {nested.describe(self.data)}")
        there = nested.flatten(items, self.name)
        for path, leaf in nested.flatten(self.data, self.name).items():
            self._check_leaf(leaf, there[path], path)

    def _check_leaf(self, leaf: np.ndarray, items: np.ndarray, path: str) -> None:
        if items.shape[1:] != leaf.shape[1:]:
            raise ShapeMismatch(f"{path}: items of shape {items.shape[1:]}; the buffer holds items of {leaf.shape[1:]}")
        if items.dtype != leaf.dtype and not np.can_cast(items.dtype, leaf.dtype, "safe"):
            raise TrackMismatch(
                f"{path}: items of {items.dtype} do not fit into the buffer's {leaf.dtype} without loss; "
                "convert them first"
            )

    def write(self, number: int, items: Any, rows: Any = None) -> None:
        """Put `items[rows]` (all of them when None) at the positions of row numbers `number`, `number + 1`, ..."""
        start = number % self.size
        if self.plain:
            if rows is not None:
                items = select_rows(items, rows)
            stop = start + len(items)
            if stop <= self.size:
                self.data[start:stop] = items
            else:
                put(self.data, self.size, start, items)
            return
        nested.map_leaves(lambda ring, leaf: put(ring, self.size, start, select_rows(leaf, rows)), self.data, items)

    def take(self, positions: np.ndarray) -> Any:
        """The items at the positions [...]: nested arrays [..., ...], copied."""
        items, item = self.items, self.item
        if items is not None:
            return items[positions] if item is None else items[positions].view(item)
        if self.plain:
            return gather_copy(self.data, positions)
        return nested.map_leaves(lambda leaf: gather_copy(leaf, positions), self.data)

    def resized(self, size: int, first: int, stop: int, allocator: Allocator) -> TrackRing:
        """A ring of another size with the row numbers [first, stop) of this one."""

        def copy_leaf(old: np.ndarray) -> np.ndarray:
            new = allocator.empty(size, old)
            for number, count in contiguous_ranges(first, stop, self.size, size):
                a, b = number % self.size, number % size
                new[b : b + count] = old[a : a + count]
            return new

        return TrackRing(self.name, size, nested.map_leaves(copy_leaf, self.data))

    @property
    def file_names(self) -> list[str]:
        """Names of the files that the arrays are mapped from."""
        return [name for leaf in nested.leaves(self.data) if (name := file_name_of(leaf))]


def as_scalars(data: np.ndarray) -> np.ndarray | None:
    """The array [n, ...] as one [n] of the same memory, an element an item; None if items are large or objects."""
    if data.ndim == 1:
        return data
    nbytes = data.itemsize * math.prod(data.shape[1:])
    if data.dtype.hasobject or not 0 < nbytes <= SMALL:
        return None
    return data.reshape(len(data), -1).view((np.void, nbytes))[:, 0]


def select_rows(items: np.ndarray, rows: slice | np.ndarray | None) -> np.ndarray:
    """`items[rows]`, or all of them."""
    if rows is None:
        return items
    return items[rows] if isinstance(rows, slice) else items.take(rows, 0, mode=UNCHECKED)


def gather_copy(ring: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """A copy of the items at the positions [...]."""
    return ring.take(positions, 0) if ring.flags.c_contiguous else ring[positions]


def put(ring: np.ndarray, size: int, start: int, items: Any) -> None:
    """Write the items [k, ...] from position `start` on, going on at 0 after `size` - 1; k is at most the size."""
    stop = start + len(items)
    if stop <= size:
        ring[start:stop] = items
        return
    split = size - start
    ring[start:size] = items[:split]
    ring[: stop - size] = items[split:]


def positions(number: int, count: int, size: int) -> np.ndarray:
    """The positions [count] of row numbers from `number` on."""
    start = number % size
    found = np.arange(start, start + count)
    if start + count > size:
        found %= size
    return found


def numbers_at(positions: np.ndarray, head: int, size: int) -> np.ndarray:
    """The row numbers at the positions, of a ring whose next row has number `head`."""
    if head <= size:
        return positions.astype(np.int64)
    start = head % size
    return positions + np.where(positions < start, head - start, head - start - size)


def contiguous_ranges(first: int, stop: int, *sizes: int) -> Iterator[tuple[int, int]]:
    """Row numbers [first, stop) as (number, count) pieces that lie in a row in rings of all these sizes."""
    while first < stop:
        count = min(stop - first, *(size - first % size for size in sizes))
        yield first, count
        first += count

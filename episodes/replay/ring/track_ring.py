"""Rings of rows: arrays that are written from left to right and, once full, from the left again.

Rows are numbered by arrival, from 0 and for ever; row number k lies at position k % size. After the last position
comes one more row, of zeros: gathering from there is how draws are padded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from episodes.errors import InvalidArgument, ShapeMismatch, TrackMismatch, UnreadableData
from episodes.tracks import nested

CACHE_LINE = 64
"""In bytes."""
SMALL = 16
"""Bytes of an item up to which it is moved as a whole."""
UNCHECKED: Any = "clip"
"""Mode of a `take` whose indices are in range: to check them takes a third of its time, and copies its `out` twice."""


class Allocator:
    """Makes the arrays of rings: in memory, or as memory-mapped `.npy` files in a directory."""

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._num_files = 0
        self._files: list[Path] = []
        self._reopened: list[str] = []  # names of files that are there, for the next arrays

    def reopen(self, names: list[str]) -> None:
        """Let the next arrays be those of these files, in this order."""
        self._reopened = list(names)

    @property
    def files(self) -> list[Path]:
        """Those of all arrays that were made and are not discarded."""
        return list(self._files)

    def discard_files(self, files: list[Path]) -> None:
        """Remove the files of arrays that are no longer used."""
        for file in files:
            file.unlink(missing_ok=True)
        self._files = [file for file in self._files if file not in files]

    def empty(self, size: int, item: np.ndarray) -> np.ndarray:
        """An array [size + 1, ...], its last row zeros, for items like those of `item` [k, ...]."""
        shape = (size + 1, *item.shape[1:])
        array = aligned(shape, item.dtype) if self.path is None else self._file(self.path, shape, item.dtype)
        array[size] = np.zeros((), item.dtype)
        return array

    def _old_file(self, file: Path, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        try:
            array = np.lib.format.open_memmap(file, mode="r+")
        except (OSError, ValueError) as error:
            raise UnreadableData(f"{file} is not an array that a buffer wrote: {error}") from None
        if array.shape != shape or array.dtype != dtype:
            raise UnreadableData(f"{file} holds {array.dtype} {list(array.shape)}, not {dtype} {list(shape)}")
        self._num_files = max(self._num_files, int(file.stem.removeprefix("ring_")))
        self._files.append(file)
        return np.asarray(array)

    @staticmethod
    def discard(array: np.ndarray) -> None:
        """Remove the file of an array that is no longer used."""
        if isinstance(array.base, np.memmap) and array.base.filename is not None:
            Path(array.base.filename).unlink(missing_ok=True)

    def _file(self, folder: Path, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        if self._reopened:
            return self._old_file(folder / self._reopened.pop(0), shape, dtype)
        folder.mkdir(parents=True, exist_ok=True)
        self._num_files += 1
        file = folder / f"ring_{self._num_files}.npy"
        if file.exists():
            raise InvalidArgument(f"{file} is there: it may be another buffer's; give a directory of its own")
        self._files.append(file)
        return np.asarray(np.lib.format.open_memmap(file, mode="w+", dtype=dtype, shape=shape))


def file_of(array: np.ndarray) -> Path | None:
    """The file that an array, or what it is a view of, is mapped from."""
    base: Any = array
    while base is not None and not (isinstance(base, np.memmap) and base.filename is not None):
        base = base.base
    return None if base is None else Path(str(base.filename))


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
                items = picked(items, rows)
            stop = start + len(items)
            if stop <= self.size:
                self.data[start:stop] = items
            else:
                put(self.data, self.size, start, items)
            return
        nested.map_leaves(lambda ring, leaf: put(ring, self.size, start, picked(leaf, rows)), self.data, items)

    def take(self, positions: np.ndarray) -> Any:
        """The items at the positions [...]: nested arrays [..., ...], copied."""
        items, item = self.items, self.item
        if items is not None:
            return items[positions] if item is None else items[positions].view(item)
        if self.plain:
            return gathered(self.data, positions)
        return nested.map_leaves(lambda leaf: gathered(leaf, positions), self.data)

    def resized(self, size: int, first: int, stop: int, allocator: Allocator) -> TrackRing:
        """A ring of another size with the row numbers [first, stop) of this one."""

        def moved(old: np.ndarray) -> np.ndarray:
            new = allocator.empty(size, old)
            for number, count in stretches(first, stop, self.size, size):
                a, b = number % self.size, number % size
                new[b : b + count] = old[a : a + count]
            return new

        return TrackRing(self.name, size, nested.map_leaves(moved, self.data))

    def discard(self, allocator: Allocator) -> None:
        """Remove the files of a ring that is no longer used."""
        for leaf in nested.leaves(self.data):
            allocator.discard(leaf)


def as_scalars(data: np.ndarray) -> np.ndarray | None:
    """The array [n, ...] as one [n] of the same memory, an element an item; None if items are large or objects."""
    if data.ndim == 1:
        return data
    nbytes = data.itemsize * math.prod(data.shape[1:])
    if data.dtype.hasobject or not 0 < nbytes <= SMALL:
        return None
    return data.reshape(len(data), -1).view((np.void, nbytes))[:, 0]


def picked(items: np.ndarray, rows: slice | np.ndarray | None) -> np.ndarray:
    """`items[rows]`, or all of them."""
    if rows is None:
        return items
    return items[rows] if isinstance(rows, slice) else items.take(rows, 0, mode=UNCHECKED)


def gathered(ring: np.ndarray, positions: np.ndarray) -> np.ndarray:
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


def numbers(positions: np.ndarray, head: int, size: int) -> np.ndarray:
    """The row numbers at the positions, of a ring whose next row has number `head`."""
    if head <= size:
        return positions.astype(np.int64)
    start = head % size
    return positions + np.where(positions < start, head - start, head - start - size)


def stretches(first: int, stop: int, *sizes: int) -> Iterator[tuple[int, int]]:
    """Row numbers [first, stop) as (number, count) pieces that lie in a row in rings of all these sizes."""
    while first < stop:
        count = min(stop - first, *(size - first % size for size in sizes))
        yield first, count
        first += count

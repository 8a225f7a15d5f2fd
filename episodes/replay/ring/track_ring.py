"""`TrackRing`: array that is filled from the front and, once full, overwritten from the front again.

Rows are numbered in the order in which they are written. Row number k is at position k % size:

    size = 4           position   0  1  2  3 | 4
    after 6 rows       row        4  5  2  3 | zeros

The row of zeros at the end is used for padding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.errors import ShapeMismatch, TrackMismatch
from episodes.replay.ring.mapped_files import MappedFiles, file_name_of
from episodes.replay.ring.ragged_ring import RaggedRing
from episodes.tracks import nested
from episodes.tracks.ragged import Ragged

if TYPE_CHECKING:
    from episodes.data_types import NestedArrays

CACHE_LINE = 64
"""Size of a cache line in bytes."""
SMALL = 16
"""Items of up to this number of bytes are copied as one element."""
UNCHECKED: Any = "clip"
"""Mode of a `take` with valid indices. Checking them takes a third of its time, and copies `out` twice."""


class Allocator:
    """Allocator of ring arrays, either in memory or as memory-mapped files in a directory.

    Args:
        files: where mapped files are created; None for arrays in memory.
    """

    def __init__(self, files: MappedFiles | None = None) -> None:
        self.files = files

    def empty(self, size: int, item: Any) -> Any:
        """Allocate a ring array [size + 1, ...] in the dtype and shape of `item` [k, ...]. The last row is zeros.

        For ragged items it is a `RaggedRing`.

        Raises:
            TrackMismatch: the allocator makes files, and the items are ragged or Python objects.
        """
        if type(item) in (Ragged, RaggedRing):
            if self.files is not None:
                raise TrackMismatch("a buffer with files cannot store ragged tracks; give no path, or pad the items")
            return RaggedRing(size, item.kind)
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
        """Names of the memory-mapped files of all arrays in use."""
        return [] if self.files is None else list(self.files.names)

    def remove(self, names: Iterable[str]) -> None:
        """Delete the memory-mapped files `names`, whose arrays are no longer used."""
        if self.files is not None:
            self.files.remove(names)

    def remove_all_but(self, names: Iterable[str]) -> None:
        """Delete all memory-mapped files of arrays in use, except the files `names`."""
        if self.files is not None:
            self.files.remove_all_but(names)


def aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an uninitialized array whose memory begins at a CPU cache line, unless it holds Python objects.

    Raises:
        MemoryError: the machine cannot give so much memory.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    try:
        if dtype.hasobject or not dtype.itemsize:
            return np.empty(shape, dtype)
        memory = np.empty(nbytes + CACHE_LINE, np.uint8)
    except (MemoryError, ValueError):  # ValueError: more bytes than an address has
        raise MemoryError(
            f"a replay buffer needs {nbytes / 2**30:,.1f} GiB for {shape[0] - 1:,} rows of shape {shape[1:]} and dtype "
            f"{dtype}, which the machine does not give; make one of a smaller capacity, or with a path on disk"
        ) from None
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + nbytes].view(dtype).reshape(shape)


class TrackRing:
    """Ring of `size` items of one time series, such as rewards: (nested) arrays [size + 1, ...], the last row zeros.

    Attributes:
        data: the nested arrays.
        items: the same memory as an array [size + 1] with one element per item, which gathers faster, or None if items
            are nested or large.
        item: dtype that converts such elements back, or None if nothing has to be converted.
        plain: whether `data` is a single array.
    """

    __slots__ = ("data", "item", "items", "name", "plain", "size")
    items: Any

    def __init__(self, name: str, size: int, data: Any) -> None:
        self.name = name
        self.size = size
        self.plain = nested.is_leaf(data) and type(data) is not RaggedRing
        self.data: Any = data
        self.items = as_scalars(self.data) if self.plain else None
        one_each = self.items is None or self.items is data
        self.item = None if one_each else np.dtype((data.dtype, data.shape[1:]))

    @staticmethod
    def like(name: str, size: int, items: NestedArrays, allocator: Allocator) -> TrackRing:
        """Allocate a ring array of `size` items with the dtypes and shapes of `items`, nested arrays [k, ...]."""
        return TrackRing(name, size, nested.map_leaves(lambda leaf: allocator.empty(size, leaf), items))

    @property
    def is_ragged(self) -> bool:
        """Whether items may have different lengths, so that an array is a `RaggedRing`."""
        return not self.plain and any(type(leaf) is RaggedRing for leaf in nested.leaves(self.data))

    @property
    def nbytes(self) -> int:
        return sum(leaf.nbytes for leaf in nested.leaves(self.data))

    def check(self, items: NestedArrays) -> None:
        """Raise an error unless `items` [k, ...] have the nesting, dtype and item shape of this ring.

        Raises:
            TrackMismatch: another structure, or a dtype that could lose values.
            ShapeMismatch: another item shape.
        """
        if self.plain and type(items) is np.ndarray:
            self._check_leaf(self.data, items, self.name)
            return
        if not nested.same_structure(self.data, items):
            raise TrackMismatch(f"{self.name}: {nested.describe(items)}; the buffer holds {nested.describe(self.data)}")
        leaves = nested.flatten(items, self.name)
        for path, leaf in nested.flatten(self.data, self.name).items():
            self._check_leaf(leaf, leaves[path], path)

    def _check_leaf(self, leaf: np.ndarray | RaggedRing, items: np.ndarray | Ragged, path: str) -> None:
        """Check that items can be written to an array of the ring.

        Raises:
            ShapeMismatch: they have another shape.
            TrackMismatch: the array's dtype does not represent all values of their dtype.
        """
        if items.shape[1:] != leaf.shape[1:]:
            raise ShapeMismatch(f"{path}: items of shape {items.shape[1:]}; the buffer holds items of {leaf.shape[1:]}")
        if items.dtype != leaf.dtype and not np.can_cast(items.dtype, leaf.dtype, "safe"):
            raise TrackMismatch(
                f"{path}: items of {items.dtype} do not fit into the buffer's {leaf.dtype} without loss; "
                "convert them first"
            )

    def write(self, number: int, items: Any, rows: slice | np.ndarray | None = None) -> None:
        """Write `items[rows]`, or all items, one after another. The first gets the running number `number`."""
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
        """Return a copy of the items at the ring positions `positions` [...]."""
        items, item = self.items, self.item
        if items is not None:
            return items[positions] if item is None else items[positions].view(item)
        if self.plain:
            return gather_copy(self.data, positions)
        return nested.map_leaves(lambda leaf: gather_copy(leaf, positions), self.data)

    def gather_function(self) -> Callable[[np.ndarray], Any]:
        """Return the fastest function that is equivalent to `take`: `__getitem__` of the array for plain numbers."""
        return self.take if self.items is None or self.item is not None else self.items.__getitem__

    def resized(self, size: int, first: int, stop: int, allocator: Allocator) -> TrackRing:
        """Return a copy of the ring with another size, which contains the items with numbers [first, stop)."""

        def copy_leaf(old: np.ndarray | RaggedRing) -> Any:
            """Return an array of the new size with the stored items."""
            new: Any = allocator.empty(size, old)
            for number, count in contiguous_ranges(first, stop, self.size, size):
                a, b = number % self.size, number % size
                if type(old) is RaggedRing:
                    new.write(b, old[a : a + count])
                    continue
                new[b : b + count] = old[a : a + count]
            return new

        return TrackRing(self.name, size, nested.map_leaves(copy_leaf, self.data))

    @property
    def file_names(self) -> list[str]:
        """Return the names of the files from which the ring's arrays are memory-mapped."""
        return [name for leaf in nested.leaves(self.data) if (name := file_name_of(leaf))]


def as_scalars(data: np.ndarray) -> np.ndarray | None:
    """View an array [n, ...] of small items as an array [n] with one scalar per item. None if items are too large."""
    if data.ndim == 1:
        return data
    nbytes = data.itemsize * math.prod(data.shape[1:])
    if data.dtype.hasobject or not 0 < nbytes <= SMALL:
        return None
    return data.reshape(len(data), -1).view((np.void, nbytes))[:, 0]


def select_rows(items: Any, rows: slice | np.ndarray | None) -> Any:
    """Return `items[rows]` for a slice or for indices [n], or all `items` if no rows are given."""
    if rows is None:
        return items
    if isinstance(rows, slice) or type(items) is Ragged:
        return items[rows]
    return items.take(rows, 0, mode=UNCHECKED)


def gather_copy(ring: Any, positions: np.ndarray) -> Any:
    """Return a copy of the items at `positions` [...] of a ring array, [k] if the items are ragged."""
    if type(ring) is RaggedRing:
        return ring.take(positions)
    return ring.take(positions, 0) if ring.flags.c_contiguous else ring[positions]


def put(ring: Any, size: int, start: int, items: Any) -> None:
    """Write up to `size` items into a ring array from position `start` on, and wrap around at the end."""
    if type(ring) is RaggedRing:
        ring.write(start, items)
        return
    stop = start + len(items)
    if stop <= size:
        ring[start:stop] = items
        return
    split = size - start
    ring[start:size] = items[:split]
    ring[: stop - size] = items[split:]


def positions(number: int, count: int, size: int) -> np.ndarray:
    """Return the ring positions [count] of consecutive items, of which the first has the running number `number`."""
    start = number % size
    result = np.arange(start, start + count)
    if start + count > size:
        result %= size
    return result


def numbers_at(positions: np.ndarray, head: int, size: int) -> np.ndarray:
    """Return the running numbers of the items at ring positions. The next item to be written has the number `head`."""
    if head <= size:
        return positions.astype(np.int64)
    start = head % size
    return positions + np.where(positions < start, head - start, head - start - size)


def contiguous_ranges(first: int, stop: int, *sizes: int) -> Iterator[tuple[int, int]]:
    """Split the item numbers [first, stop) into (number, count) ranges that wrap around in none of the rings.

    The rings have the sizes `sizes`.
    """
    while first < stop:
        count = min(stop - first, *(size - first % size for size in sizes))
        yield first, count
        first += count

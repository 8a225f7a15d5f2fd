"""Small arrays of a replay ring, interleaved step by step, so that sampling a step reads one CPU cache line.

    record of a step    | observation before | after | reward | flags | action | next | t |   up to 64 bytes

With a million stored steps, memory latency is most of the cost of sampling.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence

import numpy as np

from episodes.replay.ring.track_ring import CACHE_LINE, SMALL, Allocator

Fields = Mapping[str, np.ndarray]
"""Arrays [k, ...] with the dtype and item shape of a field, by name."""


class StepRecords:
    """Array of `size` records, each with all small fields of a step, and a record of zeros at the end for padding.

    Args:
        size: number of steps.
        needed: fields of the records.
        spare: fields for the remaining space, in the order of their use. Others get arrays of their own.
        allocator: creates the arrays.
    """

    __slots__ = ("_arrays", "_begins", "_records", "nbytes")

    def __init__(self, size: int, needed: Fields, spare: Fields, allocator: Allocator) -> None:
        width = _width(needed)
        inside, outside = dict(needed), {}
        for name, items in spare.items():
            chosen = inside if _size(inside) + item_bytes(items) <= width else outside
            chosen[name] = items
        self._records = records = allocator.empty(size, np.empty((0, width), np.uint8))  # [size + 1, width]
        self._arrays = {name: allocator.empty(size, items) for name, items in outside.items()}
        self.nbytes = records.nbytes + sum(array.nbytes for array in self._arrays.values())
        start, self._begins = 0, {}
        for name, items in sorted(inside.items(), key=_by_alignment):
            self._begins[name] = start
            stop = start + item_bytes(items)
            self._arrays[name] = records[:, start:stop].view(items.dtype).reshape(size + 1, *items.shape[1:])
            start = stop

    def field(self, name: str) -> np.ndarray:
        """Return one field of all records, such as the rewards, as a strided view [size + 1, ...]."""
        return self._arrays[name]

    def word(self, name: str, following: Sequence[str]) -> np.ndarray | None:
        """Return a 4-byte field and the flags after it as a uint64 array [size + 1], or None if not adjacent.

        Writing a 4-byte value to it sets the `following` fields to zero.
        """
        begin = self._begins.get(name, 1)
        within = {field for field, start in self._begins.items() if begin <= start < begin + 8}
        width = self._records.shape[1]
        if begin % 8 or begin + 8 > width or within != {name, *following} or sys.byteorder != "little":
            return None
        return self._records[:, begin : begin + 8].view(np.uint64)[:, 0]


def item_bytes(items: np.ndarray) -> int:
    """Return the size in bytes of one item of an array [k, ...]."""
    return items.itemsize * math.prod(items.shape[1:])


def is_small(items: object) -> bool:
    """Return True if items are numbers or small arrays of numbers, at most 16 bytes each."""
    return isinstance(items, np.ndarray) and items.dtype.kind in "biuf" and 0 < item_bytes(items) <= SMALL


def fits_in_a_line(needed: Fields) -> bool:
    """Return whether a step record with these fields fits into one CPU cache line."""
    return _size(needed) <= CACHE_LINE


def _size(fields: Fields) -> int:
    return sum(map(item_bytes, fields.values()))


def _width(needed: Fields) -> int:
    """Return the record size in bytes: a power of two up to a cache line, otherwise whole cache lines."""
    size = _size(needed)
    return 1 << (size - 1).bit_length() if size <= CACHE_LINE else -(-size // CACHE_LINE) * CACHE_LINE


def _by_alignment(field: tuple[str, np.ndarray]) -> int:
    """Return a sort key for a record's (name, array) fields that places the strictest memory alignment first."""
    nbytes = item_bytes(field[1])
    return -(nbytes & -nbytes)

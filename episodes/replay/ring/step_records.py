"""`StepRecords`: small fields of each step stored side by side, so that sampling reads one cache line per step.

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
    """Array of `size` records with the small fields of a step, such as reward and flags, and a zero record for padding.

    Args:
        size: number of steps.
        needed: fields of the records.
        spare: fields for the remaining space, in the order of their use. Others get arrays of their own.
        allocator: creates the arrays.

    Attributes:
        bytes_by_field: memory size in bytes of each field.
        unused_bytes: memory size in bytes of what fills the records.
    """

    __slots__ = ("_arrays", "_begins", "_records", "bytes_by_field", "unused_bytes")

    def __init__(self, size: int, needed: Fields, spare: Fields, allocator: Allocator) -> None:
        width = _width(needed)
        inside, outside = dict(needed), {}
        for name, items in spare.items():
            chosen = inside if _size(inside) + item_bytes(items) <= width else outside
            chosen[name] = items
        self._records = records = allocator.empty(size, np.empty((0, width), np.uint8))  # [size + 1, width]
        self._arrays = {name: allocator.empty(size, items) for name, items in outside.items()}
        start, self._begins = 0, {}
        for name, items in sorted(inside.items(), key=_by_alignment):
            self._begins[name] = start
            stop = start + item_bytes(items)
            self._arrays[name] = records[:, start:stop].view(items.dtype).reshape(size + 1, *items.shape[1:])
            start = stop
        self.bytes_by_field = {name: array.nbytes for name, array in self._arrays.items()}
        self.unused_bytes = records.nbytes - start * len(records)

    def __contains__(self, name: str) -> bool:
        """Return True if the records have a field of this name."""
        return name in self._arrays

    def field(self, name: str) -> np.ndarray:
        """Return one field of all records, such as the rewards, as a view [size + 1, ...]."""
        return self._arrays[name]

    def word(self, name: str, following: Sequence[str]) -> np.ndarray | None:
        """Return a view of a 4-byte field and the flags behind it as uint64 [size + 1]. None if they are not adjacent.

        Writing a 4-byte value to it sets the `following` fields to zero.
        """
        begin = self._begins.get(name, 1)
        within = {field for field, start in self._begins.items() if begin <= start < begin + 8}
        width = self._records.shape[1]
        if begin % 8 or begin + 8 > width or within != {name, *following} or sys.byteorder != "little":
            return None
        return self._records[:, begin : begin + 8].view(np.uint64)[:, 0]


def item_bytes(items: np.ndarray) -> int:
    """Return the size in bytes of one item of the array `items` [k, ...]."""
    return items.itemsize * math.prod(items.shape[1:])


def is_small(items: object) -> bool:
    """Return True if the items are numbers, or arrays of numbers of at most 16 bytes."""
    return isinstance(items, np.ndarray) and items.dtype.kind in "biuf" and 0 < item_bytes(items) <= SMALL


def fits_in_a_line(needed: Fields) -> bool:
    """Return True if a step record with these fields fits into one CPU cache line."""
    return _size(needed) <= CACHE_LINE


def _size(fields: Fields) -> int:
    return sum(map(item_bytes, fields.values()))


def _width(needed: Fields) -> int:
    """Return the size of a step record in bytes: a power of two up to one cache line, or a number of whole lines."""
    size = _size(needed)
    return 1 << (size - 1).bit_length() if size <= CACHE_LINE else -(-size // CACHE_LINE) * CACHE_LINE


def _by_alignment(field: tuple[str, np.ndarray]) -> int:
    """Return the sort key of a (name, array) field that puts fields with the strictest memory alignment first."""
    nbytes = item_bytes(field[1])
    return -(nbytes & -nbytes)

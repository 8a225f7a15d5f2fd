"""What is small of each step, side by side in memory: a draw then touches one cache line a step for all of it.

With a million steps stored, waiting for memory is most of what a draw costs.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence

import numpy as np

from episodes.replay.ring.track_ring import CACHE_LINE, SMALL, Allocator

Fields = Mapping[str, np.ndarray]
"""By name, arrays [k, ...] that show what the items of a field are like."""


class StepRecords:
    """Records of `size` steps; one more, the last, is all zeros, see `step_ring`. None lies across two cache lines.

    Args:
        needed: fields of the records.
        spare: fields, the most read first, that fill what room is left; arrays of their own where none is.
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
        """A field of all records [size + 1, ...]: a view, mostly with gaps between the items."""
        return self._arrays[name]

    def word(self, name: str, others: Sequence[str]) -> np.ndarray | None:
        """A field of 4 bytes as uint64 [size + 1]: written like this, it puts zeros into the `others` after it.

        None where it does not lie in one word with them alone.
        """
        begin = self._begins.get(name, 1)
        within = {field for field, start in self._begins.items() if begin <= start < begin + 8}
        width = self._records.shape[1]
        if begin % 8 or begin + 8 > width or within != {name, *others} or sys.byteorder != "little":
            return None
        return self._records[:, begin : begin + 8].view(np.uint64)[:, 0]


def item_bytes(items: np.ndarray) -> int:
    """Bytes of one of the items [k, ...]."""
    return items.itemsize * math.prod(items.shape[1:])


def is_small(items: object) -> bool:
    """Whether the items [k, ...] of a track belong into records."""
    return isinstance(items, np.ndarray) and items.dtype.kind in "biuf" and 0 < item_bytes(items) <= SMALL


def fits_in_a_line(needed: Fields) -> bool:
    """Whether records of these fields are no larger than a cache line."""
    return _size(needed) <= CACHE_LINE


def _size(fields: Fields) -> int:
    return sum(map(item_bytes, fields.values()))


def _width(needed: Fields) -> int:
    """Bytes of a record: a power of two within a cache line, whole lines beyond."""
    size = _size(needed)
    return 1 << (size - 1).bit_length() if size <= CACHE_LINE else -(-size // CACHE_LINE) * CACHE_LINE


def _by_alignment(field: tuple[str, np.ndarray]) -> int:
    """Puts the fields with the strictest alignment first, so that no gaps are needed."""
    nbytes = item_bytes(field[1])
    return -(nbytes & -nbytes)

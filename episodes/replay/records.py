"""What is small of each step, side by side in memory: a draw then touches one cache line a step for all of it.

With a million steps stored, waiting for memory is most of what a draw costs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from episodes.replay.ring import Allocator

_MOST_BYTES = 16  # of a small item


class StepRecords:
    """Records of `size` steps; one more, the last, is all zeros, see `ring`.

    Args:
        fields: arrays [k, ...] that show what the items of each field are like.
    """

    __slots__ = ("_bytes", "array")

    def __init__(self, size: int, fields: Mapping[str, np.ndarray], allocator: Allocator) -> None:
        kinds = [(name, items.dtype, items.shape[1:]) for name, items in fields.items()]
        dtype = np.dtype(kinds, align=True)
        self._bytes = allocator.empty(size, np.empty((0, dtype.itemsize), np.uint8))  # [size + 1, itemsize]
        self.array = self._bytes.view(dtype)[:, 0]  # [size + 1] of records

    @property
    def nbytes(self) -> int:
        return self._bytes.nbytes

    def field(self, name: str) -> np.ndarray:
        """A field of all records [size + 1, ...]: a view, with gaps between the items."""
        return self.array[name]

    def gather(self, positions: np.ndarray) -> np.ndarray:
        """A copy of the records at the positions [...]."""
        return self._bytes.take(positions, 0).view(self.array.dtype)[..., 0]


def is_small(items: object) -> bool:
    """Whether the items [k, ...] of a track belong into records."""
    if not isinstance(items, np.ndarray) or items.dtype.kind not in "biuf":
        return False
    return items.itemsize * math.prod(items.shape[1:]) <= _MOST_BYTES

"""Array of step priorities that keeps track of the highest priority, which new steps receive.

The positions are divided into blocks. Each block has an upper bound of its priorities. A bound is recomputed only if it
is the highest of all bounds when the maximum is read, so setting priorities costs almost nothing.

    block            0            1            2
    priorities    1 0 3 2      0 0 1 0      5 0 0 2
    bound            3            4            5         block 1 had a 4, which was overwritten
"""

from __future__ import annotations

import numpy as np

_FEW = 8


class PrioritiesWithMax:
    """Priorities at `size` ring positions, with fast access to the highest. 0 means that no priority is set.

    >>> given = PrioritiesWithMax(5)
    >>> given.set(np.array([1, 3]), np.array([2.0, 9.0]))
    >>> given.unset(3, 5)
    >>> given.highest
    2.0
    """

    def __init__(self, size: int) -> None:
        self._shift = max(size.bit_length() // 2, 3)  # about as many blocks as positions in a block
        self._given = np.zeros((-(-size >> self._shift), 1 << self._shift))  # [blocks, positions in a block]
        self._flat = self._given.reshape(-1)
        self._peaks = np.zeros(len(self._given))  # upper bound of each block

    @property
    def highest(self) -> float:
        """Highest priority of all positions, or 0 if no priority is set."""
        for _ in range(_FEW):
            block = self._peaks.argmax()
            peak = self._given[block].max()
            if peak == self._peaks[block]:
                return float(peak)
            self._peaks[block] = peak
        self._peaks[:] = self._given.max(axis=1)
        return float(self._peaks.max())

    @property
    def nbytes(self) -> int:
        return self._given.nbytes + self._peaks.nbytes

    def set(self, positions: np.ndarray, priorities: np.ndarray) -> None:
        """Set the priorities of the given positions [n]. Of duplicate positions the last one counts."""
        self._flat[positions] = priorities
        np.maximum.at(self._peaks, positions >> self._shift, priorities)

    def unset(self, start: int, stop: int) -> None:
        """Remove the priorities of the positions [start, stop)."""
        self._flat[start:stop] = 0
        first, last = start >> self._shift, ((stop - 1) >> self._shift) + 1
        self._peaks[first:last] = self._given[first:last].max(axis=1)

    def get_state(self) -> np.ndarray:
        """Return a copy of all priorities."""
        return self._flat.copy()

    def set_state(self, state: np.ndarray) -> None:
        """Restore priorities from an array that `get_state` returned, of the same size."""
        self._flat[:] = state
        self._peaks[:] = self._given.max(axis=1)

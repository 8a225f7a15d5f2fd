"""`PrioritiesWithMax`: the priorities that steps were given, and the highest of them at any time.

The positions are cut into stretches, and of each it is known what none of its priorities is above. That is looked at
anew only where it is the highest of all, when somebody asks for that: so giving priorities costs next to nothing.
"""

from __future__ import annotations

import numpy as np

_FEW = 8


class PrioritiesWithMax:
    """Priorities > 0 of `size` positions; 0 where none was given.

    >>> given = PrioritiesWithMax(5)
    >>> given.set(np.array([1, 3]), np.array([2.0, 9.0]))
    >>> given.unset(3, 5)
    >>> given.highest
    2.0
    """

    def __init__(self, size: int) -> None:
        self._shift = max(size.bit_length() // 2, 3)  # stretches about as long as there are many
        self._given = np.zeros((-(-size >> self._shift), 1 << self._shift))  # [stretches, their positions]
        self._flat = self._given.reshape(-1)
        self._peaks = np.zeros(len(self._given))  # no priority of a stretch is higher; none may be as high any more

    @property
    def highest(self) -> float:
        """The highest of all; 0 when none was given."""
        for _ in range(_FEW):
            stretch = self._peaks.argmax()
            peak = self._given[stretch].max()
            if peak == self._peaks[stretch]:
                return float(peak)
            self._peaks[stretch] = peak
        self._peaks[:] = self._given.max(axis=1)
        return float(self._peaks.max())

    @property
    def nbytes(self) -> int:
        return self._given.nbytes + self._peaks.nbytes

    def set(self, positions: np.ndarray, priorities: np.ndarray) -> None:
        """Give the positions [n] priorities [n]; of positions that occur twice, the last one counts."""
        self._flat[positions] = priorities
        np.maximum.at(self._peaks, positions >> self._shift, priorities)

    def unset(self, start: int, stop: int) -> None:
        """No priority was given to the positions [start, stop)."""
        self._flat[start:stop] = 0
        first, last = start >> self._shift, ((stop - 1) >> self._shift) + 1
        self._peaks[first:last] = self._given[first:last].max(axis=1)

    def get_state(self) -> np.ndarray:
        """A copy of the priorities."""
        return self._flat.copy()

    def set_state(self, state: np.ndarray) -> None:
        """Be as one of the same size was."""
        self._flat[:] = state
        self._peaks[:] = self._given.max(axis=1)

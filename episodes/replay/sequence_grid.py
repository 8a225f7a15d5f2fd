"""`SequenceGrid`: index of the stored steps at which sequences may start, at multiples of a period (as in R2D2)."""

from __future__ import annotations

import numpy as np

from episodes.replay.ring.linked_ring import LinkedRing
from episodes.replay.ring.track_ring import positions


class SequenceGrid:
    """Indices of the stored steps whose time `t` in the episode is divisible by `period`, oldest first.

    Each step is looked at once, when sequences are sampled after it was added.

        numbers   3 9 15 20 | 24 29 31 40 | .  .        step indices; those before `_first` were evicted
                              ^_first       ^_stop
    """

    def __init__(self, period: int) -> None:
        self.period = period
        self._numbers = np.zeros(64, np.int64)
        self._first = self._stop = 0
        self._seen = 0  # steps with smaller indices were looked at
        self._generation = -1  # of the ring

    def stored_starts(self, ring: LinkedRing) -> np.ndarray:
        """Return the indices [k] of the stored steps with `t` divisible by `period`, without copying the indices."""
        if self._generation != ring.generation:
            self._first = self._stop = self._seen = 0
            self._generation = ring.generation
        if self._seen < ring.head:
            first = max(self._seen, ring.tail)
            times = ring.links.t[positions(first, ring.head - first, ring.capacity)]
            self._append(first + np.flatnonzero(times % self.period == 0))
            self._seen = ring.head
        self._first += int(self._numbers[self._first : self._stop].searchsorted(ring.tail))
        return self._numbers[self._first : self._stop]

    def _append(self, numbers: np.ndarray) -> None:
        """Append step indices to the array of starts. If it is full, the array is replaced by a longer one."""
        if self._stop + len(numbers) > len(self._numbers):
            stored = self._numbers[self._first : self._stop]
            longer = np.zeros(2 * (len(stored) + len(numbers)) + 64, np.int64)
            longer[: len(stored)] = stored
            self._numbers, self._first, self._stop = longer, 0, len(stored)
        self._numbers[self._stop : self._stop + len(numbers)] = numbers
        self._stop += len(numbers)

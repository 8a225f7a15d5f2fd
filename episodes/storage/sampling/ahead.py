"""`Ahead`: where a sampler is in its order, and what comes next, worked out many positions at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from episodes.storage.sampling.orders import Order

CHUNK = 1 << 13  # positions: small enough for the processor's caches, and many draws


class Ahead:
    """The numbers that an order gives, one after another, and the episodes that they are of.

    Attributes:
        position: of the next one; all that there is to save.
    """

    def __init__(self, order: Order, episodes_of: Callable[[np.ndarray], np.ndarray]) -> None:
        self.order = order
        self.position = 0
        self._episodes_of = episodes_of
        self._start = self._stop = 0  # positions that are worked out
        self._numbers = self._episodes = np.zeros(0, np.int64)

    @property
    def epoch(self) -> int:
        """The epoch of the next one."""
        return self.position // self.order.num

    @property
    def left(self) -> int:
        """How many there are up to the end of the epoch."""
        return self.order.num - self.position % self.order.num

    def take(self, num: int) -> tuple[np.ndarray, np.ndarray]:
        """The next numbers and their episodes [num]; views, to be read only."""
        start, stop = self.position, self.position + num
        if not self._start <= start < stop <= self._stop:
            return self._taken_in_parts(num)
        self.position = stop
        own = slice(start - self._start, stop - self._start)
        return self._numbers[own], self._episodes[own]

    def _taken_in_parts(self, num: int) -> tuple[np.ndarray, np.ndarray]:
        parts, stop = [], self.position + num
        while self.position < stop:
            if not self._start <= self.position < self._stop:
                self._work_out()
            own = slice(self.position - self._start, min(stop, self._stop) - self._start)
            parts.append((self._numbers[own], self._episodes[own]))
            self.position = min(stop, self._stop)
        if len(parts) == 1:
            return parts[0]
        numbers, episodes = zip(*parts, strict=True)
        return np.concatenate(numbers), np.concatenate(episodes)

    def _work_out(self) -> None:
        """The chunk that the position is in, up to its epoch's end."""
        start, num = self.position, self.order.num
        place = start % num
        stop = start - place + min(place - place % CHUNK + CHUNK, num)
        self._numbers = self.order.at(start, stop)
        self._episodes = self._episodes_of(self._numbers)
        self._start, self._stop = start, stop

"""`OrderCursor`: where a sampler is in its order, and what comes next, worked out many positions at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from episodes.storage.sampling.orders import Order

CHUNK = 1 << 13  # positions: small enough for the processor's caches, and many draws


class OrderCursor:
    """The numbers that an order gives, one after another, and what is found of them.

    Args:
        find: what is known of numbers [n]; a slice of it is what is known of some of them.

    Attributes:
        position: of the next one; all that there is to save.
    """

    def __init__(self, order: Order, find: Callable[[np.ndarray], Any]) -> None:
        self.order = order
        self.position = 0
        self._find = find
        self._start = self._stop = 0  # positions that are worked out
        self._numbers = np.zeros(0, np.int64)
        self._found: Any = None

    @property
    def epoch(self) -> int:
        """The epoch of the next one."""
        return self.position // self.order.num

    @property
    def left(self) -> int:
        """How many there are up to the end of the epoch."""
        return self.order.num - self.position % self.order.num

    def take(self, num: int) -> Any:
        """What is found of the next `num`; views, to be read only."""
        start, stop = self.position, self.position + num
        if not self._start <= start < stop <= self._stop:
            return self._taken_in_parts(num)
        self.position = stop
        return self._found[start - self._start : stop - self._start]

    def _taken_in_parts(self, num: int) -> Any:
        parts, numbers, stop = list[slice](), list[np.ndarray](), self.position + num
        while self.position < stop:
            if not self._start <= self.position < self._stop:
                self._work_out()
            own = slice(self.position - self._start, min(stop, self._stop) - self._start)
            parts.append(own)
            numbers.append(self._numbers[own])
            self.position = min(stop, self._stop)
        return self._found[parts[0]] if len(parts) == 1 else self._find(np.concatenate(numbers))

    def _work_out(self) -> None:
        """The chunk that the position is in, up to its epoch's end."""
        start, num = self.position, self.order.num
        place = start % num
        stop = start - place + min(place - place % CHUNK + CHUNK, num)
        self._numbers = self.order.at(start, stop)
        self._found = self._find(self._numbers)
        self._start, self._stop = start, stop

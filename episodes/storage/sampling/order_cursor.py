"""Cursor over a sampling order (such as shuffled), which locates the sampled steps in large blocks for speed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from episodes.storage.sampling.orders import Order

CHUNK = 1 << 13  # positions: small enough for the processor's caches, and many draws


class OrderCursor:
    """Cursor over a sampling order. It locates the sampled steps in blocks of several batches,
    which is faster than batch by batch.

    Args:
        order: maps positions to numbers of steps or episodes.
        find: maps numbers [n] to a result that can be sliced like an array.

    Attributes:
        position: the next position, which is the cursor's whole state.
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
        """Number of complete passes over the data so far."""
        return self.position // self.order.num

    @property
    def left(self) -> int:
        """Number of steps (or episodes) left to sample in the current pass over the data."""
        return self.order.num - self.position % self.order.num

    def take(self, num: int) -> Any:
        """Return the next `num` sampled steps (or episodes), and advance the cursor."""
        start, stop = self.position, self.position + num
        if not self._start <= start < stop <= self._stop:
            return self._take_in_parts(num)
        self.position = stop
        return self._found[start - self._start : stop - self._start]

    def _take_in_parts(self, num: int) -> Any:
        """Return the next `num` sampled steps (or episodes) if they reach beyond the precomputed block, and advance the
        cursor."""
        parts, numbers, stop = list[slice](), list[np.ndarray](), self.position + num
        while self.position < stop:
            if not self._start <= self.position < self._stop:
                self._locate_block()
            part = slice(self.position - self._start, min(stop, self._stop) - self._start)
            parts.append(part)
            numbers.append(self._numbers[part])
            self.position = min(stop, self._stop)
        return self._found[parts[0]] if len(parts) == 1 else self._find(np.concatenate(numbers))

    def _locate_block(self) -> None:
        """Locate the sampled steps (or episodes) from the current position to the end of its block, or to the end of
        the epoch."""
        start, num = self.position, self.order.num
        place = start % num
        stop = start - place + min(place - place % CHUNK + CHUNK, num)
        self._numbers = self.order.at(start, stop)
        self._found = self._find(self._numbers)
        self._start, self._stop = start, stop

"""Count, mean and squared deviations of a stream of arrays, joined exactly however the stream was split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Moments:
    """What is known of `count` items of one shape. Joining is exact (Chan et al. 1979, parallel variance)."""

    count: int
    mean: np.ndarray  # [...] float64
    squares: np.ndarray  # [...] float64, sums of squared deviations from the mean

    @classmethod
    def empty(cls, shape: tuple[int, ...]) -> Moments:
        """Nothing is known yet."""
        return cls(0, np.zeros(shape), np.zeros(shape))

    @classmethod
    def of(cls, items: np.ndarray) -> Moments:
        """The moments of items [n, ...]."""
        if not len(items):
            return cls.empty(items.shape[1:])
        mean = items.mean(0, dtype=np.float64)
        deviations = items - mean
        return cls(len(items), mean, np.einsum("n...,n...->...", deviations, deviations))

    def joined(self, other: Moments) -> Moments:
        """The moments of both streams together."""
        if not self.count or not other.count:
            return other if other.count else self
        count = self.count + other.count
        difference = other.mean - self.mean
        share = other.count / count
        squares = self.squares + other.squares + difference * difference * (self.count * share)
        return Moments(count, self.mean + difference * share, squares)

    def deviation(self) -> np.ndarray:
        """The standard deviation [...], with n - 1; 1 where fewer than two items are known."""
        return np.sqrt(self.squares / (self.count - 1)) if self.count > 1 else np.ones_like(self.mean)

    def get_state(self) -> dict[str, Any]:
        """A dict that shares no memory with this."""
        return {"count": self.count, "mean": self.mean.copy(), "squares": self.squares.copy()}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Moments:
        """What `get_state` gave, copied."""
        return cls(int(state["count"]), np.array(state["mean"], np.float64), np.array(state["squares"], np.float64))

    def equals(self, other: Moments) -> bool:
        """True when both know the same."""
        same_mean = np.array_equal(self.mean, other.mean)
        return self.count == other.count and same_mean and np.array_equal(self.squares, other.squares)

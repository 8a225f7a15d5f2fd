"""`Moments`: mean and variance of sets of arrays, which can be combined."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, mean and sum of squared deviations of a set of arrays, from which the standard deviation is computed.

    Two sets of moments are combined exactly (parallel variance, Chan et al. 1979).
    """

    count: int
    mean: np.ndarray  # [...] float64
    squares: np.ndarray  # [...] float64, sums of squared deviations from the mean

    @classmethod
    def empty(cls, shape: tuple[int, ...]) -> Moments:
        """Return the moments of no items: count 0, and zeros of the given shape."""
        return cls(0, np.zeros(shape), np.zeros(shape))

    @classmethod
    def of(cls, items: np.ndarray) -> Moments:
        """Return the moments of the items [n, ...], computed over the first axis."""
        if not len(items):
            return cls.empty(items.shape[1:])
        mean = items.mean(0, dtype=np.float64)
        deviations = items - mean
        return cls(len(items), mean, np.einsum("n...,n...->...", deviations, deviations))

    def merge(self, second: Moments) -> Moments:
        """Return the moments of the union of two sets of items."""
        if not self.count or not second.count:
            return second if second.count else self
        count = self.count + second.count
        difference = second.mean - self.mean
        share = second.count / count
        squares = self.squares + second.squares + difference * difference * (self.count * share)
        return Moments(count, self.mean + difference * share, squares)

    def deviation(self) -> np.ndarray:
        """Return the sample standard deviation of each element, or ones for fewer than two items."""
        return np.sqrt(self.squares / (self.count - 1)) if self.count > 1 else np.ones_like(self.mean)

    def get_state(self) -> dict[str, Any]:
        """Return count, mean and squared deviations as a dict of copies, for a checkpoint."""
        return {"count": self.count, "mean": self.mean.copy(), "squares": self.squares.copy()}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Moments:
        """Return the moments that `get_state` stored in the dict `state`."""
        return cls(int(state["count"]), np.array(state["mean"], np.float64), np.array(state["squares"], np.float64))

    def equals(self, second: Moments) -> bool:
        """Return True if both sets have equal counts, means and squared deviations."""
        same_mean = np.array_equal(self.mean, second.mean)
        return self.count == second.count and same_mean and np.array_equal(self.squares, second.squares)

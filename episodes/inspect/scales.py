"""Scales of charts: from numbers to coordinates, and round numbers for an axis."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, log10

import numpy as np

from episodes.inspect.formatting import number

MOST_WHOLE_BINS = 64  # of a histogram of whole numbers
MOST_EXACT = 1 << 53  # whole numbers up to it are exact as float64


def width_of_whole_bins(low: float, high: float) -> int:
    """Return how many whole numbers from `low` to `high` each bin of a histogram has, 1 if they are at most 64."""
    return -(-int(high - low + 1) // MOST_WHOLE_BINS)


def are_whole(numbers: np.ndarray) -> bool:
    """Return True if all numbers [k], at least one, are whole and exact as float64, as are their differences."""
    low, high = float(numbers.min()), float(numbers.max())
    is_exact = max(-low, high) < MOST_EXACT and high - low < MOST_EXACT
    return is_exact and (numbers.dtype.kind != "f" or bool((numbers == numbers.round()).all()))


@dataclass(frozen=True)
class Scale:
    """Scale from the numbers `low` to `high` to y coordinates from `top` to `top + height`."""

    low: float
    high: float
    top: float
    height: float

    def heights(self, numbers: np.ndarray) -> np.ndarray:
        """Return the y coordinates [k] of numbers [k]. If all numbers are equal, they are in the middle."""
        spread = self.high / 2 - self.low / 2
        if not spread > 0:
            return np.where(np.isnan(numbers), np.nan, self.top + self.height / 2)
        return self.top + self.height * ((self.high / 2 - numbers / 2) / spread)

    def labels(self) -> str:
        """Return SVG with the two numbers at the ends of the scale, to the left of the picture."""
        places = ((self.high, self.top + 7), (self.low, self.top + self.height + 1))
        places = places if self.high > self.low else ((self.low, self.top + self.height / 2 + 4),)
        return "".join(f'<text x="-6" y="{y:.0f}" text-anchor="end">{number(value)}</text>' for value, y in places)


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Return about `count` round numbers between `low` and `high`, in order.

    >>> ticks(0, 100), ticks(-0.3, 1.2)
    ([0.0, 20.0, 40.0, 60.0, 80.0, 100.0], [0.0, 0.5, 1.0])
    """
    rough = (high / count - low / count) or 1.0
    power = 10.0 ** floor(log10(rough))
    step = next(power * n for n in (1, 2, 5, 10) if power * n >= rough * 0.8)
    first, last = int(np.ceil(low / step - 1e-9)), int(np.floor(high / step + 1e-9))
    return [n * step for n in range(first, last + 1)]


def end_ticks(begin: int, end: int) -> list[int]:
    """Return the first and the last of the steps from `begin` to `end`, and round numbers between them, in order.

    >>> end_ticks(0, 17)
    [0, 5, 10, 17]
    """
    apart = 0.12 * (end - begin)  # from the ends, so that the numbers do not overlap
    inner = [int(t) for t in ticks(begin, end) if t.is_integer() and begin + apart <= t <= end - apart]
    return [begin, *inner, *[end] * (end > begin)]

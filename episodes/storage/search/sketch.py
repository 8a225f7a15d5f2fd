"""A sketch of many numbers, from which quantiles are read, and which merges with others of its kind exactly.

A number falls into the bin of its leading bits: sign, exponent and 7 bits of the mantissa. So bins are counted without
a look at the others, sums of counts are the sketch of all, and a quantile is wrong by at most 1/256 of itself. This is
the histogram of DDSketch (Masson, Rim and Lee, 2019), with bins that are read off a float instead of computed by a
logarithm.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass

import numpy as np

_SHIFT = 52 - 7  # bits of a float64 that a bin does not look at


@dataclass(frozen=True)
class Sketch:
    """How many numbers are in each bin that has any."""

    bins: np.ndarray  # [k] int32, in the order of the numbers
    counts: np.ndarray  # [k] int64

    @staticmethod
    def of(values: np.ndarray) -> Sketch:
        """The sketch of numbers [n], none of them NaN.

        >>> sketch = Sketch.of(np.arange(1000.0))
        >>> float(sketch.quantile(0.5)), float(Sketch.of(np.ones(3)).merged(sketch).quantile(0.0))
        (499.0, 0.0)
        """
        bits = np.ascontiguousarray(values, np.float64).view(np.int64)
        bins = ((bits & _ALL_BUT_SIGN) >> _SHIFT).astype(np.int32)
        np.negative(bins, out=bins, where=bits < 0)
        if len(bins) < 1 << 16:
            return Sketch(*np.unique(bins, return_counts=True))
        lowest = int(bins.min())
        counts = np.bincount(bins - lowest)
        there = np.flatnonzero(counts)
        return Sketch((there + lowest).astype(np.int32), counts[there])

    def merged(self, other: Sketch) -> Sketch:
        """The sketch of the numbers of both."""
        bins, place = np.unique(np.concatenate([self.bins, other.bins]), return_inverse=True)
        counts = np.bincount(place, np.concatenate([self.counts, other.counts]), len(bins))
        return Sketch(bins, counts.astype(np.int64))

    def quantile(self, share: float) -> np.float64:
        """The number below which this share of the numbers lies, to 1/256 of it; NaN of none."""
        if not len(self.bins):
            return np.float64(np.nan)
        rank = share * (int(self.counts.sum()) - 1)
        return _middle(self.bins[np.searchsorted(np.cumsum(self.counts), rank, side="right")])

    def to_text(self) -> str:
        """As text, of a few bytes a bin."""
        data = self.bins.astype("<i4").tobytes() + self.counts.astype("<i8").tobytes()
        return base64.b64encode(zlib.compress(data)).decode()

    @staticmethod
    def of_text(text: str) -> Sketch:
        """The sketch of `to_text`."""
        data = zlib.decompress(base64.b64decode(text))
        size = len(data) // 12
        return Sketch(np.frombuffer(data, "<i4", size), np.frombuffer(data, "<i8", size, 4 * size))


_ALL_BUT_SIGN = np.int64((1 << 63) - 1)


def _middle(bin_: np.int32) -> np.float64:
    """The number in the middle of a bin, but zero and infinity, which are what they are."""
    low, high = (np.int64(abs(int(bin_)) + more << _SHIFT).view(np.float64) for more in (0, 1))
    found = (low + high) / 2 if low and np.isfinite(high) else low
    return -found if bin_ < 0 else found

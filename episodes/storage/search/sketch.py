"""Compact histogram of many numbers, from which quantiles are estimated. Histograms of parts can be merged.

A number's bin is its leading bits: sign, exponent and 7 bits of the mantissa. So counting needs no other numbers,
merged sketches are exact sums, and quantiles have a relative error of at most 1/256. It is the histogram of DDSketch
(Masson, Rim and Lee, 2019) with bins that are bits of a float, not computed by a logarithm.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass

import numpy as np

_SHIFT = 52 - 7  # bits of a float64 that a bin does not look at


@dataclass(frozen=True)
class Sketch:
    """Histogram of numbers whose bins have a constant relative width, because a bin is the leading bits of a float."""

    bins: np.ndarray  # [k] int32, in the order of the numbers
    counts: np.ndarray  # [k] int64

    @staticmethod
    def of(values: np.ndarray) -> Sketch:
        """Compute the histogram of an array of numbers [n], none of which is NaN.

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
        used = np.flatnonzero(counts)
        return Sketch((used + lowest).astype(np.int32), counts[used])

    def merged(self, sketch: Sketch) -> Sketch:
        """Return the histogram of all numbers in this histogram and in `sketch`."""
        bins, place = np.unique(np.concatenate([self.bins, sketch.bins]), return_inverse=True)
        counts = np.bincount(place, np.concatenate([self.counts, sketch.counts]), len(bins))
        return Sketch(bins, counts.astype(np.int64))

    def quantile(self, share: float) -> np.float64:
        """Estimate the quantile `share`, such as 0.5 for the median, with a relative error of at most 1/256.

        The quantile of no numbers is NaN.
        """
        if not len(self.bins):
            return np.float64(np.nan)
        rank = share * (int(self.counts.sum()) - 1)
        return _middle_of_bin(self.bins[np.searchsorted(np.cumsum(self.counts), rank, side="right")])

    def to_text(self) -> str:
        """Encode the histogram as a short string (compressed, in base64)."""
        data = self.bins.astype("<i4").tobytes() + self.counts.astype("<i8").tobytes()
        return base64.b64encode(zlib.compress(data)).decode()

    @staticmethod
    def of_text(text: str) -> Sketch:
        """Decode a histogram from a string that `to_text` returned."""
        data = zlib.decompress(base64.b64decode(text))
        size = len(data) // 12
        return Sketch(np.frombuffer(data, "<i4", size), np.frombuffer(data, "<i8", size, 4 * size))


_ALL_BUT_SIGN = np.int64((1 << 63) - 1)


def _middle_of_bin(bin_: np.int32) -> np.float64:
    """Return the number in the middle of a histogram bin. The bins of 0 and of infinity give exactly these numbers."""
    low, high = (np.int64(abs(int(bin_)) + magnitude << _SHIFT).view(np.float64) for magnitude in (0, 1))
    middle = (low + high) / 2 if low and np.isfinite(high) else low
    return -middle if bin_ < 0 else middle

"""Which columns of windows have a step: index arithmetic, no data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class WindowGrid:
    """Windows of W columns, each of steps of one chunk that follow each other.

        left = 3, length = 3    . . 5 | 6 7 8     nothing is known of the steps before 5
                                2 3 4 | 5 6 .     the last step is 6

    Attributes:
        begins, stops: the columns [B] from which and up to which there are steps.
        there: where there is one, [B, W] bool.
        padding: the places in [B * W] where there is none.
        apart: the windows [B] bool that would reach out of the memory of their record batch; None: none of them.
    """

    begins: np.ndarray
    stops: np.ndarray
    there: np.ndarray
    padding: np.ndarray
    apart: np.ndarray | None

    @staticmethod
    def of(
        before: np.ndarray, onward: np.ndarray, left: int, length: int, around: tuple[np.ndarray, np.ndarray]
    ) -> WindowGrid:
        """The grid of windows with `left` columns before the drawn steps, and `length` from them on.

        Args:
            before, onward: steps [B] that there are before the drawn ones, and from them on.
            around: how many rows [B] of the record batch lie before those of the chunk, and [B] after them.
        """
        columns = np.arange(left + length)
        stops = left + np.minimum(onward, length)
        begins = np.zeros_like(stops) if not left else np.maximum(left - before, 0)
        there = columns < stops[:, None]
        if left:
            there &= columns >= begins[:, None]
        padding = (~there).ravel().nonzero()[0]
        apart = (begins > around[0]) | (left + length - stops > around[1]) if len(padding) else None
        return WindowGrid(begins, stops, there, padding, apart if apart is not None and apart.any() else None)

    def nearest(self) -> np.ndarray:
        """For each column of the windows apart, the nearest one [k, W] where there is a step."""
        columns = np.arange(self.there.shape[1])
        return np.clip(columns, self.begins[self.apart, None], self.stops[self.apart, None] - 1)

"""Layout of sampled windows: which of their steps exist, and which are padding before or after the episode."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class WindowGrid:
    """Layout of B windows of W steps: which steps exist in the episode, and which are padding.

        left = 3, length = 3    . . 5 | 6 7 8     the first known step is 5
                                2 3 4 | 5 6 .     the last step is 6

    Attributes:
        begins: first column with a step, int64 [B].
        stops: column after the last step, int64 [B].
        there: whether a column has a step, bool [B, W].
        padding: indices into the flattened [B * W] columns without a step.
        apart: windows that would exceed the memory of their record batch, bool [B]; None if there are none.
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
        """Compute the layout of windows that begin `left` steps before each sampled step and have
        `length` steps from it on.

        Args:
            before: number of steps before each sampled step, int64 [B].
            onward: number of steps from each sampled step on, int64 [B].
            left: number of columns on the left.
            length: number of columns from the sampled step on.
            around: rows of the record batch before those of the chunk, and after them, int64 [B] each.
        """
        columns = np.arange(left + length)
        stops = left + np.minimum(onward, length)
        begins = np.zeros_like(stops) if not left else np.maximum(left - before, 0)
        has_step = columns < stops[:, None]
        if left:
            has_step &= columns >= begins[:, None]
        padding = (~has_step).ravel().nonzero()[0]
        apart = (begins > around[0]) | (left + length - stops > around[1]) if len(padding) else None
        return WindowGrid(begins, stops, has_step, padding, apart if apart is not None and apart.any() else None)

    def nearest(self) -> np.ndarray:
        """Return, for each step of the k windows in the mask `apart`, the index in its window of the nearest step that
        is not padding, int64 [k, W]."""
        columns = np.arange(self.there.shape[1])
        return np.clip(columns, self.begins[self.apart, None], self.stops[self.apart, None] - 1)

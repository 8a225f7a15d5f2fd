"""Sampled windows of steps in the mapped memory of files, and which of them would exceed the memory of a batch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from episodes.draws.windows import WindowLayout


class WindowGrid(NamedTuple):
    """Layout of B windows of W steps, with what reading them from the memory of record batches needs.

    Attributes:
        layout: which steps exist in the episode, and which are padding.
        padding: indices into the flattened [B * W] columns without a step.
        apart: windows that would exceed the memory of their record batch, bool [B]; None if there are none.
    """

    layout: WindowLayout
    padding: np.ndarray
    apart: np.ndarray | None

    @staticmethod
    def of(layout: WindowLayout, around: tuple[np.ndarray, np.ndarray]) -> WindowGrid:
        """Find the padding, and the windows that would exceed the memory of their record batch.

        Args:
            layout: which steps exist.
            around: rows of the record batch before those of the chunk, and after them, int64 [B] each.
        """
        padding = (~layout.exists).ravel().nonzero()[0]
        if not len(padding):
            return WindowGrid(layout, padding, None)
        apart = (layout.begins > around[0]) | (layout.exists.shape[1] - layout.stops > around[1])
        return WindowGrid(layout, padding, apart if apart.any() else None)

    def nearest(self) -> np.ndarray:
        """Return, for each step of the k windows in the mask `apart`, the index in its window of the nearest step that
        is not padding, int64 [k, W]."""
        layout = self.layout
        return np.clip(layout.columns, layout.begins[self.apart, None], layout.stops[self.apart, None] - 1)

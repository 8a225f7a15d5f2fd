"""Layout of sampled windows, and the rule of which steps may be sampled if an episode's beginning is not stored."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class WindowLayout(NamedTuple):
    """Layout of B windows of W steps: which steps exist in the episode, and which are padding.

        left = 3, length = 3    . . 5 | 6 7 8     the first known step is 5
                                2 3 4 | 5 6 .     the last step is 6

    Attributes:
        exists: whether a column has a step, bool [B, W].
        before: number of known steps before the sampled steps, int64 [B].
        stops: column after the last step, int64 [B].
        left: number of columns before the sampled step.
        columns: the numbers 0 to W - 1, int64 [W].
    """

    exists: np.ndarray
    before: np.ndarray
    stops: np.ndarray
    left: int
    columns: np.ndarray

    @staticmethod
    def of(before: np.ndarray, onward: np.ndarray, left: int, length: int) -> WindowLayout:
        """Lay out windows that begin `left` steps before each sampled step and have `length` steps from it on.

        Args:
            before: number of known steps before each sampled step, int64 [B].
            onward: number of steps from each sampled step on, int64 [B].
            left: number of columns on the left.
            length: number of columns from the sampled step on.
        """
        columns = np.arange(left + length)
        stops = np.minimum(onward, length)
        if left:
            stops += left
        exists = columns < stops[:, None]
        if left:
            exists &= columns >= (left - before)[:, None]
        return WindowLayout(exists, before, stops, left, columns)

    @property
    def begins(self) -> np.ndarray:
        """First column with a step, int64 [B]."""
        return np.maximum(self.left - self.before, 0)

    def learned(self) -> np.ndarray:
        """Return a mask of the steps to learn from, bool [B, W]: those from the sampled step on."""
        if not self.left:
            return self.exists
        learned = self.exists.copy()
        learned[:, : self.left] = False
        return learned

    def is_first(self, t: np.ndarray) -> np.ndarray:
        """Return a mask of the first steps of episodes, bool [B, W], for sampled steps at the times `t` [B]."""
        if self.left:
            return (self.columns == (self.left - t)[:, None]) & self.exists
        first = np.zeros(self.exists.shape, bool)
        first[:, 0] = t == 0
        return first


def are_complete(begin: np.ndarray, t: np.ndarray, reach: int | None) -> np.ndarray:
    """Return whether the steps that a row reads before its own are known, bool [n].

    A row is complete if the `reach` steps before it are known. If the episode has fewer, all of them must be: zeros
    before the first step of an episode are what the policy saw, zeros in place of lost steps are not.

    Args:
        begin: time of the first known step of each sampled step's episode, [n].
        t: time of each sampled step, [n].
        reach: number of steps that are read before each. None for all steps of the episode.
    """
    known = begin <= 0
    if reach is not None and np.count_nonzero(known) < len(known):
        known |= t - begin >= reach
    return known


def most_steps_back(begin: np.ndarray, t: np.ndarray, reach: int | None) -> np.ndarray:
    """Return by how many steps each sampled step may move back and remain complete, [n].

    The arguments are those of `are_complete`, and the sampled steps are complete.
    """
    return t - begin if not reach else t - begin - np.where(begin <= 0, 0, reach)

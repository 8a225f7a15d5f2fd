"""How steps in a ring hang together: for each step the rows of its observations and its neighbours in the episode.

Where there is no neighbour a link points at its own step, so following links needs no branches: past the end of
an episode they stay where they are.
"""

from __future__ import annotations

import numpy as np

from episodes.replay.ring import numbers

ROW, NEXT_ROW, NEXT, PREVIOUS, ENTRY, T = range(6)
"""Rows of the matrix of links, see `StepLinks`."""
NUM_LINKS = 6


class StepLinks:
    """Links of the steps in a ring of `capacity`: a matrix [6, capacity + 1] int32, whose rows have names too.

    The last column is no step's: what is gathered through it is padding.

    Attributes:
        row: position of the observation that the step's action was chosen from.
        next_row: position of the observation that it led to.
        next: position of the step that follows in the episode; its own at the newest step.
        previous: position of the step before; its own at the oldest step that is there.
        entry: the episode's entry in the table of episodes.
        t: the step's time in its episode.
    """

    __slots__ = ("capacity", "entry", "matrix", "next", "next_row", "previous", "row", "t")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.matrix = np.zeros((NUM_LINKS, capacity + 1), np.int32)
        self.row, self.next_row, self.next, self.previous, self.entry, self.t = self.matrix
        self.next[capacity] = self.previous[capacity] = capacity

    def pad_with(self, row: int) -> None:
        """Let padding gather the observation at position `row`."""
        self.row[self.capacity] = self.next_row[self.capacity] = row

    def append(self, start: int, links: np.ndarray) -> None:
        """Put the links [6, k] int64 of new steps in from position `start` on; the steps before them now point at them.

        In `links`, a step's NEXT is its own position, and so is its PREVIOUS where it is the first of an episode.
        """
        stop = start + links.shape[1]
        if stop <= self.capacity:
            self.matrix[:, start:stop] = links
        else:
            split = self.capacity - start
            self.matrix[:, start:-1] = links[:, :split]
            self.matrix[:, : stop - self.capacity] = links[:, split:]
        self.next[links[PREVIOUS]] = links[NEXT]

    def unlink(self, slots: np.ndarray) -> np.ndarray:
        """Take the oldest steps out; the positions [k] of their followers, their own where there is none."""
        following = self.next.take(slots)
        positions = following.astype(np.int64)
        self.previous[positions] = following
        return positions

    def renumber_rows(self, size: int, head: int, old_size: int, new_size: int) -> None:
        """Let the first `size` steps' rows mean the same observations in a ring of another size."""
        rows = self.matrix[: NEXT_ROW + 1, :size]
        rows[:] = numbers(rows.astype(np.int64), head, old_size) % new_size

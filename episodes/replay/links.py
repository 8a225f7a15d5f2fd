"""How steps in a ring hang together: for each step the rows of its observations and its neighbours in the episode.

Where there is no neighbour a link points at its own step, so following links needs no branches: past the end of
an episode they stay where they are.
"""

from __future__ import annotations

import numpy as np

from episodes.replay.ring import numbers, put


class StepLinks:
    """Links of the steps in a ring of `capacity`, int32 arrays [capacity].

    Attributes:
        row: position of the observation that the step's action was chosen from.
        next_row: position of the observation that it led to.
        next: position of the step that follows in the episode; its own at the newest step.
        previous: position of the step before; its own at the oldest step that is there.
        entry: the episode's entry in the table of episodes.
        t: the step's time in its episode.
    """

    __slots__ = ("capacity", "entry", "next", "next_row", "previous", "row", "t")
    ARRAYS = ("row", "next_row", "next", "previous", "entry", "t")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.row, self.next_row, self.next, self.previous, self.entry, self.t = np.zeros((6, capacity), np.int32)

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, name).nbytes for name in self.ARRAYS)

    def append(self, slots: np.ndarray, previous: np.ndarray, entry: np.ndarray, t: np.ndarray) -> None:
        """Link new steps at positions `slots` [k]; `previous` [k] are positions, a step's own where it is the first."""
        start = int(slots[0])
        put(self.next, start, slots)
        put(self.previous, start, previous)
        put(self.entry, start, entry)
        put(self.t, start, t)
        self.next[previous] = slots

    def append_rows(self, start: int, row: np.ndarray, next_row: np.ndarray) -> None:
        """Set the observation rows (positions [k]) of new steps from position `start` on."""
        put(self.row, start, row)
        put(self.next_row, start, next_row)

    def unlink(self, slots: np.ndarray) -> np.ndarray:
        """Take the oldest steps out; the positions [k] of their followers, their own where there is none."""
        following = self.next.take(slots)
        self.previous[following] = following
        return following

    def renumber_rows(self, size: int, head: int, old_size: int, new_size: int) -> None:
        """Let the first `size` steps' rows mean the same observations in a ring of another size."""
        for rows in (self.row[:size], self.next_row[:size]):
            rows[:] = numbers(rows.astype(np.int64), head, old_size) % new_size

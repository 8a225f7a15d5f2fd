"""How steps in a ring hang together: for each step the rows of its observations and its neighbours in the episode.

Where there is no neighbour a link points at its own step, so following links needs no branches: past the end of
an episode they stay where they are.

So no draw leaves its episode. Frame stacks follow `previous`, n-step windows `next`: both join steps of one episode
alone, and where a walk stands still the window ends. A sequence is first clipped to the steps that its episode has
before and after the drawn one (`walks.extents`); where these lie in a row in the ring it is read off
their positions, elsewhere it follows the links too.
"""

from __future__ import annotations

import numpy as np

from episodes.replay.ring.step_records import StepRecords
from episodes.replay.ring.track_ring import put

ROW, NEXT_ROW, NEXT, PREVIOUS, ENTRY, T = range(6)
"""Rows of a matrix of links, see `StepLinks`."""
NUM_LINKS = 6

_INT32, _INT64 = np.zeros(0, np.int32), np.zeros(0, np.int64)
ROW_FIELDS = {"/row": _INT32, "/next_row": _INT32}
STEP_FIELDS = {"/next": _INT64, "/t": _INT64, "/entry": _INT64, "/previous": _INT64}
"""Fields for the records of steps, the most read first, with names that no track has."""


class StepLinks:
    """Links of the steps in a ring of `capacity`, arrays [capacity + 1] in the steps' records.

    The last place is no step's: what is gathered through it is padding.

    Attributes:
        row: position of the observation that the step's action was chosen from.
        next_row: position of the observation that it led to.
        next: position of the step that follows in the episode; its own at the newest step.
        previous: position of the step before; its own at the oldest step that is there.
        entry: the episode's entry in the table of episodes.
        t: the step's time in its episode.
    """

    __slots__ = ("arrays", "capacity", "entry", "next", "next_row", "previous", "row", "t")

    def __init__(self, capacity: int, records: StepRecords) -> None:
        self.capacity = capacity
        self.row, self.next_row = (records.field(field) for field in ROW_FIELDS)
        self.next, self.t, self.entry, self.previous = (records.field(field) for field in STEP_FIELDS)
        self.next[capacity] = self.previous[capacity] = capacity
        self.arrays = (self.row, self.next_row, self.next, self.previous, self.entry, self.t)

    def pad_with(self, row: int) -> None:
        """Let padding gather the observation at position `row`."""
        self.row[self.capacity] = self.next_row[self.capacity] = row

    def append(self, start: int, links: np.ndarray) -> None:
        """Put the links [6, k] int64 of new steps in from position `start` on; steps before them now point at them.

        In `links`, a step's NEXT is its own position, and so is its PREVIOUS where it is the first of an episode.
        """
        stop = start + links.shape[1]
        if stop <= self.capacity:
            for array, values in zip(self.arrays, links, strict=True):
                array[start:stop] = values
        else:
            for array, values in zip(self.arrays, links, strict=True):
                put(array, self.capacity, start, values)
        self.next[links[PREVIOUS]] = links[NEXT]

    def put_rows(self, rows: np.ndarray, next_rows: np.ndarray) -> None:
        """Change the rows of the first steps."""
        self.row[: len(rows)], self.next_row[: len(rows)] = rows, next_rows

    def chain(self, slots: np.ndarray, begins: np.ndarray) -> np.ndarray:
        """Link the steps at `slots` [n], each to the one before, but for those whose places [k] are in `begins`.

        The places [k] of the last steps.
        """
        ends = np.append(begins[1:], len(slots))[: len(begins)] - 1
        self.previous[slots[1:]], self.next[slots[:-1]] = slots[:-1], slots[1:]
        self.previous[slots[begins]], self.next[slots[ends]] = slots[begins], slots[ends]
        return ends

    def get_state(self, size: int) -> np.ndarray:
        """The links of the first `size` steps, [6, size]."""
        return np.stack([array[:size] for array in self.arrays])

    def set_state(self, links: np.ndarray) -> None:
        """Put such links in."""
        for array, values in zip(self.arrays, links, strict=True):
            array[: len(values)] = values

"""`StepLinks`: links from each step in a replay ring to its two observations and its neighbours in the episode.

A link without a neighbour points at its own step. So following links needs no branches: walks stay at the end of an
episode.

    position        0  1  2  3  4  5  6
    episode         A  A  B  A  B  B  -        two environments that write in turns
    t               0  1  0  2  1  2
    next            1  3  4  3  5  5
    previous        0  0  2  1  2  4

No sampled window leaves its episode. Frame stacks follow `previous`, n-step windows follow `next`, and both connect
only steps of one episode; where a walk stands still, the window ends. A sequence is first clipped to the steps that its
episode has before and after the sampled one (`link_traversal.extents`). If these are contiguous in the ring, their
positions are computed, otherwise the sequence follows the links too.
"""

from __future__ import annotations

import numpy as np

from episodes.replay.ring.step_records import StepRecords
from episodes.replay.ring.track_ring import put

ROW, NEXT_ROW, NEXT, PREVIOUS, ENTRY, T = range(6)
"""Row indices of a matrix of links, see `StepLinks`."""
NUM_LINKS = 6

_INT32, _INT64 = np.zeros(0, np.int32), np.zeros(0, np.int64)
ROW_FIELDS = {"/row": _INT32, "/next_row": _INT32}
STEP_FIELDS = {"/next": _INT64, "/t": _INT64, "/entry": _INT64, "/previous": _INT64}
"""Fields for the records of steps, in the order of their use. No track can have these names."""


class StepLinks:
    """Links of the steps at `capacity` ring positions to observations and neighbouring steps, arrays [capacity + 1].

    The last position belongs to no step. It is used for padding.

    Attributes:
        row: position of the observation before the step's action.
        next_row: position of the observation after it.
        next: position of the next step of the episode, or of the step itself.
        previous: position of the step before, or of the step itself at the oldest stored step.
        entry: the episode's entry in the table of episodes.
        t: time of the step in its episode.
    """

    __slots__ = ("arrays", "capacity", "entry", "next", "next_row", "previous", "row", "t")

    def __init__(self, capacity: int, records: StepRecords) -> None:
        self.capacity = capacity
        self.row, self.next_row = (records.field(field) for field in ROW_FIELDS)
        self.next, self.t, self.entry, self.previous = (records.field(field) for field in STEP_FIELDS)
        self.next[capacity] = self.previous[capacity] = capacity
        self.arrays = (self.row, self.next_row, self.next, self.previous, self.entry, self.t)

    def pad_with(self, row: int) -> None:
        """Let the padding step (at position `capacity`) refer to the observation at position `row`."""
        self.row[self.capacity] = self.next_row[self.capacity] = row

    def append(self, start: int, links: np.ndarray) -> None:
        """Write the links [6, k] of new steps from position `start` on, and link the preceding steps to the new steps.

        In `links`, NEXT of a step is its own position, and so is PREVIOUS of an episode's first step.
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
        """Set the links of the first `len(rows)` steps to the observations before (`rows`) and after (`next_rows`)."""
        self.row[: len(rows)], self.next_row[: len(rows)] = rows, next_rows

    def chain(self, slots: np.ndarray, begins: np.ndarray) -> np.ndarray:
        """Link the steps at `slots` [n] in order. A separate chain starts at each of the indices `begins` [k].

        Return the indices of the last steps of the chains.
        """
        ends = np.append(begins[1:], len(slots))[: len(begins)] - 1
        self.previous[slots[1:]], self.next[slots[:-1]] = slots[:-1], slots[1:]
        self.previous[slots[begins]], self.next[slots[ends]] = slots[begins], slots[ends]
        return ends

    def get_state(self, size: int) -> np.ndarray:
        """Return a copy of the links of the first `size` ring positions, int64 [6, size]."""
        return np.stack([array[:size] for array in self.arrays])

    def set_state(self, links: np.ndarray) -> None:
        """Restore the links of steps from an array that `get_state` returned."""
        for array, values in zip(self.arrays, links, strict=True):
            array[: len(values)] = values

"""`StepTable`: where the steps of many episodes lie, and whose each step is; `Located`: what is known of some steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

END, LENGTH, FLAGS, LOOKBACK, BEFORE, AFTER, FIRST_BASE = range(7)
"""What is known of an episode: the number after its last step, its steps, how it ends (1: terminated, 2: truncated),
its items before step 0, rows of its record batch before and after its own, and by track the unit of step number 0."""

_PER_EPISODE = 4  # buckets


class StepTable:
    """What is known of all episodes, whose steps are numbered 0, 1, ... `num_steps` - 1 one episode after another.

    Args:
        known: int64 [FIRST_BASE + tracks, n]; bases are counted from the episode's own step 0.
        steps: of each track, the units from one item to the next.

    The unit of an item of track k is `known[FIRST_BASE + k, e] + number * steps[k]`.
    """

    def __init__(self, known: np.ndarray, steps: Sequence[int]) -> None:
        lengths = known[LENGTH]
        self.ends = np.cumsum(lengths)
        self.num_steps = int(self.ends[-1]) if len(lengths) else 0
        self.known, self.units_of_items = known.copy(), [*steps]
        self.known[END] = self.ends
        self.known[FIRST_BASE:] -= (self.ends - lengths) * np.array(steps, np.int64)[:, None]
        per_episode = max(self.num_steps // max(len(lengths), 1), 1)
        self._shift = max(int(per_episode // _PER_EPISODE).bit_length() - 1, 0)
        firsts = np.arange(0, self.num_steps, 1 << self._shift)
        self._buckets = self.ends.searchsorted(firsts, side="right").astype(np.int32)

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def lengths(self) -> np.ndarray:
        """The steps of each episode."""
        return self.known[LENGTH]

    @property
    def lookbacks(self) -> np.ndarray:
        """The items of each episode before its step 0."""
        return self.known[LOOKBACK]

    @property
    def starts(self) -> np.ndarray:
        """The number of each episode's first step."""
        return self.ends - self.lengths

    def episodes_of(self, numbers: np.ndarray) -> np.ndarray:
        """The episodes [n] of the steps with these numbers [n].

        An episode of the bucket that a number is in is near; from there it is mostly a step or two.
        """
        found = self._buckets[numbers >> self._shift].astype(np.int64)
        for _ in range(2 * _PER_EPISODE):
            behind = self.ends[found] <= numbers
            if not behind.any():
                return found
            found += behind
        late = np.flatnonzero(self.ends[found] <= numbers)
        found[late] = self.ends.searchsorted(numbers[late], side="right")
        return found

    def located(self, numbers: np.ndarray) -> Located:
        """The steps with these numbers [n]."""
        return Located(self, numbers, self.episodes_of(numbers))


class Located:
    """Steps by number [n], their episodes [n], and where their items are.

    A part of them is a view of the arrays, and takes what the whole works out: at once for thousands of steps, which is
    cheaper than for each draw of some.
    """

    __slots__ = ("_endings", "_found", "_own", "_table", "_whole", "episodes", "numbers")

    def __init__(self, table: StepTable, numbers: np.ndarray, episodes: np.ndarray) -> None:
        self.numbers, self.episodes, self._table = numbers, episodes, table
        self._found: dict[int, np.ndarray] = {}
        self._endings: tuple[np.ndarray, np.ndarray] | None = None
        self._whole: Located | None = None
        self._own = slice(None)

    def __getitem__(self, own: slice) -> Located:
        part = Located(self._table, self.numbers[own], self.episodes[own])
        part._whole, part._own = self, own
        return part

    def known(self, what: int) -> np.ndarray:
        """What is known of the episodes, [n]; to be read only."""
        if self._whole is not None:
            return self._whole.known(what)[self._own]
        found = self._found.get(what)
        if found is None:
            found = self._found[what] = self._table.known[what].take(self.episodes)
        return found

    def units(self, place: int) -> np.ndarray:
        """Where the items of the track at a place begin, [n]; to be read only."""
        if self._whole is not None:
            return self._whole.units(place)[self._own]
        found = self._found.get(~place)
        if found is None:
            units = self.numbers * self._table.units_of_items[place]
            units += self._table.known[FIRST_BASE + place].take(self.episodes)
            found = self._found[~place] = units
        return found

    def endings(self) -> tuple[np.ndarray, np.ndarray]:
        """Whether the episodes terminate, and are truncated, with these steps, [n] bool; to be read only."""
        if self._whole is not None:
            terminated, truncated = self._whole.endings()
            return terminated[self._own], truncated[self._own]
        if self._endings is None:
            self._endings = self.endings_at(self.numbers)
        return self._endings

    def endings_at(self, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Whether the episodes terminate, and are truncated, with the `last` steps [n]."""
        ended, flags = self.known(END) == last + 1, self.known(FLAGS)
        return ended & (flags & 1 != 0), ended & (flags > 1)

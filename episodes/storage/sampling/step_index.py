"""`StepIndex`: locations and owners of the steps of many episodes; `LocatedSteps`: locations of some steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

END, LENGTH, FLAGS, LOOKBACK, BEFORE, AFTER, FIRST_BASE = range(7)
"""What is known of an episode: the number after its last step, its steps, how it ends (1: terminated, 2: truncated),
its items before step 0, rows of its record batch before and after its own, and by track the unit of step number 0."""

_PER_EPISODE = 2  # buckets, at least
_STEPS_ON = 8  # how many episodes on one is looked for, before it is found by bisection


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
        self._same = [int(row[0]) if len(row) and (row == row[0]).all() else None for row in self.known]
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
        """The episodes [n] of the steps with these numbers [n]."""
        return self._episodes_and_ends(numbers)[0]

    def located(self, numbers: np.ndarray) -> LocatedSteps:
        """The steps with these numbers [n]."""
        episodes, ends = self._episodes_and_ends(numbers)
        return LocatedSteps(self, numbers, episodes, {END: ends})

    def _episodes_and_ends(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of numbers [n] the episodes [n], and the numbers after the last steps of those [n].

        An episode of the bucket that a number is in is near; from there it is mostly a step or two.
        """
        found = self._buckets.take(numbers >> self._shift).astype(np.int64)
        ends = self.ends.take(found)
        late = (ends <= numbers).nonzero()[0]
        for _ in range(_STEPS_ON):
            if not len(late):
                return found, ends
            found[late] += 1
            ends[late] = further = self.ends.take(found[late])
            late = late[further <= numbers[late]]
        found[late] = self.ends.searchsorted(numbers[late], side="right")
        ends[late] = self.ends.take(found[late])
        return found, ends

    def units(self, place: int, numbers: np.ndarray, episodes: np.ndarray) -> np.ndarray:
        """Where the items [n] of the track at a place begin, those with these numbers [n] of the episodes [n].

        Episodes that lie one after another, as those of one record batch without lookback, have one base.
        """
        step, same = self.units_of_items[place], self._same[FIRST_BASE + place]
        units = numbers if step == 1 else numbers * step
        if same is None:
            return units + self.known[FIRST_BASE + place].take(episodes)
        return units + same if same else units


class LocatedSteps:
    """Steps by number [n], their episodes [n], and where their items are.

    A part of them is a view of the arrays, and takes what the whole works out: at once for thousands of steps, which is
    cheaper than for each draw of some.
    """

    __slots__ = ("_endings", "_known", "_own", "_table", "_units", "_whole", "episodes", "numbers")

    def __init__(
        self, table: StepTable, numbers: np.ndarray, episodes: np.ndarray, known: dict[int, np.ndarray] | None = None
    ) -> None:
        self.numbers, self.episodes, self._table = numbers, episodes, table
        self._known: dict[int, np.ndarray] = {} if known is None else known
        self._units: dict[tuple[int, bool], np.ndarray] = {}
        self._endings: tuple[np.ndarray, np.ndarray] | None = None
        self._whole: LocatedSteps | None = None
        self._own = slice(None)

    def __getitem__(self, own: slice) -> LocatedSteps:
        part = LocatedSteps(self._table, self.numbers[own], self.episodes[own])
        part._whole, part._own = self, own
        return part

    def known(self, what: int) -> np.ndarray:
        """What is known of the episodes, [n]; to be read only."""
        if self._whole is not None:
            return self._whole.known(what)[self._own]
        found = self._known.get(what)
        if found is None:
            found = self._known[what] = self._table.known[what].take(self.episodes)
        return found

    def units(self, place: int, *, after: bool = False) -> np.ndarray:
        """Where the items of the track at a place begin, or those that follow them, [n]; to be read only."""
        if self._whole is not None:
            return self._whole.units(place, after=after)[self._own]
        found = self._units.get((place, after))
        if found is None:
            if after:
                found = self.units(place) + self._table.units_of_items[place]
            else:
                found = self._table.units(place, self.numbers, self.episodes)
            self._units[place, after] = found
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
        endings = np.zeros((2, len(last)), bool)
        ended = (self.known(END) == last + 1).nonzero()[0]
        flags = self._table.known[FLAGS].take(self.episodes[ended])
        endings[0, ended], endings[1, ended] = flags & 1, flags > 1
        return endings[0], endings[1]

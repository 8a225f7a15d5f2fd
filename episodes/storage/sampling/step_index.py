"""Index of all steps of a data set, which finds the chunk, the episode and the memory location of a step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

END, LENGTH, FLAGS, LOOKBACK, BEFORE, AFTER, CHUNK_END, CHUNK_LENGTH, CHUNK_LOOKBACK, T_STARTED, FIRST_BASE = range(11)
"""Row indices of a table of chunk properties, int64 [properties, number of chunks].

- Of the chunk's episode: position after the last step, number of steps, ending (1: terminated, 2: truncated), lookback.
- Array rows of the record batch before and after the rows of the chunk.
- Of the chunk: position after the last step, number of steps, lookback, time of the first step.
- For each array: memory offset of the item at position 0.
"""

_PER_EPISODE = 2  # buckets, at least
_STEPS_ON = 8  # how many chunks further is searched, before the chunk is found by bisection


class StepIndex:
    """Index of all steps of a data set. For a step index it finds the step's chunk, position and memory offset.

    A step has an index, counted chunk after chunk in the stored order, and a position. Positions count the steps of
    chunks that continue each other one after another:

        chunk      0: a, t = 0..2    1: b, t = 0..1    2: a, t = 3..4
        index      0 1 2             3 4               5 6
        position   0 1 2             5 6               3 4

    Without such chunks, positions are indices. The memory offset of an item of array k, in units, is
    `known[FIRST_BASE + k, chunk] + position * units_of_items[k]`.

    Args:
        known: facts, int64 [FIRST_BASE + tracks, n]; bases are counted from the chunk's step 0.
        steps: for each track the units from one item to the next.
        heads: for each chunk the first one of its episode, int64 [n]; None if no chunk continues another.
    """

    def __init__(self, known: np.ndarray, steps: Sequence[int], heads: np.ndarray | None = None) -> None:
        self.lengths, self.lookbacks = known[LENGTH].copy(), known[LOOKBACK].copy()
        self.ends = np.cumsum(self.lengths)
        self.starts = self.ends - self.lengths
        self.num_steps = int(self.ends[-1]) if len(self.ends) else 0
        self.known, self.units_of_items = known.copy(), [*steps]
        self.is_joined = heads is not None
        first = self.starts if heads is None else self._join(heads)
        self.shifts = first - self.starts
        self.known[CHUNK_END] = first + self.lengths
        self.known[CHUNK_LENGTH], self.known[CHUNK_LOOKBACK] = self.lengths, self.lookbacks
        if heads is None:
            self.known[END] = self.ends
        self.known[FIRST_BASE:] -= first * np.array(steps, np.int64)[:, None]
        per_episode = max(self.num_steps // max(len(self.ends), 1), 1)
        self._shift = max(int(per_episode // _PER_EPISODE).bit_length() - 1, 0)
        self._same = [int(row[0]) if len(row) and (row == row[0]).all() else None for row in self.known]
        firsts = np.arange(0, self.num_steps, 1 << self._shift)
        self._buckets = self.ends.searchsorted(firsts, side="right").astype(np.int32)

    def _join(self, heads: np.ndarray) -> np.ndarray:
        """Join chunks with the same first chunk (`heads`) to one episode. Return the position of each
        chunk's first step, int64 [n]."""
        order = np.lexsort((self.known[T_STARTED], heads))
        first = np.empty_like(self.starts)
        first[order] = np.cumsum(self.lengths[order]) - self.lengths[order]
        tails = np.empty_like(heads)
        tails[heads[order]] = order  # the last chunk of each episode overwrites those before it
        lengths = np.zeros_like(self.lengths)
        np.add.at(lengths, heads, self.lengths)
        self.known[LENGTH] = lengths[heads]
        self.known[END] = first[heads] + lengths[heads]
        self.known[FLAGS] = self.known[FLAGS][tails[heads]]
        self.known[LOOKBACK] = self.lookbacks[heads]
        self.heads, self._order, self._heads_in_order = heads, order, heads[order]
        self._stops = (first + self.lengths)[order]
        return first

    def __len__(self) -> int:
        return len(self.ends)

    def chain(self, chunk: int) -> list[int]:
        """Return the numbers of all chunks of one episode, in order of time. The episode is
        given by any of them, `chunk`."""
        if not self.is_joined:
            return [chunk]
        head = self.heads[chunk]
        at = int(self._heads_in_order.searchsorted(head))
        return self._order[at : int(self._heads_in_order.searchsorted(head, side="right"))].tolist()

    def owners(self, positions: np.ndarray, chunks: np.ndarray) -> np.ndarray:
        """Return for each position [...] the number of the chunk that stores this step. `chunks` [...] gives each
        position's episode by any of its chunks.

        Positions before and after the episode's steps belong to its first and its last chunk.
        """
        if not self.is_joined:
            return np.broadcast_to(chunks, positions.shape)
        ends = self.known[END][chunks]
        steps = np.clip(positions, ends - self.known[LENGTH][chunks], ends - 1)
        return self._order[self._stops.searchsorted(steps, side="right")]

    def chunks_of(self, numbers: np.ndarray) -> np.ndarray:
        """Return the chunk that contains each step, int64 [n], given the step indices `numbers` [n]."""
        return self._chunks_and_ends(numbers)[0]

    def located(self, numbers: np.ndarray) -> LocatedSteps:
        """Return the chunk, position and memory offset of each step as a `LocatedSteps`,
        given the step indices `numbers` [n]."""
        chunks, ends = self._chunks_and_ends(numbers)
        if self.is_joined:
            return LocatedSteps(self, numbers + self.shifts[chunks], chunks, numbers)
        return LocatedSteps(self, numbers, chunks, numbers, {END: ends})

    def _chunks_and_ends(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the chunk that contains each step, and the index after the last step of that chunk, int64 [n] each.

        A table of buckets gives a chunk that is mostly at most two chunks too early.
        """
        chunks = self._buckets.take(numbers >> self._shift).astype(np.int64)
        ends = self.ends.take(chunks)
        late = (ends <= numbers).nonzero()[0]
        for _ in range(_STEPS_ON):
            if not len(late):
                return chunks, ends
            chunks[late] += 1
            ends[late] = further = self.ends.take(chunks[late])
            late = late[further <= numbers[late]]
        chunks[late] = self.ends.searchsorted(numbers[late], side="right")
        ends[late] = self.ends.take(chunks[late])
        return chunks, ends

    def units(self, track: int, numbers: np.ndarray, episodes: np.ndarray) -> np.ndarray:
        """Return memory offsets [n] of items of the array with the index `track`, at the positions `numbers` [n] of
        the chunks `episodes` [n].

        Chunks that are contiguous, as those of one record batch without lookbacks, have one base.
        """
        step, same = self.units_of_items[track], self._same[FIRST_BASE + track]
        units = numbers if step == 1 else numbers * step
        if same is None:
            return units + self.known[FIRST_BASE + track].take(episodes)
        return units + same if same else units


def shift_back(steps: LocatedSteps, length: int, earliest: np.ndarray) -> LocatedSteps:
    """Move sampled steps back within their episodes, but not before the positions `earliest` [n], so that at least
    `length` steps begin there if possible."""
    ends, lengths = steps.known(END), steps.known(LENGTH)
    positions = np.minimum(steps.numbers, np.maximum(np.maximum(ends - length, ends - lengths), earliest))
    return steps.moved_to(positions)


class LocatedSteps:
    """Selected steps of a data set, with the chunk, position and memory offset of each, [n] each.

    A slice of it shares what the whole computes: for thousands of steps at once, which costs less than for each draw.

    Attributes:
        numbers: positions, int64 [n].
        episodes: the steps' chunks, int64 [n].
        indices: of the steps, int64 [n].
    """

    __slots__ = ("_endings", "_known", "_own", "_table", "_units", "_whole", "episodes", "indices", "numbers")

    def __init__(
        self,
        table: StepIndex,
        numbers: np.ndarray,
        episodes: np.ndarray,
        indices: np.ndarray,
        known: dict[int, np.ndarray] | None = None,
    ) -> None:
        self.numbers, self.episodes, self.indices, self._table = numbers, episodes, indices, table
        self._known: dict[int, np.ndarray] = {} if known is None else known
        self._units: dict[tuple[int, bool], np.ndarray] = {}
        self._endings: tuple[np.ndarray, np.ndarray] | None = None
        self._whole: LocatedSteps | None = None
        self._own = slice(None)

    def __getitem__(self, index: slice) -> LocatedSteps:
        part = LocatedSteps(self._table, self.numbers[index], self.episodes[index], self.indices[index])
        part._whole, part._own = self, index
        return part

    def moved_to(self, positions: np.ndarray) -> LocatedSteps:
        """Return the steps at `positions` [n], each in the episode of one of these steps."""
        table = self._table
        if not table.is_joined:
            return LocatedSteps(table, positions, self.episodes, positions, {END: self.known(END)})
        chunks = table.owners(positions, self.episodes)
        return LocatedSteps(table, positions, chunks, positions - table.shifts[chunks])

    def known(self, fact: int) -> np.ndarray:
        """Return one property of each step's chunk, int64 [n]. `fact` is the property's
        index, such as END or LENGTH."""
        if self._whole is not None:
            return self._whole.known(fact)[self._own]
        values = self._known.get(fact)
        if values is None:
            values = self._known[fact] = self._table.known[fact].take(self.episodes)
        return values

    def units(self, track: int, *, after: bool = False) -> np.ndarray:
        """Return the memory offset of each step's item of the array with the index `track`,
        or with `after` of the next item, int64 [n]."""
        if self._whole is not None:
            return self._whole.units(track, after=after)[self._own]
        units = self._units.get((track, after))
        if units is None:
            if after:
                units = self.units(track) + self._table.units_of_items[track]
            else:
                units = self._table.units(track, self.numbers, self.episodes)
            self._units[track, after] = units
        return units

    def endings(self) -> tuple[np.ndarray, np.ndarray]:
        """Return two masks, bool [n]: the steps at which the episode is terminated, and those
        at which it is truncated."""
        if self._whole is not None:
            terminated, truncated = self._whole.endings()
            return terminated[self._own], truncated[self._own]
        if self._endings is None:
            endings = np.zeros((2, len(self.numbers)), bool)
            ended = (self.known(END) == self.numbers + 1).nonzero()[0]
            flags = self._table.known[FLAGS].take(self.episodes[ended])
            endings[0, ended], endings[1, ended] = flags & 1, flags > 1
            self._endings = endings[0], endings[1]
        return self._endings

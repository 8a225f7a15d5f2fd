"""Sampled steps, or sampled windows of steps, of a data set on disk. Any array of the data set can be read at them."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from episodes.storage.sampling.step_index import (
    AFTER,
    BEFORE,
    CHUNK_END,
    CHUNK_LENGTH,
    CHUNK_LOOKBACK,
    END,
    FIRST_BASE,
    FLAGS,
    LENGTH,
    LOOKBACK,
    T_STARTED,
    LocatedSteps,
)
from episodes.storage.sampling.stored_tracks import StoredTracks
from episodes.storage.sampling.window_grid import WindowGrid


class _Draw:
    """Base class of sampled steps and sampled windows, with the position and the chunk of
    each of the n sampled steps."""

    def __init__(self, tracks: StoredTracks, steps: LocatedSteps) -> None:
        self.tracks, self.steps = tracks, steps
        self.numbers, self.episodes = steps.numbers, steps.episodes  # [n] each

    @property
    def ends(self) -> np.ndarray:
        """Position after the last step of each sampled step's episode, int64 [n]."""
        return self.steps.known(END)

    @cached_property
    def before(self) -> np.ndarray:
        """Number of steps stored before each sampled step in its episode, with the lookback, int64 [n]."""
        return self.numbers - self.ends + self.steps.known(LENGTH) + self.steps.known(LOOKBACK)

    @cached_property
    def t(self) -> np.ndarray:
        """Time index of each sampled step in its episode, int64 [n]."""
        steps_of_chunk = self.numbers - self.steps.known(CHUNK_END) + self.steps.known(CHUNK_LENGTH)
        return steps_of_chunk + self.steps.known(T_STARTED)

    def are_complete(self, reach: int | None) -> np.ndarray:
        """Return whether the `reach` steps before each sampled step, or all if its episode has fewer, are stored,
        bool [n]. None stands for all steps of the episode."""
        known = self.before >= self.t
        return known if reach is None else known | (self.before >= reach)

    def earliest_complete(self, reach: int | None) -> np.ndarray:
        """Return the position of the first step of each sampled step's episode for which `are_complete` is True."""
        begin = self.numbers - self.before
        return begin if reach is None else np.where(self.before >= self.t, begin, begin + reach)


class StepDraw(_Draw):
    """Sampled steps [n], at which items can be read. For n-step returns, next observations and endings are those
    of the last of the n steps."""

    def __init__(self, tracks: StoredTracks, steps: LocatedSteps, last: np.ndarray | None = None) -> None:
        super().__init__(tracks, steps)
        self.last = self.numbers if last is None else last

    @property
    def shape(self) -> tuple[int, ...]:
        return self.numbers.shape

    def items(self, track: int, *, after: bool = False) -> np.ndarray:
        """Return the sampled steps' items [n, ...] of the array with the index `track`, or with
        `after` the items that follow.

        With `after`, return the items after the last of the n steps of each return.
        """
        if after and self.last is not self.numbers:
            return self.at(track, self.last + 1)
        return _take_items(self.tracks, track, self.steps.units(track, after=after), self.episodes)

    def at(self, track: int, numbers: np.ndarray) -> np.ndarray:
        """Return items [n, ...] or [n, k, ...] of the array with the index `track`, at other positions `numbers` in
        the sampled steps' episodes."""
        table, step = self.tracks.table, self.tracks.columns[track].step
        if table.is_joined:
            chunks = self.episodes if numbers.ndim == 1 else self.episodes[:, None]
            owners = table.owners(numbers, chunks)
            return _take_items(self.tracks, track, table.known[FIRST_BASE + track][owners] + numbers * step, owners)
        base = self.steps.known(FIRST_BASE + track)
        units = (base if numbers.ndim == 1 else base[:, None]) + numbers * step
        return _take_items(self.tracks, track, units, self.episodes)

    def endings(self) -> tuple[np.ndarray, np.ndarray]:
        """Return two masks, bool [n]: whether the episode is terminated, and whether it is truncated,
        at the last of the n steps."""
        if self.last is not self.numbers:
            return self.steps.endings_at(self.last)
        terminated, truncated = self.steps.endings()
        return terminated.copy(), truncated.copy()

    def step_indices(self) -> np.ndarray:
        """Return the step indices (numbers among all steps of the data set) of the sampled steps, int64 [n]."""
        return self.steps.indices

    def is_first(self) -> np.ndarray:
        """Return a mask of the sampled steps that are the first step of their episode (t = 0), bool [n]."""
        return self.t == 0

    def of_episodes(self, values: np.ndarray) -> np.ndarray:
        """Return for each sampled step the value of its chunk, [n], given `values`, an array
        with one value per chunk."""
        return values[self.episodes]

    def times(self) -> np.ndarray:
        return self.t

    def places(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return for each sampled step its position, the position of the last of its n steps,
        and its chunk, int64 [n] each."""
        return self.numbers, self.last, self.episodes

    def arrange(self, values: np.ndarray) -> np.ndarray:
        """Return `values` [n, ...] unchanged, because they already have the form of a batch column.
        `WindowDraw.arrange` forms windows."""
        return values


class WindowDraw(_Draw):
    """Sampled windows of W steps [B, W]: each has `left` steps as context, then the sampled
    step, then the steps after it."""

    def __init__(self, tracks: StoredTracks, steps: LocatedSteps, left: int, length: int) -> None:
        super().__init__(tracks, steps)
        self.left = left
        around = steps.known(BEFORE), steps.known(AFTER)
        self.grid = WindowGrid.of(self.before, self.ends - self.numbers, left, length, around)
        self._chunk_grid, self._others = self.grid, None
        if tracks.table.is_joined:
            onward = steps.known(CHUNK_END) - self.numbers
            before = steps.known(CHUNK_LENGTH) - onward + steps.known(CHUNK_LOOKBACK)
            grid = WindowGrid.of(np.minimum(before, self.before), onward, left, length, around)
            cells = self.grid.there & ~grid.there
            if cells.any():
                self._chunk_grid, self._others = grid, cells

    @cached_property
    def _positions(self) -> np.ndarray:
        """Position of each step of the windows, int64 [B, W], padding included."""
        return (self.numbers - self.left)[:, None] + np.arange(self.shape[1])

    @property
    def shape(self) -> tuple[int, ...]:
        return self.grid.there.shape

    def items(self, track: int, *, after: bool = False) -> np.ndarray:
        """Return the windows' items [B, W, ...] of the array with the index `track`, or with `after` the items
        that follow. Padding is 0."""
        column = self.tracks.columns[track]
        if self.tracks.unwritten[track] is not None:
            result = np.zeros((*self.shape, *column.shape), column.dtype)
            result[self.grid.there] = self._items_of(track, self.grid.there, after)
            return result
        units = self.steps.units(track, after=after)
        if self.left:
            units = units - self.left * column.step
        result = column.windows(units, self._chunk_grid)
        if self._others is not None:
            result[self._others] = self._items_of(track, self._others, after)
        return result

    def _items_of(self, track: int, cells: np.ndarray, after: bool) -> np.ndarray:
        """Return items [k, ...] of the array with the index `track` at those k window steps where the mask `cells`,
        bool [B, W], is True. With `after`, they are the items after these steps, such as next observations.
        """
        table, positions = self.tracks.table, self._positions[cells]
        owners = table.owners(positions, np.repeat(self.episodes, cells.sum(1)))
        units = table.known[FIRST_BASE + track][owners] + (positions + after) * self.tracks.columns[track].step
        return _take_items(self.tracks, track, units, owners)

    def endings(self) -> tuple[np.ndarray, np.ndarray]:
        """Return two masks, bool [B, W]: whether the episode is terminated, and whether it is
        truncated, at each window step."""
        grid, (num, width) = self.grid, self.shape
        last = np.arange(0, num * width, width) + grid.stops - 1
        ended = self.ends == self.numbers - self.left + grid.stops
        flags = self.steps.known(FLAGS)
        flags_at = np.zeros((2, num * width), bool)
        flags_at[0, last] = ended & (flags & 1 != 0)
        flags_at[1, last] = ended & (flags > 1)
        return flags_at[0].reshape(num, width), flags_at[1].reshape(num, width)

    def is_first(self) -> np.ndarray:
        """Return a mask of the window steps that are the first step of their episode (t = 0), bool [B, W]."""
        return self.grid.there & (np.arange(self.shape[1]) == (self.left - self.t)[:, None])

    def step_indices(self) -> np.ndarray:
        """Return the step index (number among all steps of the data set) of each window step, int64 [B, W]. It is -1
        for padding and lookback steps."""
        positions, stored = self._positions, self.grid.there
        if self.left:
            stored = stored & (positions >= (self.ends - self.steps.known(LENGTH))[:, None])
        table = self.tracks.table
        if table.is_joined:
            positions = positions - table.shifts[table.owners(positions, self.episodes[:, None])]
        return np.where(stored, positions, -1)

    def of_episodes(self, values: np.ndarray) -> np.ndarray:
        """Return for each window step the value of its chunk, [B, W], given `values`, an array with one value per
        chunk. Padding is 0 or None."""
        result = np.repeat(values[self.episodes][:, None], self.shape[1], axis=1)
        result[~self.grid.there] = None if result.dtype == object else np.zeros((), result.dtype)
        return result

    def times(self) -> np.ndarray:
        """Return the time index of each window step in its episode, int64 [B, W]. Padding is 0."""
        return ((self.t - self.left)[:, None] + np.arange(self.shape[1])) * self.grid.there

    def places(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return position, last position and chunk of each of the k window steps that are not padding, int64 [k] each.

        The last positions, which `StepDraw.places` returns for n-step returns, are equal to the positions.
        """
        numbers = self._positions[self.grid.there]
        return numbers, numbers, np.repeat(self.episodes, self.grid.there.sum(1))

    def arrange(self, values: np.ndarray) -> np.ndarray:
        """Return `values` [k, ...], which belong to the k window steps that are not padding, as a column [B, W, ...].
        Padding is 0 or None."""
        result = np.zeros((*self.shape, *values.shape[1:]), values.dtype)
        if result.dtype == object:
            result[...] = None
        result[self.grid.there] = values
        return result


Draw = StepDraw | WindowDraw


def _take_items(tracks: StoredTracks, track: int, units: np.ndarray, chunks: np.ndarray) -> np.ndarray:
    """Return items [..., *shape] of the array with the index `track` at the memory offsets `units` [...]. Chunks
    without the array give its default item."""
    take, unwritten = tracks.columns[track].take, tracks.unwritten[track]
    if unwritten is None:
        return take(units)
    chunks_without, item = unwritten
    missing = chunks_without[chunks]
    result = np.empty((*units.shape, *item.shape), item.dtype)
    result[missing] = item
    result[~missing] = take(units[~missing])
    return result

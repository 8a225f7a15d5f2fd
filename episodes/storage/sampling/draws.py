"""Sampled steps, or windows of steps, of a data set on disk, at which any of its arrays can be read."""

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
    """Base class of sampled steps or windows: position in the data set and chunk of each sampled step, [n] each."""

    def __init__(self, tracks: StoredTracks, steps: LocatedSteps) -> None:
        self.tracks, self.steps = tracks, steps
        self.numbers, self.episodes = steps.numbers, steps.episodes  # [n] each

    @property
    def ends(self) -> np.ndarray:
        """Position after the last step of each sampled step's episode, int64 [n]."""
        return self.steps.known(END)

    @cached_property
    def before(self) -> np.ndarray:
        """Number of stored steps before each sampled step in its episode, lookback included, int64 [n]."""
        return self.numbers - self.ends + self.steps.known(LENGTH) + self.steps.known(LOOKBACK)

    @cached_property
    def t(self) -> np.ndarray:
        """Time index of each sampled step in its episode, int64 [n]."""
        steps_of_chunk = self.numbers - self.steps.known(CHUNK_END) + self.steps.known(CHUNK_LENGTH)
        return steps_of_chunk + self.steps.known(T_STARTED)


class StepDraw(_Draw):
    """Sampled steps [n]. With n-step returns, the next observation and ending belong to the last of n steps."""

    def __init__(self, tracks: StoredTracks, steps: LocatedSteps, last: np.ndarray | None = None) -> None:
        super().__init__(tracks, steps)
        self.last = self.numbers if last is None else last

    @property
    def shape(self) -> tuple[int, ...]:
        return self.numbers.shape

    def items(self, place: int, *, after: bool = False) -> np.ndarray:
        """Return the items [n, ...] of array number `place` at the sampled steps.

        With `after`, return the items after the last of the n steps of each return.
        """
        if after and self.last is not self.numbers:
            return self.at(place, self.last + 1)
        return self._items(place, self.steps.units(place, after=after))

    def at(self, place: int, numbers: np.ndarray) -> np.ndarray:
        """Return the items [n, ...] or [n, k, ...] of array number `place` at other positions in the same episodes."""
        table, step = self.tracks.table, self.tracks.columns[place].step
        if table.is_joined:
            chunks = self.episodes if numbers.ndim == 1 else self.episodes[:, None]
            owners = table.owners(numbers, chunks)
            return _take(self.tracks, place, table.known[FIRST_BASE + place][owners] + numbers * step, owners)
        base = self.steps.known(FIRST_BASE + place)
        return self._items(place, (base if numbers.ndim == 1 else base[:, None]) + numbers * step)

    def _items(self, place: int, units: np.ndarray) -> np.ndarray:
        return _take(self.tracks, place, units, self.episodes)

    def endings(self) -> tuple[np.ndarray, np.ndarray]:
        """Return whether each episode is terminated, and whether truncated, at the last n-step step, bool [n] each."""
        if self.last is not self.numbers:
            return self.steps.endings_at(self.last)
        terminated, truncated = self.steps.endings()
        return terminated.copy(), truncated.copy()

    def step_indices(self) -> np.ndarray:
        """Return the indices of the sampled steps in the data set, int64 [n]."""
        return self.steps.indices

    def is_first(self) -> np.ndarray:
        """Return whether each sampled step is the first stored one of its episode, bool [n]."""
        return self.before == 0

    def of_episodes(self, values: np.ndarray) -> np.ndarray:
        """Return for each sampled step the element of `values` [number of chunks] that belongs to its chunk, [n]."""
        return values[self.episodes]

    def times(self) -> np.ndarray:
        return self.t

    def places(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return positions of the sampled steps and of their last n-step steps, and their chunks, int64 [n] each."""
        return self.numbers, self.last, self.episodes

    def laid_out(self, values: np.ndarray) -> np.ndarray:
        """Return `values` [n, ...] of the sampled steps unchanged. The same method of `WindowDraw` forms windows."""
        return values


class WindowDraw(_Draw):
    """Sampled windows of W steps [B, W]: `left` context steps, the sampled step, and the steps after it."""

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
        """Positions of all steps of the windows in the data set, int64 [B, W], including positions that are padding."""
        return (self.numbers - self.left)[:, None] + np.arange(self.shape[1])

    @property
    def shape(self) -> tuple[int, ...]:
        return self.grid.there.shape

    def items(self, place: int, *, after: bool = False) -> np.ndarray:
        """Return the items [B, W, ...] of array number `place`, or with `after` the next items. Padding is zeros."""
        column = self.tracks.columns[place]
        if self.tracks.unwritten[place] is not None:
            result = np.zeros((*self.shape, *column.shape), column.dtype)
            result[self.grid.there] = self._items_of(place, self.grid.there, after)
            return result
        units = self.steps.units(place, after=after)
        if self.left:
            units = units - self.left * column.step
        result = column.windows(units, self._chunk_grid)
        if self._others is not None:
            result[self._others] = self._items_of(place, self._others, after)
        return result

    def _items_of(self, place: int, cells: np.ndarray, after: bool) -> np.ndarray:
        """Return the items [k, ...] of array number `place` at the k window steps selected by `cells`, bool [B, W]."""
        table, positions = self.tracks.table, self._positions[cells]
        owners = table.owners(positions, np.repeat(self.episodes, cells.sum(1)))
        units = table.known[FIRST_BASE + place][owners] + (positions + after) * self.tracks.columns[place].step
        return _take(self.tracks, place, units, owners)

    def endings(self) -> tuple[np.ndarray, np.ndarray]:
        """Return whether the episodes are terminated, and whether truncated, at each window step, bool [B, W] each."""
        grid, (num, width) = self.grid, self.shape
        last = np.arange(0, num * width, width) + grid.stops - 1
        ended = self.ends == self.numbers - self.left + grid.stops
        flags = self.steps.known(FLAGS)
        flags_at = np.zeros((2, num * width), bool)
        flags_at[0, last] = ended & (flags & 1 != 0)
        flags_at[1, last] = ended & (flags > 1)
        return flags_at[0].reshape(num, width), flags_at[1].reshape(num, width)

    def is_first(self) -> np.ndarray:
        """Return which window steps are the first stored step of their episode, bool [B, W]."""
        first = np.zeros(self.shape, bool)
        at = self.left - self.before
        shown = at >= 0
        first[np.flatnonzero(shown), at[shown]] = True
        return first

    def step_indices(self) -> np.ndarray:
        """Return the index of each window step in the data set, int64 [B, W], or -1 for padding and lookback steps."""
        positions, stored = self._positions, self.grid.there
        if self.left:
            stored = stored & (positions >= (self.ends - self.steps.known(LENGTH))[:, None])
        table = self.tracks.table
        if table.is_joined:
            positions = positions - table.shifts[table.owners(positions, self.episodes[:, None])]
        return np.where(stored, positions, -1)

    def of_episodes(self, values: np.ndarray) -> np.ndarray:
        """Return the element of `values` [number of chunks] of each window step's chunk, [B, W]. Padding: None or 0."""
        result = np.repeat(values[self.episodes][:, None], self.shape[1], axis=1)
        result[~self.grid.there] = None if result.dtype == object else np.zeros((), result.dtype)
        return result

    def times(self) -> np.ndarray:
        """Return the time index of each window step in its episode, int64 [B, W], with 0 as padding."""
        return ((self.t - self.left)[:, None] + np.arange(self.shape[1])) * self.grid.there

    def places(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return positions of all window steps that are not padding (twice), and their chunks, int64 [k] each."""
        numbers = self._positions[self.grid.there]
        return numbers, numbers, np.repeat(self.episodes, self.grid.there.sum(1))

    def laid_out(self, values: np.ndarray) -> np.ndarray:
        """Arrange values [k, ...] of all real window steps as a column [B, W, ...], with zeros or None as padding."""
        result = np.zeros((*self.shape, *values.shape[1:]), values.dtype)
        if result.dtype == object:
            result[...] = None
        result[self.grid.there] = values
        return result


Draw = StepDraw | WindowDraw


def _take(tracks: StoredTracks, place: int, units: np.ndarray, chunks: np.ndarray) -> np.ndarray:
    """Return the items [..., *shape] of array number `place` at the memory offsets `units` [...]."""
    take, unwritten = tracks.columns[place].take, tracks.unwritten[place]
    return take(units) if unwritten is None else _take_or_fill(take, units, *unwritten, chunks)


def _take_or_fill(
    take, units: np.ndarray, chunks_without: np.ndarray, item: np.ndarray, episodes: np.ndarray
) -> np.ndarray:
    """Return the items at the offsets `units` [n, ...], or the default `item` for chunks that lack the array."""
    missing = chunks_without[episodes]
    result = np.empty((*units.shape, *item.shape), item.dtype)
    result[missing] = item
    result[~missing] = take(units[~missing])
    return result

"""Sampled steps, or sampled windows of steps, of a data set on disk, from which `episodes.draws` computes columns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from episodes.columns import Columns
from episodes.draws.draw import OF_LAST, Draw, StepsDraw, WindowsDraw
from episodes.draws.n_step import as_summable
from episodes.draws.windows import WindowLayout
from episodes.history import HistorySpaces
from episodes.storage.sampling.infos import StoredInfos
from episodes.storage.sampling.located_items import LocatedItems, take_items
from episodes.storage.sampling.step_index import (
    AFTER,
    BEFORE,
    CHUNK_END,
    CHUNK_LENGTH,
    CHUNK_LOOKBACK,
    FIRST_BASE,
    FLAGS,
    LENGTH,
    LocatedSteps,
)
from episodes.storage.sampling.stored_history import StoredHistory
from episodes.storage.sampling.stored_tracks import StoredTracks
from episodes.storage.sampling.window_grid import WindowGrid
from episodes.tracks import nested
from episodes.tracks.infos.dicts import as_object_array

_FLAGS = (Columns.TERMINATEDS, Columns.TRUNCATEDS)
_FACTS = {Columns.EPS_ID: "ids", Columns.AGENT_ID: "agent_ids", Columns.MODULE_ID: "module_ids"}


class _FileDraw(LocatedItems, Draw):
    """Base class of sampled steps and sampled windows, with what a `Draw` reads for both."""

    @abstractmethod
    def endings(self) -> tuple[np.ndarray, np.ndarray]:
        """Return two masks: whether the episode is terminated, and whether it is truncated, at each step."""

    @abstractmethod
    def step_indices(self) -> np.ndarray:
        """Return the step indices (numbers among all steps of the data set), int64 [*shape]."""

    @abstractmethod
    def of_episodes(self, values: np.ndarray) -> np.ndarray:
        """Return for each step the value of its chunk, given `values`, an array with one value per chunk."""

    @abstractmethod
    def places(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return of each step [k] that is not padding its position, the position of its last step, and its chunk."""

    def stored(self, keys: Sequence[str]) -> dict[str, Any]:
        tracks, columns, endings = self.tracks, {}, {}
        for key in keys:
            if key in tracks.plain:
                place, after = tracks.plain[key]
                columns[key] = self.items(place, after=after)
            elif key in _FLAGS:
                endings = endings or dict(zip(_FLAGS, self.endings(), strict=True))
                columns[key] = endings[key]
            elif key == Columns.REWARDS:
                columns[key] = as_summable(self.items(tracks.structure[key]))
            elif key == Columns.NEXT_OBS:
                columns[key] = nested.map_leaves(partial(self.items, after=True), tracks.structure[Columns.OBS])
            elif key in tracks.structure:
                columns[key] = nested.map_leaves(self.items, tracks.structure[key])
        return columns

    def versions(self) -> np.ndarray:
        return self.tracks.versions_at(self.step_indices())

    def facts(self, name: str) -> np.ndarray:
        return self.of_episodes(self.tracks.facts(_FACTS[name]))

    def infos(self) -> np.ndarray:
        numbers, _, episodes = self.places()
        result = self.arrange(as_object_array(StoredInfos.of(self.tracks).dicts(numbers + 1, episodes)))
        flat = result.reshape(-1)
        flat[:] = [{} if info is None else info for info in flat.tolist()]
        return result

    def info_columns(self) -> dict[str, np.ndarray]:
        numbers, _, episodes = self.places()
        columns = StoredInfos.of(self.tracks).columns(numbers + 1, episodes)
        return {path: self.arrange(values) for path, values in columns.items()}

    def history(
        self, before: bool, after: bool, spaces: HistorySpaces, lookback: int | None
    ) -> tuple[StoredHistory, int]:
        steps, last, episodes = self.places()
        parts = [numbers for numbers, is_read in ((steps, before), (last + 1, after)) if is_read]
        numbers, owners = np.concatenate(parts), np.tile(episodes, len(parts))
        return StoredHistory(self.tracks, numbers, owners, spaces, lookback), len(steps) if before else 0


class FileSteps(_FileDraw, StepsDraw):
    """Sampled steps [n], at which items can be read."""

    def __init__(self, tracks: StoredTracks, steps: LocatedSteps) -> None:
        super().__init__(tracks, steps)
        self.slots = self.last = self.numbers

    @property
    def rewards_are_finite(self) -> bool:
        return False  # files do not say

    def stored(self, keys: Sequence[str]) -> dict[str, Any]:
        if self.last is self.numbers:
            return super().stored(keys)
        sampled, last = self.single_steps()
        columns = sampled.stored([key for key in keys if key not in OF_LAST])
        return columns | last.stored([key for key in keys if key in OF_LAST])

    def single_steps(self) -> tuple[FileSteps, FileSteps]:
        if self.last is self.numbers:
            return self, self
        return FileSteps(self.tracks, self.steps), FileSteps(self.tracks, self.steps.moved_to(self.last))

    def path(self, num_steps: int) -> list[np.ndarray]:
        last = self.ends - 1
        longest = int((last - self.numbers).max(initial=0))
        return [self.numbers, *(np.minimum(self.numbers + k, last) for k in range(1, min(num_steps, longest + 1)))]

    def num_between(self, positions: np.ndarray, later: np.ndarray) -> np.ndarray:
        return later - positions

    def reward_reader(self) -> Callable[[np.ndarray], np.ndarray]:
        track = self.tracks.structure[Columns.REWARDS]
        return lambda positions: as_summable(self.at(track, positions))

    def endings(self) -> tuple[np.ndarray, np.ndarray]:
        """Return two masks, bool [n]: whether the episode is terminated, and whether it is truncated, at each step."""
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
        `FileWindows.arrange` forms windows."""
        return values


class FileWindows(_FileDraw, WindowsDraw):
    """Sampled windows of W steps [B, W]: each has `left` steps as context, then the sampled
    step, then the steps after it."""

    def __init__(self, tracks: StoredTracks, steps: LocatedSteps, left: int, length: int) -> None:
        super().__init__(tracks, steps)
        self.left = left
        around = steps.known(BEFORE), steps.known(AFTER)
        onward = self.ends - self.numbers
        self.layout = WindowLayout.of(self.before, onward, left, length)
        self._chunk_grid, self._others = WindowGrid.of(self.layout, around), None
        if tracks.table.is_joined:
            onward = steps.known(CHUNK_END) - self.numbers
            before = steps.known(CHUNK_LENGTH) - onward + steps.known(CHUNK_LOOKBACK)
            layout = WindowLayout.of(np.minimum(before, self.before), onward, left, length)
            cells = self.layout.exists & ~layout.exists
            if cells.any():
                self._chunk_grid, self._others = WindowGrid.of(layout, around), cells

    @cached_property
    def _positions(self) -> np.ndarray:
        """Position of each step of the windows, int64 [B, W], padding included."""
        return (self.numbers - self.left)[:, None] + np.arange(self.shape[1])

    @property
    def shape(self) -> tuple[int, ...]:
        return self.layout.exists.shape

    def items(self, track: int, *, after: bool = False) -> np.ndarray:
        """Return the windows' items [B, W, ...] of the array with the index `track`, or with `after` the items
        that follow. Padding is 0."""
        column = self.tracks.columns[track]
        if self.tracks.unwritten[track] is not None:
            result = np.zeros((*self.shape, *column.shape), column.dtype)
            result[self.layout.exists] = self._items_of(track, self.layout.exists, after)
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
        return take_items(self.tracks, track, units, owners)

    def endings(self) -> tuple[np.ndarray, np.ndarray]:
        """Return two masks, bool [B, W]: whether the episode is terminated, and whether it is
        truncated, at each window step."""
        stops, (num, width) = self.layout.stops, self.shape
        last = np.arange(0, num * width, width) + stops - 1
        ended = self.ends == self.numbers - self.left + stops
        flags = self.steps.known(FLAGS)
        flags_at = np.zeros((2, num * width), bool)
        flags_at[0, last] = ended & (flags & 1 != 0)
        flags_at[1, last] = ended & (flags > 1)
        return flags_at[0].reshape(num, width), flags_at[1].reshape(num, width)

    def single_steps(self) -> tuple[FileWindows, FileWindows]:
        return self, self

    def is_first(self) -> np.ndarray:
        return self.layout.is_first(self.t)

    def history_at(self, column: int) -> StoredHistory:
        first = self.numbers - self.before  # a position left of it would be in another episode
        numbers = np.maximum(self.numbers - self.left + column, first)
        return StoredHistory(self.tracks, numbers, self.episodes, HistorySpaces())

    def step_indices(self) -> np.ndarray:
        """Return the step index (number among all steps of the data set) of each window step, int64 [B, W]. It is -1
        for padding and lookback steps."""
        positions, stored = self._positions, self.layout.exists
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
        result[~self.layout.exists] = None if result.dtype == object else np.zeros((), result.dtype)
        return result

    def times(self) -> np.ndarray:
        """Return the time index of each window step in its episode, int64 [B, W]. Padding is 0."""
        return ((self.t - self.left)[:, None] + np.arange(self.shape[1])) * self.layout.exists

    def places(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return position, last position and chunk of each of the k window steps that are not padding, int64 [k] each.

        The last positions, which `FileSteps.places` returns for n-step returns, are equal to the positions.
        """
        numbers = self._positions[self.layout.exists]
        return numbers, numbers, np.repeat(self.episodes, self.layout.exists.sum(1))

    def arrange(self, values: np.ndarray) -> np.ndarray:
        """Return `values` [k, ...], which belong to the k window steps that are not padding, as a column [B, W, ...].
        Padding is 0 or None."""
        result = np.zeros((*self.shape, *values.shape[1:]), values.dtype)
        if result.dtype == object:
            result[...] = None
        result[self.layout.exists] = values
        return result

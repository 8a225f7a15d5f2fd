"""Draws: which steps the rows of a batch are, and the items of any track at them."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from episodes.storage.sampling.step_index import (
    AFTER,
    BEFORE,
    END,
    FIRST_BASE,
    FLAGS,
    LENGTH,
    LOOKBACK,
    LocatedSteps,
)
from episodes.storage.sampling.stored_tracks import StoredTracks
from episodes.storage.sampling.window_grid import WindowGrid


class _Draw:
    """What the steps of a draw are of."""

    def __init__(self, tracks: StoredTracks, steps: LocatedSteps) -> None:
        self.tracks, self.steps = tracks, steps
        self.numbers, self.episodes = steps.numbers, steps.episodes  # [n] each

    @property
    def ends(self) -> np.ndarray:
        """The number after the last step of each episode [n]."""
        return self.steps.known(END)

    @cached_property
    def before(self) -> np.ndarray:
        """How many steps of its chunk, its lookback among them, lie before each one [n]."""
        return self.numbers - self.ends + self.steps.known(LENGTH) + self.steps.known(LOOKBACK)

    @cached_property
    def t(self) -> np.ndarray:
        """The time of each step in its episode [n]."""
        return self.numbers - self.ends + self.steps.known(LENGTH) + self.tracks.t_started[self.episodes]


class StepDraw(_Draw):
    """Steps [n], and the last ones [n] of those that follow each other from there on.

    With `numbers` [n, k], as many steps of each row's episode.
    """

    def __init__(self, tracks: StoredTracks, steps: LocatedSteps, last: np.ndarray | None = None) -> None:
        super().__init__(tracks, steps)
        self.last = self.numbers if last is None else last

    @property
    def shape(self) -> tuple[int, ...]:
        return self.numbers.shape

    def items(self, place: int, *, after: bool = False) -> np.ndarray:
        """The items [n, ...] of a track at the steps, or what was observed after the last ones."""
        if after and self.last is not self.numbers:
            return self.at(place, self.last + 1)
        return self._items(place, self.steps.units(place, after=after))

    def at(self, place: int, numbers: np.ndarray) -> np.ndarray:
        """The items [n, ...] or [n, k, ...] of a track with these numbers, of the rows' episodes."""
        base = self.steps.known(FIRST_BASE + place)
        units = (base if numbers.ndim == 1 else base[:, None]) + numbers * self.tracks.columns[place].step
        return self._items(place, units)

    def _items(self, place: int, units: np.ndarray) -> np.ndarray:
        take, unwritten = self.tracks.columns[place].take, self.tracks.unwritten[place]
        return take(units) if unwritten is None else _filled(take, units, *unwritten, self.episodes)

    def endings(self) -> tuple[np.ndarray, np.ndarray]:
        """Whether the episodes terminated and were truncated with the last steps [n]."""
        if self.last is not self.numbers:
            return self.steps.endings_at(self.last)
        terminated, truncated = self.steps.endings()
        return terminated.copy(), truncated.copy()

    def is_first(self) -> np.ndarray:
        """Whether there is no step before [n]."""
        return self.before == 0

    def of_episodes(self, values: np.ndarray) -> np.ndarray:
        """For each step, what is known of its episode."""
        return values[self.episodes]

    def times(self) -> np.ndarray:
        return self.t

    def places(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The numbers of the steps and of the last ones, and their episodes, one after another."""
        return self.numbers, self.last, self.episodes

    def laid_out(self, values: np.ndarray) -> np.ndarray:
        """Values of the places, as a column."""
        return values


class WindowDraw(_Draw):
    """Windows of steps, the drawn ones [B] after `left` columns."""

    def __init__(self, tracks: StoredTracks, steps: LocatedSteps, left: int, length: int) -> None:
        super().__init__(tracks, steps)
        self.left = left
        around = steps.known(BEFORE), steps.known(AFTER)
        self.grid = WindowGrid.of(self.before, self.ends - self.numbers, left, length, around)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.grid.there.shape

    def items(self, place: int, *, after: bool = False) -> np.ndarray:
        """The items [B, W, ...] of a track at the steps, or what was observed after them; zeros on padding."""
        column = self.tracks.columns[place]
        units = self.steps.units(place, after=after)
        if self.left:
            units = units - self.left * column.step
        unwritten = self.tracks.unwritten[place]
        if unwritten is None:
            return column.windows(units, self.grid)
        there, columns = self.grid.there, np.arange(self.shape[1])
        found = np.zeros((*self.shape, *column.shape), column.dtype)
        each = (units[:, None] + columns * column.step)[there]
        found[there] = _filled(
            column.take, each, *unwritten, self.of_episodes(np.arange(len(self.tracks.table)))[there]
        )
        return found

    def endings(self) -> tuple[np.ndarray, np.ndarray]:
        """Where the episodes terminate and are truncated [B, W]."""
        grid, (num, width) = self.grid, self.shape
        last = np.arange(0, num * width, width) + grid.stops - 1
        ended = self.ends == self.numbers - self.left + grid.stops
        flags = self.steps.known(FLAGS)
        found = np.zeros((2, num * width), bool)
        found[0, last] = ended & (flags & 1 != 0)
        found[1, last] = ended & (flags > 1)
        return found[0].reshape(num, width), found[1].reshape(num, width)

    def is_first(self) -> np.ndarray:
        """Where there is a step, and none before it [B, W]."""
        first = np.zeros(self.shape, bool)
        at = self.left - self.before
        shown = at >= 0
        first[np.flatnonzero(shown), at[shown]] = True
        return first

    def step_numbers(self) -> np.ndarray:
        """The numbers of the steps [B, W]; -1 on padding and on lookbacks, whose steps are of earlier chunks."""
        numbers = (self.numbers - self.left)[:, None] + np.arange(self.shape[1])
        own = self.grid.there
        if self.left:
            own = own & (numbers >= (self.ends - self.steps.known(LENGTH))[:, None])
        return np.where(own, numbers, -1)

    def of_episodes(self, values: np.ndarray) -> np.ndarray:
        """For each step, what is known of its episode [B, W]; None (or 0, "") on padding."""
        found = np.repeat(values[self.episodes][:, None], self.shape[1], axis=1)
        found[~self.grid.there] = None if found.dtype == object else np.zeros((), found.dtype)
        return found

    def times(self) -> np.ndarray:
        """The time of each step in its episode [B, W]; 0 on padding."""
        return ((self.t - self.left)[:, None] + np.arange(self.shape[1])) * self.grid.there

    def places(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The numbers of the steps, twice, and their episodes, one after another; padding is left out."""
        numbers = ((self.numbers - self.left)[:, None] + np.arange(self.shape[1]))[self.grid.there]
        return numbers, numbers, np.repeat(self.episodes, self.grid.there.sum(1))

    def laid_out(self, values: np.ndarray) -> np.ndarray:
        """Values of the places, as a column [B, W, ...]: zeros on padding, empty infos."""
        found = np.zeros((*self.shape, *values.shape[1:]), values.dtype)
        if found.dtype == object:
            found[...] = None
        found[self.grid.there] = values
        return found


Draw = StepDraw | WindowDraw


def _filled(take, units: np.ndarray, lacking: np.ndarray, item: np.ndarray, episodes: np.ndarray) -> np.ndarray:
    """The items at units [n, ...]; `item` in rows whose episodes [n] lack the track."""
    missing = lacking[episodes]
    found = np.empty((*units.shape, *item.shape), item.dtype)
    found[missing] = item
    found[~missing] = take(units[~missing])
    return found

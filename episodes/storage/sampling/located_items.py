"""Reading of items at steps of a data set, and which steps are known before them."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from episodes.draws import windows
from episodes.storage.sampling.step_index import (
    CHUNK_END,
    CHUNK_LENGTH,
    END,
    FIRST_BASE,
    LENGTH,
    LOOKBACK,
    T_STARTED,
    LocatedSteps,
)
from episodes.storage.sampling.stored_tracks import StoredTracks


class LocatedItems:
    """Items of n steps of a data set, and what is known of the steps: their times, and how many are before them.

    Attributes:
        tracks: arrays of the data set.
        steps: the steps.
        numbers: their positions, int64 [n].
        episodes: their chunks, int64 [n].
    """

    def __init__(self, tracks: StoredTracks, steps: LocatedSteps) -> None:
        self.tracks, self.steps = tracks, steps
        self.numbers, self.episodes = steps.numbers, steps.episodes

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
        """Return whether the steps that a row reads before its own are stored, bool [n]. `draws.windows.are_complete`
        has the rule, and describes `reach`.
        """
        return windows.are_complete(self.t - self.before, self.t, reach)

    def earliest_complete(self, reach: int | None) -> np.ndarray:
        """Return the position of the first step of each sampled step's episode for which `are_complete` is True."""
        return self.numbers - windows.most_steps_back(self.t - self.before, self.t, reach)

    def items(self, track: int, *, after: bool = False) -> np.ndarray:
        """Return the steps' items [n, ...] of the array with the index `track`, or of what follows them."""
        return take_items(self.tracks, track, self.steps.units(track, after=after), self.episodes)

    def at(self, track: int, numbers: np.ndarray) -> np.ndarray:
        """Return items [n, ...] or [n, k, ...] of the array with the index `track`, at other positions `numbers` in
        the sampled steps' episodes."""
        table, step = self.tracks.table, self.tracks.columns[track].step
        if table.is_joined:
            chunks = self.episodes if numbers.ndim == 1 else self.episodes[:, None]
            owners = table.owners(numbers, chunks)
            return take_items(self.tracks, track, table.known[FIRST_BASE + track][owners] + numbers * step, owners)
        base = self.steps.known(FIRST_BASE + track)
        units = (base if numbers.ndim == 1 else base[:, None]) + numbers * step
        return take_items(self.tracks, track, units, self.episodes)


def take_items(tracks: StoredTracks, track: int, units: np.ndarray, chunks: np.ndarray) -> np.ndarray:
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

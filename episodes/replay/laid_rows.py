"""Staged rows of N environments as steps of a ring: which of them are steps, and how they are linked.

`LaidRun`: one row, or rows in which nothing ends but with the last one: who draws after every few rows waits for this.
`LaidRows`: any rows. Both answer the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from episodes.recorder.boundaries import Boundaries, Row, Rows
from episodes.replay.ring.addition import Room
from episodes.replay.ring.episode_table import NONE
from episodes.replay.ring.step_links import ENTRY, NEXT, NEXT_ROW, PREVIOUS, ROW, T
from episodes.replay.ring.step_ring import LinkedRing
from episodes.replay.ring.track_ring import positions


class Behind(NamedTuple):
    """What is in the ring of N environments, from which their next steps go on; numbers, not positions."""

    previous: np.ndarray  # [N] their newest steps; NONE where the next one is an episode's first
    rows: np.ndarray  # [N] their newest observations
    entries: np.ndarray  # [N] their episodes in the table, once they have steps
    head: int  # of the ring, when they were written: another one now says that somebody else wrote
    rows_head: int
    boundaries: Boundaries


class LaidRun:
    """K staged rows of N environments whose steps are those of the same environments: only with the last one some end.

    Rows that some environments spend on a reset are runs of their own, K = 1. See `LaidRows` for what is said.
    """

    __slots__ = ("_count", "_last", "first_steps", "num_rows", "num_steps", "step_rows")
    sources = None

    def __init__(self, count: int, last: Row, behind: Behind) -> None:
        self._count, self._last = count, last
        self.num_steps, self.num_rows = count * len(last.stepped), count * len(behind.rows)
        self.step_rows = last.stepped if self.num_steps < self.num_rows else None
        previous = behind.previous if self.step_rows is None else behind.previous[self.step_rows]
        self.first_steps = (previous == NONE).nonzero()[0]

    @property
    def num_in_first_row(self) -> int:
        return len(self._last.stepped)

    @property
    def newest(self) -> slice:
        """The newest steps of all episodes: those of the last row."""
        return slice(self.num_steps - len(self._last.stepped), None)

    def env_of(self, step: int) -> int:
        """The environment of a step of the first row."""
        return int(self._last.stepped[step])

    def links(
        self, room: Room, behind: Behind, boundaries: Boundaries, opened: np.ndarray, ring: LinkedRing, into: np.ndarray
    ) -> tuple[np.ndarray, Behind]:
        """The links [6, S] of the steps, written `into` [6, at least S], and what is behind those that come after."""
        count, envs, num_steps, num_rows = self._count, self._last.stepped, self.num_steps, self.num_rows
        width, num_envs, links = len(envs), len(behind.rows), into[:, :num_steps]
        rows, steps = positions(room.rows_head, num_rows, ring.num_rows), positions(room.head, num_steps, ring.capacity)
        seen, previous, entries, ages = behind.rows, behind.previous, behind.entries, behind.boundaries.ages
        if len(opened):
            entries = entries.copy()
            entries[envs[self.first_steps]] = opened
        own = entries
        if self.step_rows is not None:
            rows, seen, previous, own, ages = (one[envs] for one in (rows, seen, previous, entries, ages))
        links[NEXT_ROW], links[NEXT] = rows, steps
        links[ROW, :width], links[PREVIOUS, :width] = seen % ring.num_rows, previous % ring.capacity
        if count == 1:
            links[ENTRY], links[T] = own, ages
        else:
            links[ROW, width:], links[PREVIOUS, width:] = rows[:-width], steps[:-width]
            links[ENTRY].reshape(count, width)[...] = own
            np.add(ages, np.arange(count)[:, None], out=links[T].reshape(count, width))
        if len(opened):
            links[PREVIOUS, self.first_steps] = steps[self.first_steps]
        head, rows_head = room.head + num_steps, room.rows_head + num_rows
        newest = np.arange(head - width, head)
        if self.step_rows is not None:
            after = np.full(num_envs, NONE)
            after[envs] = newest
            newest = after
        newest[self._last.ended] = NONE
        rows = np.arange(rows_head - num_envs, rows_head)
        return links, Behind(newest, rows, entries, head, rows_head, boundaries)


@dataclass(slots=True, eq=False)
class LaidRows:
    """K staged rows of N environments as steps and observation rows; numbers of steps are places among them.

        rows of the stage      0..N-1   N..2N-1  ...           a row and environment is one number: k * N + n
        steps                  those of them that are no resets: `live`
        observation rows       all of them; with same-step autoreset, after each row the first observations of the
                               episodes that begin there, the last ones (`finals`) standing in the row itself

    Attributes:
        rows: what the rows are.
        grid: numbers of all rows and environments.
        live: [S] those that are steps; `everyone` if all are.
        ranks: [K * N] which step each is.
        begins: [K, N] the place, a row later, of the first step of the episode; before the first one, the environment.
        first_steps: [F] the first steps of episodes.
        ended: [E] rows and environments that end episodes, if their last observations lie apart.
        next_rows: [K * N] where the observation after each comes among those written.
        firsts: [E] where the first observations of the next episodes come.
        sources: [R] which observations these are, of all rows' and then the last ones that lie apart; None as they are.
    """

    rows: Rows
    grid: _Grid
    live: np.ndarray
    everyone: bool
    ranks: np.ndarray
    begins: np.ndarray
    first_steps: np.ndarray
    ended: np.ndarray
    next_rows: np.ndarray
    firsts: np.ndarray
    sources: np.ndarray | None

    @classmethod
    def of(cls, rows: Rows, behind: Behind, last_lies_apart: bool) -> LaidRows:
        stepped, ended = rows
        grid = _grid(*stepped.shape)
        fresh = np.empty(stepped.shape, bool)
        np.equal(behind.previous, NONE, out=fresh[0])
        if last_lies_apart:
            fresh[1:] = ended[:-1]
        else:
            np.logical_not(stepped[:-1], out=fresh[1:])
        fresh &= stepped
        everyone = bool(stepped.all())
        live = grid.places if everyone else np.flatnonzero(stepped)
        ranks = live
        if not everyone:
            ranks = np.cumsum(stepped)
            ranks -= 1
        begins = np.where(fresh, grid.next_places, grid.envs)
        np.maximum.accumulate(begins, axis=0, out=begins)
        apart = np.flatnonzero(ended) if last_lies_apart else grid.places[:0]
        next_rows, firsts, sources = grid.places, apart, None
        if len(apart):
            num_envs, counts = len(grid.envs), np.count_nonzero(ended, axis=1)
            next_rows = grid.places + np.repeat(np.cumsum(counts) - counts, num_envs)
            firsts = (apart // num_envs + 1) * num_envs + np.arange(len(apart))
            sources = np.empty(stepped.size + len(apart), np.int64)
            sources[next_rows], sources[firsts] = grid.places, apart
            sources[next_rows[apart]] = stepped.size + np.arange(len(apart))
        first_steps = ranks[np.flatnonzero(fresh)]
        return cls(rows, grid, live, everyone, ranks, begins, first_steps, apart, next_rows, firsts, sources)

    @property
    def num_steps(self) -> int:
        return len(self.live)

    @property
    def step_rows(self) -> np.ndarray | None:
        """Which rows and environments are steps; None for all."""
        return None if self.everyone else self.live

    @property
    def num_rows(self) -> int:
        return len(self.ranks) + len(self.ended)

    @property
    def num_in_first_row(self) -> int:
        return int(np.count_nonzero(self.rows.stepped[0]))

    @property
    def newest(self) -> np.ndarray:
        """The newest steps of all episodes: the last ones of those that ended, and those of the last row."""
        last = np.count_nonzero(self.rows.stepped[-1])
        ended = self.ranks[np.flatnonzero(self.rows.ended)]
        return np.concatenate([ended, np.arange(self.num_steps - last, self.num_steps)])

    def env_of(self, step: int) -> int:
        """The environment of a step of the first row."""
        return int(self.live[step])

    def links(
        self, room: Room, behind: Behind, boundaries: Boundaries, opened: np.ndarray, ring: LinkedRing, into: np.ndarray
    ) -> tuple[np.ndarray, Behind]:
        """The links [6, S] of the steps, written `into` [6, at least S], and what is behind those that come after."""
        count, num_envs = self.begins.shape
        grid, live, split = self.grid, self.live, self.num_in_first_row
        later, first_envs = live[split:] - num_envs, live[:split]
        links = into[:, : len(live)]
        before = self.next_rows
        if len(self.ended):
            before = before.copy()
            before[self.ended] = self.firsts
            links[NEXT_ROW], links[ROW, split:] = self.next_rows.take(live), before.take(later)
        else:
            links[NEXT_ROW], links[ROW, split:] = live, later
        links[ROW, :split] = 0
        _wrap(links[: NEXT_ROW + 1], room.rows_head, ring.num_rows, self.num_rows)
        links[ROW, :split] = behind.rows[first_envs] % ring.num_rows
        links[NEXT] = grid.places[: len(live)]
        self.ranks.take(later, out=links[PREVIOUS, split:])
        links[PREVIOUS, :split] = 0
        links[PREVIOUS, self.first_steps] = self.first_steps
        _wrap(links[NEXT : PREVIOUS + 1], room.head, ring.capacity, len(live))
        goes_on = behind.previous[first_envs]
        links[PREVIOUS, :split] = np.where(goes_on == NONE, links[NEXT, :split], goes_on % ring.capacity)
        entries, began = np.empty((2, count + 1, num_envs), np.int64)
        entries[0], began[0], began[1:] = behind.entries, -behind.boundaries.ages, grid.row_of
        entries.ravel()[grid.next_places.ravel().take(live.take(self.first_steps))] = opened
        where = self.begins.ravel() if self.everyone else self.begins.ravel().take(live)
        entries.ravel().take(where, out=links[ENTRY])
        np.subtract(grid.row_of.ravel().take(live), began.ravel().take(where), out=links[T])
        newest = room.head + self.ranks[-num_envs:]
        previous = np.where(self.rows.stepped[-1] & ~self.rows.ended[-1], newest, NONE)
        heads = room.head + len(live), room.rows_head + self.num_rows
        rows = room.rows_head + before[-num_envs:]
        return links, Behind(previous, rows, entries.ravel().take(self.begins[-1]), *heads, boundaries)


class _Grid(NamedTuple):
    """Numbers of K rows of N environments, which are the same each time."""

    places: np.ndarray  # [K * N] k * N + n
    next_places: np.ndarray  # [K, N] the same one row later
    row_of: np.ndarray  # [K, N] k
    envs: np.ndarray  # [N]


@lru_cache(maxsize=8)
def _grid(count: int, num_envs: int) -> _Grid:
    places = np.arange(count * num_envs)
    rows, envs = np.divmod(places, num_envs)
    shape = count, num_envs
    return _Grid(places, (places + num_envs).reshape(shape), rows.reshape(shape), envs[:num_envs])


def _wrap(offsets: np.ndarray, number: int, size: int, most: int) -> None:
    """Make offsets < `most` from a number on, in place, positions in a ring. Dividing each one would cost 5 ns."""
    start = number % size
    offsets += start
    if start + most > size:
        offsets %= size

"""Staged rows of N environments as steps of a ring: which of them are steps, and how they are linked.

`LinkedRun`: one row, or rows in which nothing ends but with the last one, for callers that draw after every few rows.
`LinkedRows`: any rows. Both answer the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from episodes.recorder.boundaries import Boundaries, Row, Rows
from episodes.replay.ring.addition import Reservation
from episodes.replay.ring.episode_table import NONE
from episodes.replay.ring.linked_ring import LinkedRing
from episodes.replay.ring.step_links import ENTRY, NEXT, NEXT_ROW, PREVIOUS, ROW, T
from episodes.replay.ring.track_ring import UNCHECKED, positions

_FEW_CHUNKS = np.iinfo(np.int16).max  # whose numbers are compared in a quarter of the time


class EnvTails(NamedTuple):
    """What is in the ring of N environments, from which their next steps go on; numbers, not positions."""

    previous: np.ndarray  # [N] their newest steps; NONE where the next one is an episode's first
    rows: np.ndarray  # [N] their newest observations
    entries: np.ndarray  # [N] their episodes in the table, once they have steps
    head: int  # of the ring, when they were written: another one now says that somebody else wrote
    rows_head: int
    boundaries: Boundaries


class LinkedRun:
    """K staged rows of N environments whose steps are those of the same environments: only with the last one some end.

    Rows that some environments spend on a reset are runs of their own, K = 1. See `LinkedRows` for what is said.
    """

    __slots__ = ("_count", "_last", "first_steps", "num_rows", "num_steps", "step_rows")
    sources = None

    def __init__(self, count: int, last: Row, behind: EnvTails) -> None:
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

    def steps_with_flag(self, flags: np.ndarray) -> np.ndarray:
        """The steps [k] that have a flag, bool [K, N] of the rows."""
        last = flags[-1] if self.step_rows is None else flags[-1][self.step_rows]
        return last.nonzero()[0] + (self.num_steps - len(last))

    def links(
        self,
        reservation: Reservation,
        behind: EnvTails,
        boundaries: Boundaries,
        opened: np.ndarray,
        ring: LinkedRing,
        into: np.ndarray,
    ) -> tuple[np.ndarray, EnvTails]:
        """The links [6, S] of the steps, written `into` [6, at least S], and what is behind those that come after."""
        count, envs, num_steps, num_rows = self._count, self._last.stepped, self.num_steps, self.num_rows
        width, num_envs, links = len(envs), len(behind.rows), into[:, :num_steps]
        rows, steps = (
            positions(reservation.rows_head, num_rows, ring.num_rows),
            positions(reservation.head, num_steps, ring.capacity),
        )
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
        head, rows_head = reservation.head + num_steps, reservation.rows_head + num_rows
        newest = np.arange(head - width, head)
        if self.step_rows is not None:
            after = np.full(num_envs, NONE)
            after[envs] = newest
            newest = after
        newest[self._last.ended] = NONE
        rows = np.arange(rows_head - num_envs, rows_head)
        return links, EnvTails(newest, rows, entries, head, rows_head, boundaries)


@dataclass(slots=True, eq=False)
class LinkedRows:
    """K staged rows of N environments as steps and observation rows; numbers of steps are places among them.

        rows of the stage      0..N-1   N..2N-1  ...           a row and environment is one number: k * N + n
        steps                  those of them that are no resets: `live`
        observation rows       all of them; with same-step autoreset, after each row the first observations of the
                               episodes that begin there, the last ones (`finals`) standing in the row itself

    Attributes:
        rows: what the rows are.
        grid: numbers of all rows and environments.
        live: [S] those that are steps; `everyone` if all are.
        ranks: [K * N] how many steps come before each, which is the number of one that is a step.
        begun: [F] which rows and environments are the first steps of episodes, and `first_steps` [F] which steps.
        chunks: [K, N] whose each is: n for what environment n did before the rows, N + f for the f-th that began.
        ends: [E] rows and environments that end episodes; `ended` likewise, if their last observations lie apart.
        next_rows: [K * N] where the observation after each comes among those written.
        firsts: [E] where the first observations of the next episodes come.
        sources: [R] which observations these are, of all rows' and then the last ones that lie apart; None as they are.
    """

    rows: Rows
    grid: _Grid
    live: np.ndarray
    everyone: bool
    ranks: np.ndarray
    begun: np.ndarray
    first_steps: np.ndarray
    chunks: np.ndarray
    ends: np.ndarray
    ended: np.ndarray
    next_rows: np.ndarray
    firsts: np.ndarray
    sources: np.ndarray | None

    @classmethod
    def of(cls, rows: Rows, behind: EnvTails, last_lies_apart: bool) -> LinkedRows:
        stepped, ended = rows
        grid = _grid(*stepped.shape)
        fresh = np.empty(stepped.shape, bool)
        np.equal(behind.previous, NONE, out=fresh[0])
        if last_lies_apart:
            fresh[1:] = ended[:-1]
        else:
            np.logical_not(stepped[:-1], out=fresh[1:])
        fresh &= stepped
        live = ranks = grid.places
        everyone = np.count_nonzero(stepped) == stepped.size
        if not everyone:
            live = stepped.ravel().nonzero()[0]
            ranks = np.zeros(stepped.size, np.intp)
            np.add.accumulate(stepped.ravel()[:-1], out=ranks[1:])
        begun = fresh.ravel().nonzero()[0]
        chunks = np.empty(stepped.shape, np.int16 if len(grid.envs) + len(begun) <= _FEW_CHUNKS else np.int64)
        chunks[...] = grid.envs
        chunks.ravel()[begun] = np.arange(len(grid.envs), len(grid.envs) + len(begun), dtype=chunks.dtype)
        chunks = _running_max(chunks)
        ends = ended.ravel().nonzero()[0]
        apart = ends if last_lies_apart else ends[:0]
        next_rows, firsts, sources = grid.places, apart, None
        if len(apart):
            num_envs, counts = len(grid.envs), np.count_nonzero(ended, axis=1)
            next_rows = grid.places + np.repeat(np.cumsum(counts) - counts, num_envs)
            firsts = (apart // num_envs + 1) * num_envs + np.arange(len(apart))
            sources = np.empty(stepped.size + len(apart), np.int64)
            sources[next_rows], sources[firsts] = grid.places, apart
            sources[next_rows[apart]] = stepped.size + np.arange(len(apart))
        return cls(
            rows, grid, live, everyone, ranks, begun, ranks.take(begun), chunks, ends, apart, next_rows, firsts, sources
        )

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
        return np.concatenate([self.ranks.take(self.ends), self.grid.places[self.num_steps - last : self.num_steps]])

    def env_of(self, step: int) -> int:
        """The environment of a step of the first row."""
        return int(self.live[step])

    def steps_with_flag(self, flags: np.ndarray) -> np.ndarray:
        """The steps [k] that have a flag, bool [K, N] of the rows."""
        return self.ranks.take(self.ends[flags.ravel()[self.ends]])

    def links(
        self,
        reservation: Reservation,
        behind: EnvTails,
        boundaries: Boundaries,
        opened: np.ndarray,
        ring: LinkedRing,
        into: np.ndarray,
    ) -> tuple[np.ndarray, EnvTails]:
        """The links [6, S] of the steps, written `into` [6, at least S], and what is behind those that come after."""
        num_envs, live, split = len(behind.rows), self.live, self.num_in_first_row
        later, first_envs = live[split:] - num_envs, live[:split]
        links = into[:, : len(live)]
        before, seen, led_to = self.next_rows, later, live
        if len(self.ended):
            before = before.copy()
            before[self.ended] = self.firsts
            seen, led_to = before.take(later, mode=UNCHECKED), self.next_rows.take(live, mode=UNCHECKED)
        _positions(seen, reservation.rows_head, ring.num_rows, self.num_rows, links[ROW, split:])
        _positions(led_to, reservation.rows_head, ring.num_rows, self.num_rows, links[NEXT_ROW])
        links[ROW][:split] = behind.rows[first_envs] % ring.num_rows
        slots = _positions(self.grid.places[: len(live)], reservation.head, ring.capacity, len(live), links[NEXT])
        _positions(
            self.ranks.take(later, mode=UNCHECKED), reservation.head, ring.capacity, len(live), links[PREVIOUS, split:]
        )
        links[PREVIOUS][:split] = behind.previous[first_envs] % ring.capacity
        links[PREVIOUS][self.first_steps] = slots.take(self.first_steps)
        chunks = self.chunks.ravel() if self.everyone else self.chunks.ravel().take(live, mode=UNCHECKED)
        chunks = chunks.astype(np.intp)
        entries = np.concatenate([behind.entries, opened])
        began = np.concatenate([-behind.boundaries.ages, self.begun // num_envs])
        entries.take(chunks, out=links[ENTRY], mode=UNCHECKED)
        self.grid.row_of.take(live, out=links[T], mode=UNCHECKED)
        links[T] -= began.take(chunks, mode=UNCHECKED)
        newest = reservation.head + self.ranks[-num_envs:]
        previous = np.where(self.rows.stepped[-1] > self.rows.ended[-1], newest, NONE)
        heads = reservation.head + len(live), reservation.rows_head + self.num_rows
        rows = reservation.rows_head + before[-num_envs:]
        return links, EnvTails(previous, rows, entries.take(self.chunks[-1]), *heads, boundaries)


class _Grid(NamedTuple):
    """Numbers of K rows of N environments, which are the same each time."""

    places: np.ndarray  # [K * N] k * N + n
    row_of: np.ndarray  # [K * N] k
    envs: np.ndarray  # [N]


@lru_cache(maxsize=8)
def _grid(count: int, num_envs: int) -> _Grid:
    places = np.arange(count * num_envs)
    return _Grid(places, places // num_envs, places[:num_envs])


def _positions(offsets: np.ndarray, number: int, size: int, most: int, into: np.ndarray) -> np.ndarray:
    """Where the offsets < `most` from a number on are in a ring, written `into`. Dividing each one would cost 5 ns."""
    start = number % size
    np.add(offsets, start, out=into)
    if start + most > size:
        into %= size
    return into


def _running_max(chunks: np.ndarray) -> np.ndarray:
    """Of each column [K] the highest number up to each row, in log2 K passes: `maximum.accumulate` takes 3 times that.

    What is given is written over.
    """
    shift, other = 1, np.empty_like(chunks)
    while shift < len(chunks):
        other[:shift] = chunks[:shift]
        np.maximum(chunks[shift:], chunks[:-shift], out=other[shift:])
        chunks, other, shift = other, chunks, 2 * shift
    return chunks

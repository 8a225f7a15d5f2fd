"""Computes which recorded vector steps are steps or resets, and the links between these steps in the replay ring.

`LinkedRun`: one row, or rows in which no episode ends but with the last one. It is fast for callers that sample after
every few rows. `LinkedRows`: any rows. Both have the same methods.

Each step has links to the observations around it, and to the steps before and after it. Two environments step twice:

    observations   0  1 | 2  3 | 4  5       0, 1 are in the ring before (`EnvTails.rows`)
    steps              0  1   2  3
    ROW                0  1   2  3          the observation that the policy saw
    NEXT_ROW           2  3   4  5          the observation that the action led to
    PREVIOUS           p  q   0  1          p, q: `EnvTails.previous`, or the step itself if it begins an episode
    NEXT               0  1   2  3          itself: the ring sets it to the next step when that step is written
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


class EnvTails(NamedTuple):
    """For each of N environments, its newest step, newest observation and current episode in the replay ring."""

    previous: np.ndarray  # [N] newest steps, NONE if the next step is the first of an episode
    rows: np.ndarray  # [N] newest observations
    entries: np.ndarray  # [N] table entries of the episodes, if they have steps
    head: int  # of the ring after these steps; a higher head means that other steps were added
    rows_head: int
    boundaries: Boundaries


class LinkedRun:
    """Links of recorded vector steps in the fast case: the same environments step, only the last row ends episodes.

    A row in which some environments are reset is a run of one row. See `LinkedRows` for the attributes.

        env          0   1   2
        row 0        s   s   s
        row 1        s   s   s
        row 2        s   s*  s        * the episode ends
    """

    __slots__ = ("_count", "_last", "first_steps", "num_rows", "num_steps", "step_rows")
    sources = None

    def __init__(self, count: int, last: Row, tails: EnvTails) -> None:
        self._count, self._last = count, last
        self.num_steps, self.num_rows = count * len(last.stepped), count * len(tails.rows)
        self.step_rows = last.stepped if self.num_steps < self.num_rows else None
        previous = tails.previous if self.step_rows is None else tails.previous[self.step_rows]
        self.first_steps = (previous == NONE).nonzero()[0]

    @property
    def num_in_first_row(self) -> int:
        return len(self._last.stepped)

    @property
    def newest(self) -> slice:
        """Slice of the recorded steps that belong to the last vector step."""
        return slice(self.num_steps - len(self._last.stepped), None)

    def env_of(self, step: int) -> int:
        """Return the environment of the step with index `step`, which belongs to the first recorded vector step."""
        return int(self._last.stepped[step])

    def steps_with_flag(self, flags: np.ndarray) -> np.ndarray:
        """Return the indices [k] of the steps for which `flags`, bool [K, N] over vector steps, is True."""
        last = flags[-1] if self.step_rows is None else flags[-1][self.step_rows]
        return last.nonzero()[0] + (self.num_steps - len(last))

    def links(
        self,
        reservation: Reservation,
        tails: EnvTails,
        boundaries: Boundaries,
        opened: np.ndarray,
        ring: LinkedRing,
        into: np.ndarray,
    ) -> tuple[np.ndarray, EnvTails]:
        """Compute the links [6, S] of the recorded steps, and the `EnvTails` after these steps.

        Args:
            reservation: where the steps and rows are written.
            tails: tails before these rows.
            boundaries: boundaries after these rows.
            opened: table entries of new episodes.
            ring: ring that the steps are written to.
            into: memory [6, at least S].
        """
        count, envs, num_steps, num_rows = self._count, self._last.stepped, self.num_steps, self.num_rows
        width, num_envs, links = len(envs), len(tails.rows), into[:, :num_steps]
        rows, steps = (
            positions(reservation.rows_head, num_rows, ring.num_rows),
            positions(reservation.head, num_steps, ring.capacity),
        )
        seen_rows, previous, entries, ages = tails.rows, tails.previous, tails.entries, tails.boundaries.ages
        if len(opened):
            entries = entries.copy()
            entries[envs[self.first_steps]] = opened
        step_entries = entries
        if self.step_rows is not None:
            rows, seen_rows, previous, step_entries, ages = (
                column[envs] for column in (rows, seen_rows, previous, entries, ages)
            )
        links[NEXT_ROW], links[NEXT] = rows, steps
        links[ROW, :width], links[PREVIOUS, :width] = seen_rows % ring.num_rows, previous % ring.capacity
        if count == 1:
            links[ENTRY], links[T] = step_entries, ages
        else:
            links[ROW, width:], links[PREVIOUS, width:] = rows[:-width], steps[:-width]
            links[ENTRY].reshape(count, width)[...] = step_entries
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
    """Links of K recorded vector steps of N environments in the general case: episodes begin and end in any row.

        rows of the stage      0..N-1   N..2N-1  ...           a row and environment is one number: k * N + n
        steps                  those of them that are no resets: `live`
        observation rows       all of them; with same-step autoreset, after each row the first observations of the
                               episodes that begin there, and the last observations (`finals`) in the row itself

    Two environments with same-step autoreset, whose episodes continue those in the ring. The last observation of the
    episode that ends is 6, since 0..5 are the K * N observations of the rows:

        env          0   1
        row 0        0   1                 chunks     0 1 | 0 1 | 0 2      the third chunk is the new episode
        row 1        2   3*                ends       3                    * the episode ends
        row 2        4   5                 begun      5
                                           sources    0 1 | 2 6 3 | 4 5    observations in the order of the ring
                                           next_rows  0 1 | 2 3 | 5 6      where `sources` has what the steps led to
                                           firsts     4                    where it has the first observation, 3

    Attributes:
        rows: classification of the rows.
        grid: numbers of all rows and environments.
        live: rows and environments that are steps, [S].
        everyone: whether all are steps.
        ranks: number of steps before each row and environment, [K * N]: the index of a step among the new ones.
        begun: rows and environments with first steps of episodes, [F].
        first_steps: the same first steps as step indices, [F].
        chunks: chunk of each row and environment, [K, N]: n continues the episode of environment n, N + f is the f-th
            new one.
        ends: rows and environments that end episodes, [E].
        ended: the same, if their last observations are not in the row, else empty.
        next_rows: index of the observation after each row and environment, among the written rows, [K * N].
        firsts: indices of the first observations of the next episodes, [E].
        sources: which observations are written, of all rows and then of `finals`, [R]. None for all rows in order.
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
    def of(cls, rows: Rows, tails: EnvTails, last_lies_apart: bool) -> LinkedRows:
        """Find the steps, episode starts, episode ends and observations in K vector steps.

        Args:
            rows: classification of the rows.
            tails: tails before these rows.
            last_lies_apart: whether last observations are not in the rows (same-step autoreset).
        """
        stepped, ended = rows
        grid = _grid(*stepped.shape)
        begins = np.empty(stepped.shape, bool)
        np.equal(tails.previous, NONE, out=begins[0])
        if last_lies_apart:
            begins[1:] = ended[:-1]
        else:
            np.logical_not(stepped[:-1], out=begins[1:])
        begins &= stepped
        live = ranks = grid.places
        everyone = np.count_nonzero(stepped) == stepped.size
        if not everyone:
            live = stepped.ravel().nonzero()[0]
            ranks = np.zeros(stepped.size, np.intp)
            np.add.accumulate(stepped.ravel()[:-1], out=ranks[1:])
        begun = begins.ravel().nonzero()[0]
        chunks = np.tile(grid.envs, (len(stepped), 1))
        chunks.ravel()[begun] = np.arange(len(grid.envs), len(grid.envs) + len(begun))
        np.maximum.accumulate(chunks, axis=0, out=chunks)
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
        """Flat indices k * N + n of those (vector step, environment) pairs that are steps. None if all are."""
        return None if self.everyone else self.live

    @property
    def num_rows(self) -> int:
        return len(self.ranks) + len(self.ended)

    @property
    def num_in_first_row(self) -> int:
        """Number of environments that stepped in the first recorded row."""
        return int(np.count_nonzero(self.rows.stepped[0]))

    @property
    def newest(self) -> np.ndarray:
        """Index of the newest recorded step of each episode, int [k]."""
        last = np.count_nonzero(self.rows.stepped[-1])
        return np.concatenate([self.ranks.take(self.ends), self.grid.places[self.num_steps - last : self.num_steps]])

    def env_of(self, step: int) -> int:
        """Return the environment of the step with index `step`, which belongs to the first recorded vector step."""
        return int(self.live[step])

    def steps_with_flag(self, flags: np.ndarray) -> np.ndarray:
        """Return the indices [k] of the steps for which `flags`, bool [K, N] over vector steps, is True."""
        return self.ranks.take(self.ends[flags.ravel()[self.ends]])

    def links(
        self,
        reservation: Reservation,
        tails: EnvTails,
        boundaries: Boundaries,
        opened: np.ndarray,
        ring: LinkedRing,
        into: np.ndarray,
    ) -> tuple[np.ndarray, EnvTails]:
        """Compute the links [6, S] of the recorded steps, and the `EnvTails` after these steps.

        See `LinkedRun.links`.
        """
        num_envs, live, split = len(tails.rows), self.live, self.num_in_first_row
        later, first_envs = live[split:] - num_envs, live[:split]
        links = into[:, : len(live)]
        before, seen_rows, led_to = self.next_rows, later, live
        if len(self.ended):
            before = before.copy()
            before[self.ended] = self.firsts
            seen_rows, led_to = before.take(later, mode=UNCHECKED), self.next_rows.take(live, mode=UNCHECKED)
        _positions(seen_rows, reservation.rows_head, ring.num_rows, self.num_rows, links[ROW, split:])
        _positions(led_to, reservation.rows_head, ring.num_rows, self.num_rows, links[NEXT_ROW])
        links[ROW][:split] = tails.rows[first_envs] % ring.num_rows
        slots = _positions(self.grid.places[: len(live)], reservation.head, ring.capacity, len(live), links[NEXT])
        _positions(
            self.ranks.take(later, mode=UNCHECKED), reservation.head, ring.capacity, len(live), links[PREVIOUS, split:]
        )
        links[PREVIOUS][:split] = tails.previous[first_envs] % ring.capacity
        links[PREVIOUS][self.first_steps] = slots.take(self.first_steps)
        chunks = self.chunks.ravel() if self.everyone else self.chunks.ravel().take(live, mode=UNCHECKED)
        entries = np.concatenate([tails.entries, opened])
        began = np.concatenate([-tails.boundaries.ages, self.begun // num_envs])
        entries.take(chunks, out=links[ENTRY], mode=UNCHECKED)
        self.grid.row_of.take(live, out=links[T], mode=UNCHECKED)
        links[T] -= began.take(chunks, mode=UNCHECKED)
        newest = reservation.head + self.ranks[-num_envs:]
        previous = np.where(self.rows.stepped[-1] > self.rows.ended[-1], newest, NONE)
        heads = reservation.head + len(live), reservation.rows_head + self.num_rows
        rows = reservation.rows_head + before[-num_envs:]
        return links, EnvTails(previous, rows, entries.take(self.chunks[-1]), *heads, boundaries)


class _Grid(NamedTuple):
    """Cached index arrays of the (vector step, environment) pairs of K vector steps of N environments."""

    places: np.ndarray  # [K * N] k * N + n
    row_of: np.ndarray  # [K * N] k
    envs: np.ndarray  # [N]


@lru_cache(maxsize=8)
def _grid(count: int, num_envs: int) -> _Grid:
    """Return the (cached) indices of `count` rows of N environments: row * N + environment."""
    places = np.arange(count * num_envs)
    return _Grid(places, places // num_envs, places[:num_envs])


def _positions(offsets: np.ndarray, number: int, size: int, bound: int, into: np.ndarray) -> np.ndarray:
    """Return the ring positions of the items with numbers `number + offsets`, written into the array `into`. `offsets`
    are less than `bound`.

    The modulo is skipped if no position wraps around.
    """
    start = number % size
    np.add(offsets, start, out=into)
    if start + bound > size:
        into %= size
    return into

"""The linked ring: steps in order of arrival, observations stored once, episodes held together by links.

Step number k lies at position k % capacity. Observations have a ring of their own, which is a little larger: an
episode of T steps has T + 1 of them. Both only move forward: when a step is put in place of the oldest one, nothing
else moves, and nothing is searched.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import numpy as np

from episodes.columns import Columns
from episodes.errors import EpisodeStateError, ShapeMismatch, TrackMismatch, UnknownKey, WrongType
from episodes.replay.ring.episode_table import EpisodeTable
from episodes.replay.ring.info_columns import InfoColumns
from episodes.replay.ring.info_segments import InfoSegments
from episodes.replay.ring.step_links import NEXT_ROW, ROW, ROW_FIELDS, STEP_FIELDS, StepLinks
from episodes.replay.ring.step_records import Fields, StepRecords, fits_in_a_line, is_small
from episodes.replay.ring.track_ring import Allocator, TrackRing, numbers, positions, put
from episodes.tracks.infos import Infos

ACTIONS, REWARDS, TERMINATEDS, TRUNCATEDS = "actions", "rewards", "terminateds", "truncateds"
STEP_TRACKS = (ACTIONS, REWARDS, TERMINATEDS, TRUNCATEDS)
_BEFORE, _AFTER = "/before", "/after"  # fields of records: the observations at both ends of a step


_RESERVED = {column for name, column in vars(Columns).items() if name.isupper()} - {
    Columns.ACTION_DIST_INPUTS,
    Columns.ACTION_LOGP,
    Columns.VF_PREDS,
    Columns.STATE_OUT,
}


def checked_extra(extra_model_outputs: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs by name; `TrackMismatch` if one has the name of a column that draws have anyway."""
    taken = _RESERVED & extra_model_outputs.keys()
    if taken:
        raise TrackMismatch(
            f"extra model outputs named {sorted(taken)}: draws have columns of these names; rename them"
        )
    return dict(extra_model_outputs)


def chosen_outputs(extra_model_outputs: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """The outputs named by `keys`; `UnknownKey` for one that there is not, `WrongType` for a bare name."""
    if isinstance(keys, str):
        raise WrongType(f"keys={keys!r}: give a list of names of extra model outputs")
    missing = [key for key in keys if key not in extra_model_outputs]
    if missing:
        raise UnknownKey(f"no extra model output {missing[0]!r} to store; there are {list(extra_model_outputs)}")
    return {key: extra_model_outputs[key] for key in keys}


@dataclass(slots=True, eq=False)
class Block:
    """Steps about to be written: the data, and how they hang together.

    Attributes:
        observations: nested arrays; `observation_rows` of them (all when None) are written.
        tracks: nested arrays by name; `step_rows` of them (all when None) are written.
        links: [6, S] int64, see `StepLinks`.
        infos: of the observations that are written.
    """

    observations: Any
    observation_rows: Any
    num_rows: int
    tracks: dict[str, Any]
    step_rows: Any
    links: np.ndarray
    infos: Infos

    def in_order(self, order: np.ndarray) -> Block:
        """The same steps in another order, their places [S]."""
        rows = self.step_rows[order] if isinstance(self.step_rows, np.ndarray) else order
        return replace(self, step_rows=rows, links=self.links[:, order])


class LinkedRing:
    """Tracks of up to `capacity` steps, linked.

    Attributes:
        tail, head: steps with numbers in [tail, head) are there.
        rows_head: number of the next observation row.
        window: how many rows before a step's `next_row` its `row` may lie; `widen` makes it larger.
        beside: the observations before and after each step once more, in its record, where they are so small that a
            draw is faster for it; else None.
        lost_rows: observation rows with smaller numbers were gone when the ring was made larger or cleared.
        skipped: how many step numbers no step has: a cleared ring goes on at its beginning with new ones.
        rewards_are_finite: False once one was infinite, NaN, or so large that its square is.
        generation: changes when what is stored is replaced as a whole, so that writers know.
    """

    def __init__(self, capacity: int, allocator: Allocator) -> None:
        self.capacity = capacity
        self.allocator = allocator
        self.num_rows = capacity + capacity // 32 + 1
        self.tracks: dict[str, TrackRing] = {}
        self._own_tracks: list[TrackRing] = []
        self._observations: TrackRing | None = None
        self._make_records({}, Allocator())
        self.generation = 0
        self.head = self.rows_head = self.skipped = 0
        self.rewards_are_finite = True
        self.clear()

    def clear(self) -> None:
        """Forget all steps; what kind of steps they are stays, and so do the numbers of those that were there."""
        rest = -self.head % self.capacity
        self.skipped += rest
        self.head += rest
        self.tail = self.head
        self.window = 1
        self.lost_rows = self.rows_head
        self._kept_from = 0  # at most `oldest_row(self.tail)`
        self.table = EpisodeTable()
        self.infos = InfoSegments()
        self.info_columns = InfoColumns()
        self.generation += 1

    def __len__(self) -> int:
        return self.head - self.tail

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, links included."""
        observations = self.observations.nbytes if self.has_observations else 0
        return observations + sum(ring.nbytes for ring in self._own_tracks) + self._records.nbytes

    @property
    def observations(self) -> TrackRing:
        """The ring of observations; `EpisodeStateError` before the first ones came."""
        if self._observations is None:
            raise EpisodeStateError("nothing was ever stored here; add(episodes) first")
        return self._observations

    @property
    def has_observations(self) -> bool:
        """Whether it is known what observations are like."""
        return self._observations is not None

    def set_observations(self, ring: TrackRing | None) -> None:
        """Put another ring of observations in place."""
        self._observations = ring

    def prepare(self, observations: Any, tracks: dict[str, Any]) -> None:
        """Check that the items [k, ...] are of the kind stored here; the first ones say which kind that is."""
        if tracks[REWARDS].ndim != 1:
            raise ShapeMismatch(
                f"rewards have items of shape {tracks[REWARDS].shape[1:]}; give one number for each step"
            )
        if not self.tracks:
            self.prepare_observations(observations)
            self.make_tracks(tracks)
            return
        self.prepare_observations(observations)
        if tracks.keys() != self.tracks.keys():
            raise TrackMismatch(
                f"the episodes have the tracks {sorted(tracks)}; the buffer holds {sorted(self.tracks)}: "
                "all episodes of a buffer have the same extra model outputs; keys=[...] says which of them are stored"
            )
        for name, items in tracks.items():
            self.tracks[name].check(items)

    def make_tracks(self, tracks: dict[str, Any]) -> None:
        """Make rings for step tracks with items like these, nested arrays [k, ...]; small ones lie in records.

        Whole-numbered rewards become floats, for others may be fractions; halves are too coarse to sum.
        """
        if tracks and tracks[REWARDS].dtype.char not in "fd":
            dtype = np.float32 if tracks[REWARDS].dtype == np.float16 else np.float64
            tracks = {**tracks, REWARDS: tracks[REWARDS].astype(dtype)}
        small = {name: items for name, items in tracks.items() if is_small(items)}
        self._make_records(small, self.allocator)
        self.tracks = {
            name: self._recorded(name) if name in small else TrackRing.like(name, self.capacity, items, self.allocator)
            for name, items in tracks.items()
        }
        self._own_tracks = [ring for name, ring in self.tracks.items() if name not in small]

    def _make_records(self, small: Fields, allocator: Allocator) -> None:
        ends, tracks = self._ends(), {**small}
        if ends and fits_in_a_line(ends | tracks):
            records = StepRecords(self.capacity, ends | tracks, STEP_FIELDS | ROW_FIELDS, allocator)
            self.beside = tuple(TrackRing(name, self.capacity, records.field(name)) for name in ends)
        else:
            records = StepRecords(self.capacity, ROW_FIELDS | tracks, STEP_FIELDS, allocator)
            self.beside = None
        self._records = records
        self.links = StepLinks(self.capacity, records)
        self.links.pad_with(self.num_rows)

    def _ends(self) -> dict[str, np.ndarray]:
        """Fields for the observations at both ends of a step, if they are small."""
        if self._observations is None or not is_small(self._observations.data):
            return {}
        return dict.fromkeys((_BEFORE, _AFTER), self._observations.data)

    def _recorded(self, name: str) -> TrackRing:
        return TrackRing(name, self.capacity, self._records.field(name))

    def prepare_observations(self, observations: Any) -> None:
        """As `prepare`, for observations that no step goes with yet."""
        if self._observations is None:
            self._observations = TrackRing.like("observations", self.num_rows, observations, self.allocator)
        else:
            self._observations.check(observations)

    # --- making room -------------------------------------------------------------------------------------------

    def make_room(self, num_steps: int, num_rows: int) -> None:
        """Evict as many of the oldest steps as `num_steps` new ones need, and see that `num_rows` more rows fit."""
        surplus = self.head + num_steps - self.capacity - self.tail
        if surplus > 0:
            self._evict(surplus)
        stop = self.rows_head + num_rows
        if stop - self._kept_from > self.num_rows:
            self._kept_from = oldest = self.oldest_row(self.tail)
            if stop - oldest > self.num_rows:
                self._grow_rows(stop - oldest, len(self) + num_steps)
        if self.infos.starts:
            self.infos.drop_before(max(self.lost_rows, stop - self.num_rows))

    def widen(self, window: int) -> None:
        """Let steps refer to observations this many rows before the one that they lead to."""
        if window > self.window:
            self._kept_from = max(self._kept_from - (window - self.window), 0)
            self.window = window

    def evict_before(self, number: int) -> None:
        """Evict the steps with smaller numbers."""
        if number > self.tail:
            self._evict(min(number, self.head) - self.tail)

    def pass_by(self, num_steps: int) -> None:
        """Evict everything, and number the next step as if `num_steps` had come and gone."""
        self._evict(len(self))
        self.head += num_steps
        self.tail = self.head

    def oldest_row(self, tail: int) -> int:
        """Number of the oldest observation row that a step may refer to when those before `tail` are evicted."""
        if tail >= self.head:
            return max(self.rows_head - self.window, 0)
        latest = self.rows_head - 1
        row = latest - (latest - self.links.next_row.item(tail % self.capacity)) % self.num_rows
        return max(row - self.window, 0)

    @property
    def first_row(self) -> int:
        """Number of the oldest observation row that nothing was written over."""
        return max(self.lost_rows, self.rows_head - self.num_rows)

    def _evict(self, num_steps: int) -> None:
        slots = positions(self.tail, num_steps, self.capacity)
        start = self.tail % self.capacity
        in_a_row = slice(start, start + num_steps) if start + num_steps <= self.capacity else slots
        following = self.links.unlink(in_a_row)
        entries = self.links.entry[in_a_row]
        self.table.first[entries] = following
        ended = (following == slots).nonzero()[0]
        if len(ended):
            self.table.close(entries.take(ended).tolist())
        self.tail += num_steps

    def _grow_rows(self, needed: int, num_steps: int) -> None:
        """Make the ring of observations larger: episodes are shorter than it was laid out for."""
        expected = needed * self.capacity // max(num_steps, 1)
        size = max(needed, min(expected, 2 * self.capacity + self.window)) + self.capacity // 64 + 1
        if self.has_observations:
            first = self.lost_rows = self.first_row
            self.observations.resize(size, first, self.rows_head, self.allocator)
            self.links.renumber_rows(min(self.head, self.capacity), self.rows_head, self.num_rows, size)
        self.num_rows = size
        self.links.pad_with(size)

    # --- writing -----------------------------------------------------------------------------------------------

    def append(self, block: Block) -> None:
        """Write the block's steps, for which room was made."""
        self.append_rows(block.observations, block.observation_rows, block.num_rows, block.infos)
        start = self.head % self.capacity
        for name, items in block.tracks.items():
            self.tracks[name].write(start, items, block.step_rows)
        if self.rewards_are_finite:
            self.rewards_are_finite = _has_finite_squares(block.tracks[REWARDS])
        self.links.append(start, block.links)
        if self.beside is not None:
            source = self.observations.items
            put(self.beside[0].items, self.capacity, start, source[block.links[ROW]])
            put(self.beside[1].items, self.capacity, start, source[block.links[NEXT_ROW]])
        self.head += block.links.shape[1]

    def append_rows(self, observations: Any, rows: Any, num_rows: int, infos: Infos) -> None:
        """Write observations that no step refers to yet."""
        self.observations.write(self.rows_head, observations, rows)
        self.infos.append(self.rows_head, infos)
        self.rows_head += num_rows

    def change_ends(self, slots: np.ndarray, observations: Any) -> None:
        """Put other observations [k, ...] in place of those that the steps at the positions [k] led to."""
        self.observations.overwrite(self.links.next_row[slots], observations)
        if self.beside is not None:
            self.beside[1].overwrite(slots, observations)

    def put_beside(self) -> None:
        """Put the observations of all steps that are there into their records, if that is where they belong."""
        if self.beside is not None:
            slots = positions(self.tail, len(self), self.capacity)
            for ring, rows in zip(self.beside, (self.links.row, self.links.next_row), strict=True):
                ring.items[slots] = self.observations.items[rows[slots]]

    # --- reading -----------------------------------------------------------------------------------------------

    def slot_numbers(self, slots: np.ndarray) -> np.ndarray:
        """The step numbers at the positions."""
        return numbers(slots, self.head, self.capacity)

    def row_numbers(self, rows: np.ndarray) -> np.ndarray:
        """The observation row numbers at the positions."""
        return numbers(rows, self.rows_head, self.num_rows)

    def t_next(self, entries: np.ndarray) -> np.ndarray:
        """The time that the next step of each entry's episode would have."""
        return self.links.t[self.table.last.take(entries)] + 1

    def ended(self, entries: np.ndarray) -> np.ndarray:
        """Where the entries' episodes have ended, so that no step may follow."""
        last = self.table.last.take(entries)
        return self.track(TERMINATEDS)[last] | self.track(TRUNCATEDS)[last]

    def track(self, name: str) -> Any:
        """The nested arrays [capacity, ...] of a step track."""
        return self.tracks[name].data


def _has_finite_squares(rewards: np.ndarray) -> bool:
    if rewards.dtype.char not in "fd":
        rewards = rewards.astype(np.float64)
    return isfinite(rewards.dot(rewards))

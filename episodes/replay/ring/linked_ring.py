"""`LinkedRing`: ring storage of steps, linked to the neighbouring steps of their episode and to their observations.

Step number k is at position k % capacity. Observations have a ring of their own, which is a little larger, since an
episode of T steps has T + 1 observations. Both only move forward: when a step replaces the oldest one, nothing else
moves, and nothing is searched.

    steps           | 7  8  9 | 3  4  5  6 |                   capacity 7, tail 3, head 10
    observations    | 9 10 11 12 | 4  5  6  7  8 |             row links connect steps to observations
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.columns import Columns
from episodes.draws.n_step import as_summable
from episodes.errors import EpisodeStateError, ShapeMismatch, TrackMismatch
from episodes.replay.ring.addition import Addition, Block, Reservation, StagedSource
from episodes.replay.ring.episode_table import EpisodeTable
from episodes.replay.ring.resume_point import ResumePoint
from episodes.replay.ring.ring_infos import RingInfos
from episodes.replay.ring.step_links import ENTRY, NEXT_ROW, ROW, ROW_FIELDS, STEP_FIELDS, StepLinks, T
from episodes.replay.ring.step_log import StepLog
from episodes.replay.ring.step_records import Fields, StepRecords, fits_in_a_line, is_small
from episodes.replay.ring.step_versions import StepVersions
from episodes.replay.ring.track_ring import UNCHECKED, Allocator, TrackRing, numbers_at, positions, put
from episodes.storage.ownership import OwnedLock
from episodes.tracks import nested
from episodes.tracks.infos import Infos
from episodes.tracks.infos.dicts import infos_of

if TYPE_CHECKING:
    from episodes.data_types import NestedArrays

ACTIONS, REWARDS, TERMINATEDS, TRUNCATEDS = "actions", "rewards", "terminateds", "truncateds"
FLAGS = (TERMINATEDS, TRUNCATEDS)
STEP_TRACKS = (ACTIONS, REWARDS, *FLAGS)
OBSERVED = (Columns.OBS, Columns.NEXT_OBS)
_REWARD_DTYPES = "?bBhHiIlLqQefd"
OBSERVATIONS, COPIES, LINKS, UNUSED = "/observations", "/copies", "/links", "/unused"
"""Names of parts of the memory besides the step tracks. No track can have these names."""
_BEFORE, _AFTER = "/before", "/after"  # fields of records: the observations at both ends of a step


class LinkedRing:
    """Storage of the newest `capacity` steps. Each step is linked to its two observations and its neighbours.

    An addition is computed first (`reserve`, then an `Addition`), which changes nothing, and then assigned to `work`.
    From that assignment on it belongs to the ring. If writing it is interrupted, by Ctrl-C or for lack of memory,
    `flush_staged` writes all of it again before the ring is read. So `work` may be called twice.

    Attributes:
        tail: number of the oldest stored step.
        head: number of the next step.
        rows_head: number of the next observation row.
        window: how many rows before a step's `next_row` its `row` may be. `widen` makes it larger.
        beside: copies of the observations before and after each step, in its record, or None if they are not small.
        columns: functions that return a column's items at ring positions, by name.
        lost_rows: observation rows with smaller numbers were dropped when the ring was enlarged or cleared.
        skipped: how many step numbers belong to no step, since a cleared ring continues at position 0.
        versions: policy versions of the steps.
        rewards_are_finite: False once a reward was infinite or NaN.
        generation: changes when all contents are replaced, so that recorders notice.
        lock: lock that readers and writers hold.
        kept_from: a row number that is at most `oldest_row(tail)`.
        work: writes what an interrupt left unfinished, else None.
        staged: steps that `flush_staged` writes before the ring is read, or written to by others.
        log: episodes and times of the newest steps, evicted ones included, or None.
        source: source of the origins of sampled batches. Replaced when step numbers get another meaning.
        ragged: names of the ragged tracks.
    """

    tail: int
    window: int
    lost_rows: int
    kept_from: int
    beside: tuple[TrackRing, ...] | None
    columns: dict[str, Callable[[np.ndarray], Any]]
    links: StepLinks
    table: EpisodeTable
    _records: StepRecords
    _word: TrackRing | None
    infos: RingInfos
    log: StepLog | None = None
    is_closed = False
    source: Any = None
    ragged: tuple[str, ...] = ()

    def __init__(self, capacity: int, allocator: Allocator) -> None:
        self.capacity = capacity
        self.allocator = allocator
        self.resume_point: ResumePoint | None = None
        files = allocator.files
        self.lock = RLock() if files is None else OwnedLock(files.owner)
        self.staged: StagedSource | None = None
        self.work: Callable[[], None] | None = None
        self.num_rows = capacity + capacity // 32 + 1
        self.tracks: dict[str, TrackRing] = {}
        self.versions = StepVersions(capacity, allocator)
        self._observations: TrackRing | None = None
        self.__dict__.update(self._created_records({}, None, Allocator()))
        self.generation = 0
        self.head = self.rows_head = self.skipped = 0
        self.rewards_are_finite = True
        self.table = EpisodeTable()
        self.clear()

    def clear(self) -> None:
        """Remove all steps, staged ones included. Dtypes and shapes stay fixed, and step indices continue."""
        num_skipped = -self.head % self.capacity
        self.__dict__.update(  # one call, so that no interrupt leaves a part of it
            staged=None,
            work=None,
            skipped=self.skipped + num_skipped,
            head=self.head + num_skipped,
            tail=self.head + num_skipped,
            window=1,
            lost_rows=self.rows_head,
            kept_from=0,
            table=EpisodeTable(self.table.names),
            infos=RingInfos(self.num_rows),
            generation=self.generation + 1,
        )

    def close(self) -> None:
        """Release all arrays and close their files. Any later use of the ring raises `EpisodeStateError`."""
        if not self.is_closed:
            lock, files = self.lock, self.allocator.files
            self.__dict__.clear()
            self.__dict__.update(lock=lock, is_closed=True)
            if files is not None:
                files.close()

    def __getattr__(self, name: str) -> Any:
        """Raise `EpisodeStateError` for missing attributes, which only a closed ring lacks."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise EpisodeStateError("the replay buffer is closed; make another one, with resume=True if it has files")

    def replace_contents(self, source: LinkedRing) -> None:
        """Take over the contents of the ring `source`, which must not be used afterwards."""
        stays = ("lock", "allocator", "resume_point", "log")
        contents = {name: value for name, value in vars(source).items() if name not in stays}
        self.__dict__.update(
            contents | {"staged": None, "work": None, "source": None, "generation": self.generation + 1}
        )
        self.keep_log(None if self.log is None else self.log.size)

    def keep_log(self, size: int | None) -> None:
        """Log the episode and time of the newest `size` steps, evicted steps included. None stops the log."""
        self.log = StepLog(size) if size else None
        if self.log is not None:
            slots = positions(self.tail, len(self), self.capacity)
            self.log.begin(self.tail, self.links.entry[slots], self.links.t[slots], self.table)

    def __len__(self) -> int:
        return self.head - self.tail

    @property
    def nbytes(self) -> int:
        """Memory size in bytes of the arrays of steps, links and observations, without infos and policy versions."""
        return sum(self.bytes_by_part.values())

    @property
    def bytes_by_part(self) -> dict[str, int]:
        """Memory size in bytes of each part: the observations, each step track by its name, copies of observations
        beside the steps, links, and what fills the records of steps.
        """
        parts = {OBSERVATIONS: self.observations.nbytes} if self.has_observations else {}
        parts |= {name: ring.nbytes for name, ring in self.tracks.items()}
        fields = self._records.bytes_by_field
        parts[COPIES] = sum(fields.get(name, 0) for name in (_BEFORE, _AFTER))
        parts[LINKS] = sum(fields[name] for name in (*ROW_FIELDS, *STEP_FIELDS))
        return parts | {UNUSED: self._records.unused_bytes}

    @property
    def observations(self) -> TrackRing:
        """Ring array of the observations. It has a few more items than the ring has steps.

        Raises:
            EpisodeStateError: no observation was added yet.
        """
        if self._observations is None:
            raise EpisodeStateError("nothing was ever stored here; add(episodes) first")
        return self._observations

    @property
    def has_observations(self) -> bool:
        """Whether any observation was stored, so that dtypes and shapes are known."""
        return self._observations is not None

    def check(self, observations: NestedArrays, tracks: dict[str, Any]) -> None:
        """Raise an error unless new observations and step arrays [k, ...] have the stored dtypes and shapes.

        Args:
            observations: nested arrays [k, ...].
            tracks: the step tracks by name; empty before the first step.

        Raises:
            TrackMismatch: other tracks, dtypes or structures.
            ShapeMismatch: items of other shapes.
        """
        if tracks:
            rewards = tracks[REWARDS]
            if not isinstance(rewards, np.ndarray) or rewards.ndim != 1:
                shape = rewards.shape[1:] if isinstance(rewards, np.ndarray) else nested.describe(rewards)
                raise ShapeMismatch(f"rewards have items of shape {shape}; give one number for each step")
            if rewards.dtype.char not in _REWARD_DTYPES:
                raise TrackMismatch(f"rewards of {rewards.dtype}; give floats of at most 64 bits, integers or bools")
        if self._observations is not None and (self.tracks or self.rows_head):
            self._observations.check(observations)
        if self.tracks and tracks:
            if tracks.keys() != self.tracks.keys():
                raise TrackMismatch(
                    f"the episodes have the tracks {sorted(tracks)}; the buffer holds {sorted(self.tracks)}: "
                    "all episodes of a buffer have the same extra model outputs; select them with keys=[...]"
                )
            for name, items in tracks.items():
                self.tracks[name].check(items)

    def create_missing(self, observations: NestedArrays, tracks: dict[str, Any], has_versions: bool = False) -> None:
        """Allocate missing ring arrays, in the dtypes and shapes of the given observations and step arrays.

        Args:
            tracks: the step tracks by name; empty before the first step.
            has_versions: whether the steps have policy versions.

        Raises:
            OSError: an array cannot be created, for example because the disk is full. The ring stays as it was.
        """
        if self.tracks and not (has_versions and self.versions.versions is None):
            return
        names = self.allocator.names
        try:
            created = self._created(observations, tracks, has_versions)
        except BaseException:
            self.allocator.remove_all_but(names)
            raise
        self.__dict__.update(created)

    def _created(self, observations: NestedArrays, tracks: dict[str, Any], has_versions: bool) -> dict[str, Any]:
        """Allocate the missing ring arrays, and return the attributes that `create_missing` must set."""
        created: dict[str, Any] = {}
        stored = self._observations if self.tracks or self.rows_head else None
        if stored is None:
            stored = TrackRing.like("observations", self.num_rows, observations, self.allocator)
            created["_observations"] = stored
        if tracks and not self.tracks:
            created |= self._created_tracks(stored, tracks)
        if has_versions and self.versions.versions is None:
            created["versions"] = self.versions.with_array()
        ragged = (ring.name for ring in (stored, *created.get("tracks", {}).values()) if ring.is_ragged)
        if tracks and not self.tracks:
            created["ragged"] = tuple(ragged)
        return created

    def _created_tracks(self, observations: TrackRing, tracks: dict[str, Any]) -> dict[str, Any]:
        """Allocate ring arrays for actions, rewards, flags and extra outputs, and return the attributes to set.

        Integer rewards become floats, since later rewards may be fractions.
        """
        tracks = {**tracks, REWARDS: as_summable(tracks[REWARDS])}
        small = {name: items for name, items in tracks.items() if is_small(items)}
        created = self._created_records(small, observations, self.allocator)
        rings = {
            name: TrackRing(name, self.capacity, created["_records"].field(name))
            if name in small
            else TrackRing.like(name, self.capacity, items, self.allocator)
            for name, items in tracks.items()
        }
        columns = {name: ring.gather_function() for name, ring in rings.items()}
        return created | {"tracks": rings, "columns": created["columns"] | columns}

    def _created_records(self, small: Fields, observations: TrackRing | None, allocator: Allocator) -> dict[str, Any]:
        """Allocate the step records. Return a dict of attributes: the records, and the links and arrays inside."""
        ends: dict[str, np.ndarray] = {}
        if observations is not None and is_small(observations.data):
            ends = dict.fromkeys((_BEFORE, _AFTER), observations.data)
        beside = None
        if ends and fits_in_a_line(ends | {**small}):
            records = StepRecords(self.capacity, ends | {**small}, STEP_FIELDS | ROW_FIELDS, allocator)
            beside = tuple(TrackRing(name, self.capacity, records.field(name)) for name in ends)
        else:
            records = StepRecords(self.capacity, ROW_FIELDS | {**small}, STEP_FIELDS, allocator)
        word = records.word(REWARDS, FLAGS)
        if word is None or small[REWARDS].dtype != np.float32:
            rewards_and_flags = None
        else:
            rewards_and_flags = TrackRing("", self.capacity, word)
        links = StepLinks(self.capacity, records)
        links.pad_with(self.num_rows)
        return {
            "_records": records,
            "_word": rewards_and_flags,
            "beside": beside,
            "links": links,
            "columns": {name: ring.gather_function() for name, ring in zip(OBSERVED, beside or (), strict=False)},
        }

    # --- writing what was decided --------------------------------------------------------------------------------

    def flush_staged(self) -> None:
        """Complete an interrupted write, then write the steps that recorders still hold in memory."""
        self._finish()
        if self.staged is not None:
            staged = self.staged
            addition, continuation = staged.build_addition(self)
            self._run(partial(self._write_staged, addition, staged, continuation))

    def add(self, addition: Addition) -> None:
        """Execute the planned writes `addition`. If interrupted, the next use of the ring repeats the writes."""
        self._run(partial(self.write, addition))

    def _write_staged(self, addition: Addition, staged: StagedSource, continuation: Any) -> None:
        """Write the staged steps of a recorder, and let the recorder continue behind them."""
        self.write(addition)
        staged.proceed(continuation)
        self.staged = None

    def _run(self, work: Callable[[], None]) -> None:
        """Call `work`. If the call is interrupted, the next use of the ring repeats it."""
        self.work = work
        self._finish()

    def _finish(self) -> None:
        """Complete a write that was interrupted, if there is one."""
        if self.work is not None:
            self.work()
            self.work = None

    # --- reserving space ---------------------------------------------------------------------------------------

    def reserve(self, num_steps: int, num_rows: int, num_passed: int = 0) -> Reservation:
        """Plan the addition of new steps: their indices, and the episodes that lose their oldest steps.

        The ring does not change, except that the ring of observations grows if it is too small.

        Args:
            num_steps: number of new steps.
            num_rows: number of new observation rows.
            num_passed: if not 0, all steps are evicted, and this number of step numbers is skipped.
        """
        head = self.head + num_passed
        tail = head if num_passed else max(head + num_steps - self.capacity, self.tail)
        reservation = self._plan_eviction(min(tail, self.head), head, tail)
        stop = self.rows_head + num_rows
        if stop - reservation.kept_from > self.num_rows:
            reservation.kept_from = oldest = self.oldest_row(min(tail, self.head))
            if stop - oldest > self.num_rows:
                self._grow_rows(stop - oldest, self.head - min(tail, self.head) + num_steps)
        return reservation

    def _plan_eviction(self, stop: int, head: int, tail: int) -> Reservation:
        """Determine which episodes lose some or all steps if the steps with indices below `stop` are evicted. `head`
        and `tail` are stored in the reservation that is returned.
        """
        if stop == self.tail:
            return Reservation(head, self.rows_head, tail, _NOTHING, _NOTHING, _NOTHING, self.kept_from)
        count, start = stop - self.tail, self.tail % self.capacity
        if start + count <= self.capacity:
            offsets = self.links.next[start : start + count] - start  # of each step's successor
        else:
            offsets = self.links.next[positions(self.tail, count, self.capacity)] - start
            offsets[offsets < 0] += self.capacity
        leave = offsets >= count  # the last evicted step of each episode: its successor stays, or there is none
        leave |= offsets <= np.arange(count)
        last = leave.nonzero()[0]
        stay = offsets.take(last) != last
        last = (last + start) % self.capacity
        first, entries = self.links.next[last[stay]], self.links.entry[last]
        return Reservation(head, self.rows_head, tail, first, entries[stay], entries[~stay], self.kept_from)

    def widen(self, window: int) -> None:
        """Increase to `window` the number of ring positions by which a step's two observations may be apart.
        Observations are then kept longer."""
        if window > self.window:
            self.kept_from = max(self.kept_from - (window - self.window), 0)
            self.window = window

    def evict_before(self, number: int) -> None:
        """Evict all steps with indices below `number`, even if the ring is not full."""
        with self.lock:
            self.flush_staged()
            if number > self.tail:
                tail = min(number, self.head)
                reservation = self._plan_eviction(tail, self.head, tail)
                self.add(Addition(reservation, self.table.change(reservation.closed, 0)))

    def oldest_row(self, tail: int) -> int:
        """Return the number of the oldest observation that the steps from index `tail` on still need."""
        if tail >= self.head:
            return max(self.rows_head - self.window, 0)
        latest = self.rows_head - 1
        row = latest - (latest - self.links.next_row.item(tail % self.capacity)) % self.num_rows
        return max(row - self.window, 0)

    @property
    def first_row(self) -> int:
        """Number of the oldest observation that is still in the observation ring."""
        return max(self.lost_rows, self.rows_head - self.num_rows)

    def _grow_rows(self, needed: int, num_steps: int) -> None:
        """Replace the observation ring by a larger one, as needed if many short episodes begin."""
        expected = needed * self.capacity // max(num_steps, 1)
        size = max(needed, min(expected, 2 * self.capacity + self.window)) + self.capacity // 64 + 1
        first, old = self.first_row, self._observations
        new = None if old is None else old.resized(size, first, self.rows_head, self.allocator)
        count = min(self.head, self.capacity)
        rows = [
            numbers_at(array[:count].astype(np.int64), self.rows_head, self.num_rows) % size
            for array in (self.links.row, self.links.next_row)
        ]
        if self.resume_point is not None:
            names = [] if new is None else new.file_names
            self.resume_point.before_move(names, {"num_rows": size, "lost_rows": first}, rows)
        self._run(partial(self._put_rows, new, size, first, rows))
        if old is not None:
            self.allocator.remove(old.file_names)

    def _put_rows(self, observations: TrackRing | None, num_rows: int, first: int, rows: list[np.ndarray]) -> None:
        """Install a larger observation ring of `num_rows` rows, and the links `rows` from the steps to the new rows.
        `first` is the number of the oldest row that is stored.
        """
        self.links.put_rows(*rows)
        self.links.pad_with(num_rows)
        self._observations = observations
        if self.infos.num_rows != num_rows:
            self.infos = self.infos.resized(num_rows, first, self.rows_head)
        self.lost_rows, self.num_rows = first, num_rows

    # --- writing -----------------------------------------------------------------------------------------------

    def write(self, addition: Addition) -> None:
        """Execute the planned writes `addition` on the ring's arrays. Executing them twice has the same result."""
        reservation, block, rows_head, num_steps = (
            addition.reservation,
            addition.block,
            addition.reservation.rows_head,
            0,
        )
        if self.resume_point is not None:
            self.resume_point.before_write(reservation.tail)
        if len(reservation.first):
            self.links.previous[reservation.first] = reservation.first
            self.table.first[reservation.entries] = reservation.first
            if self.table.lookbacks:
                self.table.drop_lookbacks(reservation.entries)
        self.table.apply(addition.episodes)
        if self.log is not None:
            self.log.name(self.table, addition.episodes)
        if block is not None:
            self._write_block(reservation, block)
            num_steps, rows_head = block.links.shape[1], rows_head + block.num_rows
        if addition.newest is not None:
            entries, slots = addition.newest
            self.table.last[entries] = slots
        self.tail, self.head, self.rows_head = reservation.tail, reservation.head + num_steps, rows_head
        self.kept_from = reservation.kept_from

    def _write_block(self, reservation: Reservation, block: Block) -> None:
        """Write the observations, infos, steps and links of a block to the ring positions in `reservation`."""
        self.observations.write(reservation.rows_head, block.observations, block.observation_rows)
        if self.infos:
            self.infos.drop_before(max(self.lost_rows, reservation.rows_head + block.num_rows - self.num_rows))
        self.infos.append(reservation.rows_head, block.infos)
        if not block.links.shape[1]:
            return
        start = reservation.head % self.capacity
        for name, items in block.tracks.items():
            if name != REWARDS or self._word is None:
                self.tracks[name].write(start, items, block.step_rows)
        self._write_endings(start, block)
        if self.rewards_are_finite:
            self.rewards_are_finite = _are_finite(block.tracks[REWARDS])
        self.versions.write(start, block.links.shape[1], block.versions)
        self.links.append(start, block.links)
        if self.log is not None:
            self.log.write(reservation.head, self.table.serials[block.links[ENTRY]], block.links[T])
        if self.beside is not None:
            source = self.observations.items
            put(self.beside[0].items, self.capacity, start, source.take(block.links[ROW], mode=UNCHECKED))
            put(self.beside[1].items, self.capacity, start, source.take(block.links[NEXT_ROW], mode=UNCHECKED))

    def _write_endings(self, start: int, block: Block) -> None:
        """Write the terminated and truncated flags of new steps.

        Rewards are written too if they share a 64-bit word with the flags.
        """
        if self._word is not None:
            rewards = block.tracks[REWARDS].astype(np.float32, copy=False)
            self._word.write(start, rewards.view(np.uint32), block.step_rows)
        for name, steps in block.endings.items():
            flags = self.track(name)
            if self._word is None:
                put(flags, self.capacity, start, np.broadcast_to(False, block.links.shape[1]))
            if len(steps):
                flags[(start + steps) % self.capacity] = True

    def end_at(self, slots: np.ndarray, flags: dict[str, np.ndarray]) -> None:
        """Set the ending flags of stored steps, bool [n] by name, at the ring positions `slots` [n]."""
        self._run(partial(self._put_flags, slots, flags))

    def _put_flags(self, slots: np.ndarray, flags: dict[str, np.ndarray]) -> None:
        for name, values in flags.items():
            self.track(name)[slots] = values

    def copy_observations_into_records(self) -> None:
        """Copy each step's two observations into its record, so that sampling reads them from the same cache line."""
        if self.beside is not None:
            slots = positions(self.tail, len(self), self.capacity)
            for ring, rows in zip(self.beside, (self.links.row, self.links.next_row), strict=True):
                ring.items[slots] = self.observations.items[rows[slots]]

    # --- reading -----------------------------------------------------------------------------------------------

    def slot_numbers(self, slots: np.ndarray) -> np.ndarray:
        """Return the step indices (running counts) of the steps at the ring positions `slots`."""
        return numbers_at(slots, self.head, self.capacity)

    def row_numbers(self, rows: np.ndarray) -> np.ndarray:
        """Return the numbers (running counts) of the observations at the positions `rows` of the observation ring."""
        return numbers_at(rows, self.rows_head, self.num_rows)

    def infos_at(self, rows: np.ndarray) -> Infos:
        """Return the infos of the observations at the positions `rows` [n] of the observation ring."""
        infos = self.infos.at(self.rows_head, rows)
        return infos_of(infos.dicts()) if infos.holds_objects else infos

    def t_next(self, entries: np.ndarray) -> np.ndarray:
        """Return the time of the next step of each of the episodes in the table rows `entries` [n]."""
        return self.links.t[self.table.last.take(entries)] + 1

    def have_ended(self, entries: np.ndarray) -> np.ndarray:
        """Return whether the newest stored step ended the episode, for each of the table rows `entries` [n]."""
        last = self.table.last.take(entries)
        return self.track(TERMINATEDS)[last] | self.track(TRUNCATEDS)[last]

    def track(self, name: str) -> Any:
        """Return the ring arrays [capacity + 1, ...] of the time series `name`, such as "rewards"."""
        return self.tracks[name].data


_NOTHING = np.zeros(0, np.int64)


def _are_finite(rewards: np.ndarray) -> bool:
    return bool(np.count_nonzero(np.isfinite(rewards)) == rewards.size)

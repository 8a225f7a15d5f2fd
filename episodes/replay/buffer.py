"""`EpisodeReplayBuffer`: episodes kept and drawn again, at the cost of one gather a track."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from episodes.batch import Batch
from episodes.batch.sampling_checks import (
    INDICES,
    LARGEST_COUNT,
    check_counts,
    check_sample,
    check_sequences,
    checked_keys,
    checked_step_indices,
    is_int,
)
from episodes.columns import Columns
from episodes.errors import EpisodeError, EpisodeStateError, InvalidArgument, StateMismatch, StepOutOfRange
from episodes.pack import EpisodePack
from episodes.replay import link_traversal
from episodes.replay.adding import add_pack, as_sequence
from episodes.replay.link_traversal import Windows
from episodes.replay.locking import locked
from episodes.replay.max_age import sample_recent_steps
from episodes.replay.read_dataset import addable_packs
from episodes.replay.read_episodes import episode_at
from episodes.replay.read_packs import entries_in_order, packs_of
from episodes.replay.replay_history import BoundViews
from episodes.replay.replay_recorder import ReplayRecorder
from episodes.replay.resuming import restore, save
from episodes.replay.ring.episode_table import NONE
from episodes.replay.ring.linked_ring import LinkedRing
from episodes.replay.ring.mapped_files import MappedFiles
from episodes.replay.ring.resume_point import ResumePoint
from episodes.replay.ring.saving import ring_of_state, ring_state
from episodes.replay.ring.track_ring import Allocator, numbers_at
from episodes.replay.ring_columns import KEYS_OF_STEPS, columns_of, n_step_columns, states_before
from episodes.replay.samples_per_insert import SampleCounts, SamplesPerInsert, checked_limit
from episodes.replay.sequence_grid import SequenceGrid
from episodes.replay.stored_outputs import chosen_outputs
from episodes.replay.stored_steps import make_batch
from episodes.single_agent import SingleAgentEpisode
from episodes.storage import EpisodeDataset, EpisodeWriter
from episodes.storage.header import read_header
from episodes.tracks.filling import ones
from episodes.tracks.notebook_repr import notebook_repr
from episodes.tracks.policy_box import check_same_units
from episodes.tracks.validation import checked_count, checked_flag, checked_generator, checked_path, checked_space

_PACK_STEPS = 1 << 16
_INDEX = np.dtype(np.int64)
MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)
"""Errors that reading a state may raise that `get_state` did not return."""


class EpisodeReplayBuffer(SampleCounts):
    """Holds the newest `capacity` steps of the episodes and chunks that are added, and draws from them uniformly.

    Steps lie in rings, in order of arrival; an observation is stored once, whoever refers to it (one of at most 16
    bytes lies beside its steps as well, for faster draws). When the buffer is full the oldest steps make way: an
    episode that loses its beginning goes on as a chunk with a later `t_started`. A chunk continues its episode by `id_`
    and `t_started`, however short it is.

    One thread may add while others draw and set priorities: each call holds `lock`, so that no row mixes two steps.
    What takes several calls holds it itself (`with buffer.lock:`): going through the episodes, or reading those that
    `sample_episodes` gives as views. A call that is broken off, by Ctrl-C or for want of memory, has added all or
    nothing.

    Args:
        capacity: in steps.
        seed: of the one generator that every draw uses.
        path: a directory for memory-mapped files, for what does not fit into memory; in memory when None.
        resume: whether to go on with what `flush` left at `path`, if anything; also after a kill.
        limit: how often a step is drawn, for loops that ask `may_sample` and `may_add`; draws themselves never wait.
        lineage: of how many of the newest steps origins know episode and time, there or evicted; 16 bytes each.

    Attributes:
        lock: held by every call; it may be taken again by the thread that has it.
        num_sampled: how many steps were ever drawn to learn from.

    >>> buffer = EpisodeReplayBuffer(1000, seed=0)
    >>> buffer.add([SingleAgentEpisode.from_arrays(np.arange(4.0), [0, 1, 0], [1.0, 1.0, 1.0], terminated=True)])
    >>> batch = buffer.sample(32, n_step=2)
    >>> len(buffer), batch.obs.shape, sorted(set(batch.n_step.tolist()))
    (3, (32,), [1, 2])
    """

    _repr_html_ = notebook_repr("episodes.inspect.html", "replay")
    period: int | None = None  # the grid of all sequences that are drawn, where there is one

    def __init__(
        self,
        capacity: int = 10_000,
        *,
        seed: int | None = None,
        path: str | Path | None = None,
        resume: bool = False,
        limit: SamplesPerInsert | None = None,
        lineage: int | None = None,
    ) -> None:
        self.capacity = checked_capacity(capacity)
        self.limit, self.generator = checked_limit(limit), checked_generator(seed)
        if lineage is not None:
            check_counts(lineage=lineage)
        self.lineage = lineage
        self._path = checked_path(path)
        if checked_flag("resume", resume) and path is None:
            raise InvalidArgument("resume=True without a path; give the path that the buffer had")
        self._grids: dict[int, SequenceGrid] = {}
        self._written: dict[str, int] = {}  # by data set, the number after that of the last step in it
        self._spaces: tuple[Any, ...] = (None, None)
        files = None if path is None else MappedFiles(Path(path))
        self._ring = LinkedRing(self.capacity, Allocator(files))
        self.lock = self._ring.lock
        self._start_empty()
        if files is not None:
            self._ring.resume_point = point = ResumePoint(files)
            try:
                if resume:
                    restore(self._ring, point, self._set_saved_rest)
            except BaseException:
                files.close()
                raise
        self._ring.keep_log(lineage)

    def _start_empty(self) -> None:
        """Create what goes with an empty ring."""

    def close(self) -> None:
        """Release the memory, the mapped files and their lock. All later calls raise `EpisodeStateError`.

        Steps that were added after the last `flush` are not there when the files are opened again.
        """
        with self.lock:
            self._ring.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        """The number of steps that are there."""
        return len(self.get_ring())

    def __repr__(self) -> str:
        if self._ring.is_closed:
            return f"{type(self).__name__}(closed)"
        return (
            f"{type(self).__name__}({len(self)} of {self.capacity} steps, {self.num_episodes} episodes, "
            f"{self.nbytes} bytes; {self.counts})"
        )

    def get_ring(self) -> LinkedRing:
        """Return the ring of steps. Staged rows are written to it first."""
        ring = self._ring
        if ring.work is not None or ring.staged is not None:
            with ring.lock:
                ring.flush_staged()
        return ring

    @property
    def num_episodes(self) -> int:
        """The number of episodes that have steps here."""
        return len(self.get_ring().table)

    @property
    def num_added(self) -> int:
        """The number of steps ever added."""
        ring = self.get_ring()
        return ring.head - ring.skipped

    @property
    def action_space(self) -> spaces.Space | None:
        """Space of the stored actions, None if no added episode had one."""
        return self._spaces[1]

    @property
    def nbytes(self) -> int:
        """Bytes of all tracks and links."""
        return self.get_ring().nbytes

    @locked
    def add(
        self, episodes: SingleAgentEpisode | Sequence[SingleAgentEpisode], *, keys: Collection[str] | None = None
    ) -> None:
        """Add episodes, chunks, one of them, or a pack. Their lookbacks are not stored: they are of earlier chunks.

        Of an episode longer than the capacity, the last steps are kept. Chunks of an episode come in order; one whose
        predecessor is no longer there begins anew at its `t_started`.

        Args:
            keys: the extra model outputs that are stored; all by default.

        Raises:
            ChunkMismatch: a chunk does not begin where its episode stops.
            TrackMismatch, ShapeMismatch: items are of another kind than those stored. The buffer stays as it was.
            UnknownKey: an extra model output that there is not.
            WrongType: what is added is none of these.
        """
        given = as_sequence(episodes, SingleAgentEpisode)
        if not len(given):
            return
        pack = EpisodePack.from_episodes(given)
        if keys is not None:
            pack = pack.replace(extra_model_outputs=chosen_outputs(pack.extra_model_outputs, keys))
        check_same_units(self._spaces[1], pack.action_space, "EpisodeReplayBuffer.add")
        add_pack(self.get_ring(), pack)
        self._spaces = tuple(map(_known, self._spaces, (pack.observation_space, pack.action_space)))

    @locked
    def recorder(
        self,
        num_envs: int,
        *,
        autoreset_mode: AutoresetMode | str,
        observation_space: spaces.Space | None = None,
        action_space: spaces.Space | None = None,
        len_lookback_buffer: int = 0,
        keys: Collection[str] | None = None,
    ) -> ReplayRecorder:
        """A recorder that writes the rows of a vector environment straight into this buffer.

        Args:
            observation_space, action_space: of one environment; observations and actions get their dtypes.
            len_lookback_buffer: how far back the newest rows are at hand, for who acts on them.
            keys: the extra model outputs that are stored; all by default.
        """
        options: dict[str, Any] = {"len_lookback_buffer": len_lookback_buffer, "keys": keys}
        recorder = ReplayRecorder(self.get_ring(), num_envs, autoreset_mode, observation_space, action_space, **options)
        check_same_units(self._spaces[1], action_space, "EpisodeReplayBuffer.recorder")
        self._spaces = tuple(map(_known, self._spaces, (observation_space, action_space)))
        return recorder

    @locked
    def clear(self) -> None:
        """Drop all steps. The tracks that the buffer stores stay, and so does the generator's state."""
        self._ring.clear()
        self._start_empty()

    # --- draws -------------------------------------------------------------------------------------------------

    def sample(
        self,
        n: int,
        *,
        n_step: int | tuple[int, int] = 1,
        gamma: float = 0.99,
        views: BoundViews | None = None,
        include_infos: bool | Literal["columns"] = False,
        keys: Sequence[str] | None = None,
        max_age: int | None = None,
    ) -> Batch:
        """`n` transitions, each stored step equally likely: a `Batch` of columns [n, ...].

        Args:
            n_step: rewards are discounted sums of up to n steps of the episode, `new_obs` and the endings are those
                after the last of them, and the column `n_step` [n] says how many they are. Near an ending they are
                fewer; bootstrap with gamma ** n_step unless `terminateds`. With `(1, 5)`, each row draws its own n of
                1, 2, 3, 4 and 5, all equally likely.
            views: what the module sees of the observations, such as `runner.env_to_module.views`: instead of `obs` and
                `new_obs` there are all columns that they make, and a `new_<column>` of each.
            keys: which columns, of `obs`, `new_obs`, `actions`, `rewards`, `terminateds`, `truncateds` (the default),
                the extra model outputs, `infos`, `t`, `policy_version` (-1: unknown), `is_first`, `eps_id`, `agent_id`
                and `module_id`.
            include_infos: the infos that came with `new_obs`: a dict for each row, or with "columns" at the speed of
                columns, as vector environments have them: `batch.infos["energy"]` [n] (of nested keys "log/loss"),
                zeros where `batch.infos["_energy"]` [n] is False.
            max_age: of steps that a policy made which is at most so many versions older than the newest.

        `indices` are step numbers: they stay those of these steps. `weights` are 1. Errors: `EpisodeStateError` when
        nothing is stored, `UnknownKey` for a column that there is not.
        """
        with self.lock:  # here, for a decorator hands arguments on: that takes longer than the lock itself
            is_plain = type(n) is int and type(gamma) is float and max_age is None
            if not (
                is_plain
                and type(n_step) is int
                and 0 < n <= LARGEST_COUNT
                and 0 < n_step <= LARGEST_COUNT
                and 0 <= gamma <= 1
            ):
                check_sample(n, n_step, gamma, max_age)
            keys = checked_keys(keys, include_infos, self.get_ring().tracks, KEYS_OF_STEPS)
            if max_age is None:
                slots, weights = self._draw(n)
            else:
                slots, weights = sample_recent_steps(self._ring, self._draw, n, max_age, self.generator)
            batch = self._transitions(slots, weights, n_step, gamma, views, keys)
            self.num_sampled += n
            return batch

    def checked_sample_keys(
        self,
        n: int,
        n_step: int | tuple[int, int] = 1,
        gamma: float = 0.99,
        include_infos: bool | Literal["columns"] = False,
        keys: Sequence[str] | None = None,
        max_age: int | None = None,
    ) -> Sequence[str]:
        """Check arguments of `sample`, and return the names of the columns to sample."""
        check_sample(n, n_step, gamma, max_age)
        return checked_keys(keys, include_infos, self.get_ring().tracks, KEYS_OF_STEPS)

    @locked
    def at(
        self,
        indices: np.ndarray,
        *,
        n_step: int | tuple[int, int] = 1,
        gamma: float = 0.99,
        views: BoundViews | None = None,
        include_infos: bool | Literal["columns"] = False,
        keys: Sequence[str] | None = None,
    ) -> Batch:
        """The transitions of the steps with these numbers [n], as `sample` gives them; zeros in tracks where it is -1.

        Raises:
            StepOutOfRange: a step is not there.
        """
        keys = self.checked_sample_keys(1, n_step, gamma, include_infos, keys)
        indices = checked_step_indices(indices, ndim=1)
        ring = self._ring
        if not ring.tracks:
            raise self.empty_error()
        gone = (indices != NONE) & ((indices < ring.tail) | (indices >= ring.head))
        if gone.any():
            span = f"{ring.tail}..{ring.head - 1}" if len(ring) else "none"
            raise StepOutOfRange(f"step {int(indices[gone][0])}: the steps that are there have numbers {span}")
        slots = np.where(indices == NONE, self.capacity, indices % self.capacity)
        weights = np.ones(len(slots), np.float32)
        batch = self._transitions(slots, weights, n_step, gamma, views, keys)
        batch[INDICES][indices == NONE] = NONE
        return batch

    def _draw(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Positions [n] of drawn steps, and their importance weights."""
        tail = self._ring.tail
        size = self._ring.head - tail
        if not size:
            raise self.empty_error()
        slots = (self.generator.random(n) * float(size)).astype(_INDEX)
        if size < self.capacity and (first := tail % self.capacity):
            slots = (slots + first) % self.capacity  # the oldest were evicted before there was need to
        return slots, ones(n, np.float32)

    def _draw_from_grid(self, n: int, period: int) -> tuple[np.ndarray, np.ndarray]:
        """As `_draw`, of the steps at which the sequences of a grid begin."""
        if not len(self._ring):
            raise self.empty_error()
        begins = self._grids.setdefault(period, SequenceGrid(period)).stored_starts(self._ring)
        if not len(begins):
            raise self._no_sequence()
        picked = begins[(self.generator.random(n) * len(begins)).astype(np.int64)]
        return picked % self.capacity, ones(n, np.float32)

    def empty_error(self) -> EpisodeStateError:
        return EpisodeStateError("nothing is stored to draw from; add(episodes) first")

    def _no_sequence(self) -> EpisodeStateError:
        return EpisodeStateError(
            "no stored step has a `t` at which a sequence begins; add more, or give another period"
        )

    def _transitions(
        self,
        slots: np.ndarray,
        weights: np.ndarray,
        n_step: int | tuple[int, int],
        gamma: float,
        views: BoundViews | None,
        keys: Sequence[str],
    ) -> Batch:
        ring = self._ring
        if n_step == 1:
            columns = columns_of(ring, keys, slots, slots, views=views)
            columns[Columns.N_STEP] = ones(len(slots), np.int32)
        else:
            most = n_step if not isinstance(n_step, tuple) else self._random_steps(n_step, len(slots))
            last, sums = n_step_columns(ring, slots, most, gamma)
            columns = columns_of(ring, keys, slots, last, sums, views)
            columns[Columns.N_STEP] = sums[Columns.N_STEP]
        columns[Columns.WEIGHTS] = weights
        columns[INDICES] = indices = numbers_at(slots, ring.head, ring.capacity)
        return make_batch(columns, ring, indices)

    def _random_steps(self, bounds: tuple[int, int], n: int) -> np.ndarray:
        return self.generator.integers(bounds[0], bounds[1], n, endpoint=True)

    @locked
    def sample_sequences(
        self,
        batch_size: int,
        length: int,
        *,
        burn_in: int = 0,
        lookback: int = 0,
        boundary: str = "pad",
        period: int | None = None,
        views: BoundViews | None = None,
        keys: Sequence[str] | None = None,
        include_infos: bool | Literal["columns"] = False,
    ) -> Batch:
        """Sequences of successive steps, zero-padded: a `Batch` of columns [B, W, ...].

        W is lookback + burn_in + length, and learning begins at column lookback + burn_in of every row. Each stored
        step is equally likely to stand there. A sequence never leaves its episode.

        Args:
            burn_in: so many columns on the left, of the steps before, to warm up a recurrent state; `loss_mask` is
                False on them, and they are zeros where the episode begins later.
            lookback: so many columns more, left of those, for context.
            boundary: what happens where an episode ends too soon: `"pad"` leaves the sequence shorter. `"stop"` moves
                it back so that it stops with the episode, and is shorter only where the episode is; so the last whole
                sequence of an episode is drawn `length` times as often as each one before it.
            period: sequences begin only where `t` is a multiple of it, each of these steps equally likely: the fixed
                grid of R2D2, whose neighbours overlap by length - period steps.
            views: as `sample` takes them.

        `loss_mask` [B, W] is True on the steps to learn from, `is_first` [B, W] on the first step of an episode (or
        of what is left of it): a recurrent state is zeros before it. `seq_lens` [B] counts the columns from column
        `lookback` to the last step. `indices` [B, W] are step numbers (-1 on padding), `weights` is [B]. If there is
        a `state_out`, `state_in` [B, ...] is that of the step before column `lookback`, zeros where there is none.
        """
        period = self.period if period is None else period
        check_sequences(batch_size, length, burn_in, lookback, boundary, period)
        keys = checked_keys(keys, include_infos, self.get_ring().tracks, KEYS_OF_STEPS)
        begins, weights = self._draw(batch_size) if period is None else self._draw_from_grid(batch_size, period)
        slots, extents = begins, link_traversal.extents(self._ring, begins)
        if boundary == "stop":
            slots, extents = link_traversal.shift_starts_back(self._ring.links, slots, extents, length)
        found = link_traversal.windows(self._ring.links, slots, extents, length, lookback + burn_in)
        columns = self._sequences(found, lookback, views, keys)
        columns[Columns.IS_FIRST] = found.first
        columns[Columns.WEIGHTS] = weights
        indices = columns[INDICES]
        columns[INDICES] = self._sequence_indices(begins, indices)
        self.num_sampled += int(np.count_nonzero(found.learned))
        return make_batch(columns, self._ring, indices)

    def _sequence_indices(self, begins: np.ndarray, window: np.ndarray) -> np.ndarray:
        """The column `indices`, of the positions of the drawn steps [B] and the numbers of all steps [B, W]."""
        return window

    def _sequences(
        self, found: Windows, lookback: int, views: BoundViews | None, keys: Sequence[str]
    ) -> dict[str, Any]:
        ring, slots = self._ring, found.slots
        columns = columns_of(ring, keys, slots, slots, views=views)
        indices = ring.slot_numbers(slots)
        np.copyto(indices, NONE, where=found.padding)
        columns[Columns.LOSS_MASK] = found.learned
        columns[Columns.SEQ_LENS] = found.stops - lookback if lookback else found.stops
        columns[INDICES] = indices
        if Columns.STATE_OUT in ring.tracks:
            columns[Columns.STATE_IN] = states_before(ring, slots[:, lookback])
        return columns

    # --- whole episodes ----------------------------------------------------------------------------------------

    @locked
    def sample_episodes(self, n: int) -> list[SingleAgentEpisode]:
        """`n` of the stored episodes, each equally likely, with repetition; of each, the steps that are there.

        Episodes whose steps lie in a row are views: nothing is copied, and they show what is stored there now, so
        read them before their steps are evicted, or copy them. The others are gathered.
        """
        check_counts(n=n)
        order = self.get_ring().table.order
        if not len(order):
            raise self.empty_error()
        picked = (self.generator.random(n) * len(order)).astype(np.int64)
        episodes = [self._episode(entry) for entry in order[picked].tolist()]
        self.num_sampled += sum(map(len, episodes))
        return episodes

    def iter_episodes(self) -> Iterator[SingleAgentEpisode]:
        """All stored episodes, the one with the oldest step first; views where `sample_episodes` gives views."""
        for entry in entries_in_order(self.get_ring()).tolist():
            yield self._episode(entry)

    def iter_packs(self, num_steps: int = _PACK_STEPS) -> Iterator[EpisodePack]:
        """All stored episodes as packs of at most `num_steps` steps (an episode that is longer has one of its own).

        The episode with the oldest step comes first. The packs are copies: they stay as they are when steps are
        evicted.
        """
        check_counts(num_steps=num_steps)
        return packs_of(self.get_ring(), self._spaces, num_steps)

    @locked
    def to_dataset(self, path: str | Path | EpisodeWriter) -> None:
        """Write what is stored to a data set on disk, new or there already, or by a writer that is open.

        Called again for the same data set, it appends the steps that came since: a snapshot now and then is the usual
        way to save. What is stored of an episode is one chunk: one that lost its beginning has a later `t_started`,
        one that goes on is cut, and the next snapshot goes on with it. Steps that are evicted between two snapshots
        are in neither. The buffer stays as it is. Errors: those of `EpisodeWriter` and its `add`.
        """
        folder = path.path if isinstance(path, EpisodeWriter) else Path(path)
        first = self._written.get(_place(folder), 0) if read_header(folder) is not None else 0
        with nullcontext(path) if isinstance(path, EpisodeWriter) else EpisodeWriter(path) as writer:
            for pack in packs_of(self.get_ring(), self._spaces, _PACK_STEPS, first):
                writer.add(pack)
            writer.flush()
        self._written[_place(folder)] = self.get_ring().head

    @classmethod
    def from_dataset(
        cls,
        dataset: EpisodeDataset | str | Path,
        capacity: int | None = None,
        *,
        seed: int | None = None,
        **options: Any,
    ) -> Self:
        """A buffer of the episodes of a data set (or of its path), added in order: also of many snapshots of a buffer.

        Room is for all of their steps unless a `capacity` is given; if it is smaller, the last ones stay. `to_dataset`
        of the buffer to the same path appends what is added afterwards. Errors: `InvalidArgument` for episodes without
        a step and no capacity; those of `add`.

        Args:
            options: what else the class takes: `alpha`, `beta`, `unit`, `limit`, ...
        """
        episodes = dataset if isinstance(dataset, EpisodeDataset) else EpisodeDataset(dataset)
        if capacity is None and not episodes.num_steps:
            raise InvalidArgument(f"{episodes!r} has no steps; give the buffer's capacity")
        buffer = cls(episodes.num_steps if capacity is None else capacity, seed=seed, **options)
        try:
            for pack in episodes.packs():
                for chunks in addable_packs(buffer.get_ring(), pack):
                    buffer.add(chunks)
        except BaseException:
            buffer.close()
            raise
        buffer._written[_place(episodes.path)] = buffer.get_ring().head
        return buffer

    def _episode(self, entry: int) -> SingleAgentEpisode:
        return episode_at(self.get_ring(), entry, *self._spaces)

    # --- state -------------------------------------------------------------------------------------------------

    @locked
    def get_state(self) -> dict[str, Any]:
        """Everything that is stored and the generator's state, as a dict of plain values and arrays of its own."""
        return {"ring": ring_state(self.get_ring()), **self._rest_of_state()}

    def _rest_of_state(self) -> dict[str, Any]:
        return {
            "generator": self.generator.bit_generator.state,
            "spaces": self._spaces,
            "num_sampled": self.num_sampled,
            "written": dict(self._written),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on, bit for bit, where `get_state` was called. When that cannot be, the buffer stays as it was.

        Raises:
            InvalidArgument: another capacity.
            StateMismatch: the state of a buffer with priorities, in one without, or the other way round.
        """
        with self.lock:
            ring = self._ring
            point, names = ring.resume_point, ring.allocator.names
            try:
                self._check_kind(state)
                rest = self._checked_rest(state)
                restored = ring_of_state(ring, state["ring"])
            except BaseException as error:
                ring.allocator.remove_all_but(names)
                if isinstance(error, MALFORMED) and not isinstance(error, EpisodeError):
                    raise StateMismatch(
                        f"no state of a {type(self).__name__} ({error!r}); give what get_state returned"
                    ) from error
                raise
            if point is not None:
                point.forget()
            ring.replace_contents(restored)
            self._set_rest(rest)
            ring.allocator.remove(names)

    def _check_kind(self, state: dict[str, Any]) -> None:
        if "priorities" in state:
            raise StateMismatch("a state with priorities; restore it into a PrioritizedEpisodeReplayBuffer")

    def _checked_rest(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the attributes that a state has beside the ring. Nothing is changed yet."""
        generator = deepcopy(self.generator)
        generator.bit_generator.state = state["generator"]
        observation_space, action_space = state["spaces"]
        return {
            "generator": generator.bit_generator.state,
            "_spaces": (
                checked_space("observation_space", observation_space),
                checked_space("action_space", action_space),
            ),
            "num_sampled": checked_count("num_sampled", state["num_sampled"], 0),
            "_written": dict(state["written"]),
        }

    def _set_rest(self, rest: dict[str, Any]) -> None:
        """Take over what `_checked_rest` returned. The generator stays the same object: modules may share it."""
        self.generator.bit_generator.state = rest["generator"]
        self.__dict__.update({name: value for name, value in rest.items() if name != "generator"})

    def _set_saved_rest(self, state: dict[str, Any]) -> None:
        self._check_kind(state)
        self._set_rest(self._checked_rest(state))

    @locked
    def flush(self) -> None:
        """Let a buffer that is made with this `path` and `resume=True` go on from here, also after a kill.

        The tracks are in the mapped files anyway; what is written is all else: a few milliseconds, and more with many
        infos. Steps that come later and are not flushed are not there then, nor those that they took the place of.

        Raises:
            EpisodeStateError: a buffer without a path.
            WrongType: names the info or the custom data that msgpack cannot hold.
        """
        ring = self.get_ring()
        if ring.resume_point is None:
            raise EpisodeStateError("this buffer has no files; give it a path, or use get_state or to_dataset")
        save(ring, ring.resume_point, self._rest_of_state())

    def __getstate__(self) -> dict[str, Any]:
        """What is copied and pickled. A copy lies in memory; recorders go on with the buffer that they were made by."""
        without = {"_ring": None, "lock": None, "_path": None, "generator": None, "_grids": {}}
        return {**self.__dict__, **without, "_state": self.get_state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        own = state.pop("_state")
        self.__dict__.update(state)
        self._ring = LinkedRing(self.capacity, Allocator(None))
        self.lock = self._ring.lock
        self.generator = np.random.default_rng()
        self._ring.keep_log(self.lineage)
        self.set_state(own)


def checked_capacity(capacity: Any) -> int:
    """Return the capacity as an int. `InvalidArgument` unless it is an int of at least 1."""
    if not is_int(capacity) or capacity < 1:
        raise InvalidArgument(f"capacity={capacity!r}: give an int, a buffer needs room for at least one step")
    return int(capacity)


def _known(before: Any, now: Any) -> Any:
    """The space that is known now, or the one before: a space may have a length, so its truth says nothing."""
    return before if now is None else now


def _place(path: Path | str) -> str:
    """What tells a directory, or the URL of one, from others."""
    return str(path.absolute() if isinstance(path, Path) else path)

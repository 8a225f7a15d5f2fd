"""`EpisodeReplayBuffer`: stores episodes, and samples transitions, sequences, chunks or whole episodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import nullcontext
from copy import deepcopy
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, Self

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from episodes.batch import Batch
from episodes.batch.sampling_checks import (
    INDICES,
    check_counts,
    check_sample,
    check_sequences,
    checked_step_indices,
    is_int,
    reach_of,
    unknown_steps,
)
from episodes.columns import Columns
from episodes.draws.columns import checked_keys, transition_columns, window_columns
from episodes.errors import (
    ChunkMismatch,
    EpisodeStateError,
    InvalidArgument,
    StateMismatch,
    StepOutOfRange,
    WrongType,
)
from episodes.format_versions import REPLAY_STATE, check_version
from episodes.history import BoundViews
from episodes.pack import EpisodePack
from episodes.replay import link_traversal
from episodes.replay.adding import add_pack, as_sequence, check_rows
from episodes.replay.context_steps import ADVICE, are_complete
from episodes.replay.draw_steps import conditions, draw_steps
from episodes.replay.locking import locked
from episodes.replay.read_dataset import addable_packs, in_episode_order, late_endings, without_stored
from episodes.replay.read_episodes import episode_at
from episodes.replay.read_packs import episodes_of, packs_of
from episodes.replay.replay_recorder import ReplayRecorder
from episodes.replay.resuming import restore, save
from episodes.replay.ring.episode_table import NONE
from episodes.replay.ring.linked_ring import LinkedRing
from episodes.replay.ring.mapped_files import MappedFiles
from episodes.replay.ring.resume_point import ResumePoint
from episodes.replay.ring.saving import ring_of_state, ring_state
from episodes.replay.ring.track_ring import Allocator, numbers_at, positions
from episodes.replay.ring_draw import RingSteps, RingWindows
from episodes.replay.samples_per_insert import SampleCounts, SamplesPerInsert, checked_limit
from episodes.replay.sequence_grid import SequenceGrid
from episodes.replay.stored_outputs import checked_output_names, chosen_outputs, output_names
from episodes.replay.stored_steps import make_batch
from episodes.single_agent import SingleAgentEpisode
from episodes.storage import EpisodeDataset, EpisodeWriter
from episodes.storage.files import local_path
from episodes.storage.header import read_header
from episodes.tracks.filling import ones
from episodes.tracks.notebook_repr import notebook_repr
from episodes.tracks.policy_box import check_same_units
from episodes.tracks.validation import (
    checked_count,
    checked_flag,
    checked_generator,
    checked_path,
    checked_space,
    reading_state,
)

if TYPE_CHECKING:
    from episodes.data_types import Space

_PACK_STEPS = 1 << 16


class ChunkSample(NamedTuple):
    """Result of `sample_chunks`: a pack of episode parts, the index of each step, and importance weights.

    Attributes:
        pack: the chunks.
        indices: step index of the step at which each was sampled, int64 [n], for `update_priorities`.
        weights: importance weights, float32 [n].
    """

    pack: EpisodePack
    indices: np.ndarray
    weights: np.ndarray


_INDEX = np.dtype(np.int64)


class EpisodeReplayBuffer(SampleCounts):
    """Replay buffer of the newest `capacity` steps of episodes, with uniform sampling.

    Steps are stored in ring buffers in the order in which they are added. Each observation is stored once, although two
    transitions refer to it (observations of at most 16 bytes are also copied next to their steps, which makes sampling
    faster). When the buffer is full, the oldest steps are evicted. An episode that loses its beginning remains as a
    chunk with a later `t_started`. A chunk continues the episode with its `id_`, even if it has one step only.

    One thread may add steps while others sample and set priorities. Each call holds `lock`, so that no sampled row
    mixes two steps. Samples, episodes and packs own their arrays: later steps do not change them. Hold the lock
    yourself (`with buffer.lock:`) around several calls that belong together. A call that raises an error changes
    nothing. If Ctrl-C or a lack of memory interrupts a call, the buffer stays usable.

    Args:
        capacity: maximum number of steps.
        seed: seed of the random generator. None for a random seed.
        path: directory for memory-mapped files, for buffers that do not fit into memory. None to store steps in memory.
            A directory belongs to one buffer at a time: it is locked until `close`.
        resume: whether to continue with the steps that `flush` saved in `path`, if any. This also works if the process
            was killed.
        limit: limits how often steps are sampled, by `may_sample` and `may_add`. Sampling itself never waits.
        lineage: number of newest steps, stored or evicted, for which `batch.origin` returns episode and time. It costs
            16 bytes per step. None for stored steps only.

    Attributes:
        lock: reentrant lock that every call holds.
        num_sampled: number of steps sampled so far.

    Raises:
        InvalidArgument: an argument is out of range, another buffer uses `path`, it has saved steps and `resume` is
            False, they were saved with another capacity, or `resume` is True without a `path`.
        UnreadableData: the files in `path` are damaged.
        StateMismatch: the files in `path` were saved by a buffer of another class.
        WrongType: `resume`, `path` or `limit` has another type.

    >>> buffer = EpisodeReplayBuffer(1000, seed=0)
    >>> buffer.add([SingleAgentEpisode.from_arrays(np.arange(4.0), [0, 1, 0], [1.0, 1.0, 1.0], terminated=True)])
    >>> batch = buffer.sample(32, n_step=2)
    >>> len(buffer), batch.obs.shape, sorted(set(batch.n_step.tolist()))
    (3, (32,), [1, 2])
    """

    _repr_html_ = notebook_repr("episodes.inspect.html", "replay")
    unit = "transition"  # what a priority belongs to, and the grid of all sequences: of a prioritized buffer
    period: int | None = None

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
        self._written: dict[str, int] = {}  # by data set, the step index after the last step in it
        self._spaces: tuple[Any, ...] = (None, None)
        files = None if path is None else MappedFiles(local_path(path))
        self._ring = LinkedRing(self.capacity, Allocator(files))
        self.lock = self._ring.lock
        self._start_empty()
        if files is not None:
            self._ring.resume_point = point = ResumePoint(files)
            try:
                if resume:
                    restore(self._ring, point, self._set_saved_rest)
                else:
                    point.check_absent()
            except BaseException:
                files.close()
                raise
        self._ring.keep_log(lineage)

    def _start_empty(self) -> None:
        """Reset what subclasses store in addition to the steps, such as priorities, when the buffer becomes empty. It
        is called at construction and by `clear`.
        """

    def close(self) -> None:
        """Close the buffer: release its memory, and close and unlock its memory-mapped files.

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
        """Return the number of stored steps."""
        return len(self.flush_ring())

    def __getitem__(self, index: object) -> NoReturn:
        """Raise `WrongType`: a step is sampled. torch's `DataLoader(buffer)` calls this method."""
        raise WrongType(
            f"{type(self).__name__}[{index!r}]: a buffer is sampled; call sample(), or iter_episodes() for its episodes"
        )

    def __repr__(self) -> str:
        if self._ring.is_closed:
            return f"{type(self).__name__}(closed)"
        return (
            f"{type(self).__name__}({len(self)} of {self.capacity} steps, {self.num_episodes} episodes, "
            f"{self.nbytes} bytes; {self.counts})"
        )

    def flush_ring(self) -> LinkedRing:
        """Write the steps that recorders still hold in memory into the ring of stored steps, and return the ring."""
        ring = self._ring
        if ring.work is not None or ring.staged is not None:
            with ring.lock:
                ring.flush_staged()
        return ring

    @property
    def num_episodes(self) -> int:
        """Number of episodes that have at least one stored step."""
        return len(self.flush_ring().table)

    @property
    def num_added(self) -> int:
        """Number of steps added since the buffer was created, evicted steps included."""
        ring = self.flush_ring()
        return ring.head - ring.skipped

    @property
    def action_space(self) -> spaces.Space | None:
        """Action space of the stored episodes, or None if it is unknown."""
        return self._spaces[1]

    @locked
    def acting_pipelines(self) -> frozenset[str | None]:
        """Return the preprocessing (rewriters and views) of the stored episodes, as a set of JSON texts.

        It has None if they are unknown for some episode.
        """
        return self.flush_ring().table.acting_pipelines()

    @property
    @locked
    def extra_model_outputs(self) -> tuple[str, ...]:
        """Names of the extra model outputs that the buffer stores."""
        return output_names(self._ring.tracks)  # of staged rows too: their tracks are created before they are staged

    @property
    def nbytes(self) -> int:
        """Memory size in bytes of the arrays of steps and observations, without infos and policy versions."""
        return self.flush_ring().nbytes

    @locked
    def add(
        self, episodes: SingleAgentEpisode | Iterable[SingleAgentEpisode], *, keys: Collection[str] | None = None
    ) -> None:
        """Add an episode, a list of episodes or chunks, or a pack. If the buffer is full, the oldest steps are evicted.

        The last `capacity` steps of longer episodes are stored. Add the chunks of an episode in order. A chunk whose
        earlier steps are evicted starts a new entry. If the steps before a chunk are not stored, its lookback is stored
        as context: views, states and burn-in read it, and it is never sampled, learned from or counted. Episodes with
        ragged tracks are stored whole, from t = 0: add their chunks one after another, or join them.

        A chunk without steps may end its episode: the last stored step gets the ending.

        Args:
            episodes: what to add.
            keys: names of the extra model outputs to store. None: the outputs that the buffer stores already, or all if
                it has no steps yet.

        Raises:
            ChunkMismatch: a chunk does not start where the stored part of its episode stops, or not with the same
                observation, or is of another agent, or that part has ended, or other episodes were added after that
                part and the tracks are ragged.
            InvalidArgument: an episode with ragged tracks has more steps than the buffer.
            TrackMismatch: the episodes have other extra model outputs, dtypes or structures than the stored ones.
            ShapeMismatch: items have other shapes than the stored ones.
            UnknownKey: `keys` names an extra model output that the episodes do not have.
            WrongType: `episodes` is something else.
        """
        episodes_to_add = as_sequence(episodes, SingleAgentEpisode)
        if not len(episodes_to_add):
            return
        pack = EpisodePack.from_episodes(episodes_to_add)
        if keys is None and (stored := self.flush_ring().tracks):
            keys = [name for name in pack.extra_model_outputs if name in stored]
        if keys is not None:
            keys = checked_output_names(keys)
            pack = pack.replace(extra_model_outputs=chosen_outputs(pack.extra_model_outputs, keys))
        check_same_units(self._spaces[1], pack.action_space, "EpisodeReplayBuffer.add")
        add_pack(self.flush_ring(), pack)
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
        """Return a recorder that writes the steps of a vector environment directly into this buffer.

        Args:
            num_envs: number of environments N, at most half the capacity.
            autoreset_mode: how the vector environment resets its environments (`gymnasium.vector.AutoresetMode`).
            observation_space: space of one environment's observations. Its dtypes are stored. None: dtypes of the first
                row.
            action_space: space of one environment's actions, likewise.
            len_lookback_buffer: number of past vector steps that the recorder keeps for views of the newest row.
            keys: names of the extra model outputs to store. None for all.

        Raises:
            InvalidArgument: an argument is out of range.
            TrackMismatch: the buffer's action space has other units than `action_space` (`PolicyBox`), or its steps
                have other outputs than `keys`.
        """
        options: dict[str, Any] = {"len_lookback_buffer": len_lookback_buffer, "keys": keys}
        recorder = ReplayRecorder(
            self.flush_ring(), num_envs, autoreset_mode, observation_space, action_space, **options
        )
        check_same_units(self._spaces[1], action_space, "EpisodeReplayBuffer.recorder")
        self._spaces = tuple(map(_known, self._spaces, (observation_space, action_space)))
        return recorder

    @locked
    def clear(self) -> None:
        """Remove all stored steps.

        The dtypes and shapes of the stored arrays stay fixed, and the random generator keeps its state.
        """
        self._ring.clear()
        self._start_empty()

    # --- sampling ------------------------------------------------------------------------------------------------

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
        """Sample `n` transitions uniformly from all stored steps, as a `Batch` of columns [n, ...].

        With views, only steps are sampled before which all steps that the views read are known. Others lack them since
        their episode's beginning was evicted or never added.

        Args:
            n: number of transitions.
            n_step: number of steps of each transition. `rewards` are discounted sums over these steps; `new_obs`,
                `terminateds` and `truncateds` belong to the last of them. The column `n_step`, int32 [n], has the
                actual number, which is smaller near the end of an episode. Bootstrap with `gamma ** n_step` unless
                `terminateds`. With a tuple (1, 5), each row has a random number from 1 to 5.
            gamma: discount factor.
            views: functions that compute the policy's input columns, for example `runner.env_to_module.views`. The
                batch then has their columns, and "new_<column>" for each, in place of `obs` and `new_obs`.
            include_infos: True adds `infos`, the info dict of each row's `new_obs`. "columns" is faster and adds
                `batch.infos["energy"]` [n] for each key ("log/loss" for nested keys), with zeros where the bool column
                `batch.infos["_energy"]` [n] is False.
            keys: names of the columns. By default `obs`, `new_obs`, `actions`, `rewards`, `terminateds` and
                `truncateds`. Further ones are the names of the extra model outputs, `infos`, `t`, `policy_version` (-1
                if unknown), `is_first`, `eps_id`, `agent_id` and `module_id`.
            max_age: samples only steps whose policy is at most `max_age` versions older than the newest. None for all
                steps.

        Returns:
            A batch that also has `indices`, int64 [n], the step indices, which are never reused, and `weights`, ones
            [n].

        Raises:
            EpisodeStateError: no steps are stored, none is recent enough, or none has all steps before it that the
                views read.
            UnknownKey: no column has a name in `keys`.
            InvalidArgument: an argument is out of range.
            WrongType: `keys` is not a list of names.
        """
        with self.lock:  # not by `@locked`: passing the arguments on takes longer than the lock itself
            check_sample(n, n_step, gamma, max_age)
            keys = checked_keys(keys, include_infos, self.flush_ring().tracks)
            slots, weights = self._sampled(n, reach_of(views, keys), max_age=max_age)
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
        """Validate the arguments of `sample`, and return the column names of the batch that it would return.

        Raises:
            InvalidArgument, UnknownKey, WrongType: as in `sample`.
        """
        check_sample(n, n_step, gamma, max_age)
        return checked_keys(keys, include_infos, self.flush_ring().tracks)

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
        """Return the stored transitions with the step indices `indices` [n], as a `Batch` with the columns of `sample`.

        Args:
            indices: step indices, int [n], such as `batch.indices`. Rows with index -1 are zeros.
            n_step: as for `sample`.
            gamma: discount factor.
            views: as for `sample`.
            include_infos: as for `sample`.
            keys: as for `sample`.

        Raises:
            EpisodeStateError: nothing was ever stored.
            StepOutOfRange: a step is not stored, or steps before it that the views read are not.
            WrongType: indices that are no ints.
            ShapeMismatch: `indices` are not [n].
        """
        keys = self.checked_sample_keys(1, n_step, gamma, include_infos, keys)
        indices = checked_step_indices(indices, ndim=1)
        ring = self._ring
        if not ring.tracks:
            raise self.empty_error()
        is_missing = (indices != NONE) & ((indices < ring.tail) | (indices >= ring.head))
        if is_missing.any():
            span = f"{ring.tail}..{ring.head - 1}" if len(ring) else "none"
            raise StepOutOfRange(f"step {int(indices[is_missing][0])}: the stored steps have numbers {span}")
        slots = np.where(indices == NONE, self.capacity, indices % self.capacity)
        self._check_complete(indices, reach_of(views, keys))
        weights = np.ones(len(slots), np.float32)
        batch = self._transitions(slots, weights, n_step, gamma, views, keys)
        batch[INDICES][indices == NONE] = NONE
        return batch

    def _draw(self, n: int, period: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Sample `n` steps uniformly. Return their ring positions, int64 [n], and importance weights of 1, float32 [n].

        If `period` is given, only steps with `t` divisible by `period` are sampled.
        """
        tail = self._ring.tail
        size = self._ring.head - tail
        if not size:
            raise self.empty_error()
        if period is not None:
            begins = self._grid(period).stored_starts(self._ring)
            if not len(begins):
                raise self._no_sequence()
            picked = begins[(self.generator.random(n) * len(begins)).astype(_INDEX)]
            return picked % self.capacity, ones(n, np.float32)
        slots = (self.generator.random(n) * float(size)).astype(_INDEX)
        if size < self.capacity and (first := tail % self.capacity):
            slots = (slots + first) % self.capacity  # steps were evicted although the ring is not full
        return slots, ones(n, np.float32)

    def _sampled(
        self, n: int, reach: int | None = 0, period: int | None = None, max_age: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Sample `n` steps, and return their ring positions, int64 [n], and importance weights, float32 [n].

        Every sample of the buffer is drawn here.

        Args:
            n: number of steps.
            reach: number of steps before each that must be known, None for all of its episode (see `are_complete`).
            period: only steps with `t` divisible by it.
            max_age: only steps whose policy is at most `max_age` versions older than the newest.

        Raises:
            EpisodeStateError: there is no such step. The generator stays as it was.
        """
        ring = self._ring
        if reach == 0 and max_age is None:
            slots, shares = self._draw(n, period)
        else:
            required = conditions(ring, reach, max_age)
            draw, candidates = partial(self._draw, period=period), partial(self._candidates, period)
            slots, shares = draw_steps(draw, candidates, n, required, self.generator)
        return slots, self._weights(shares)

    def _candidates(self, period: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Return the ring positions of all steps that `_draw` may return, and their shares."""
        if period is None:
            slots = positions(self._ring.tail, len(self._ring), self.capacity)
        else:
            slots = self._grid(period).stored_starts(self._ring) % self.capacity
        return slots, ones(len(slots), np.float32)

    def _weights(self, shares: np.ndarray) -> np.ndarray:
        """Return the importance weights of sampled steps with these shares, float32 [n]. Uniform samples have 1."""
        return shares

    def _check_complete(self, indices: np.ndarray, reach: int | None) -> None:
        """Raise `StepOutOfRange` if steps that are read before those with the indices `indices` [n] are not known."""
        if reach == 0:
            return
        known = indices[indices != NONE]
        wrong = ~are_complete(self._ring, known % self.capacity, reach)
        if wrong.any():
            raise StepOutOfRange(
                f"step {int(known[wrong][0])}: the buffer does not hold {unknown_steps(reach, ADVICE)}"
            )

    def _grid(self, period: int) -> SequenceGrid:
        if period not in self._grids:
            self._grids[period] = SequenceGrid(period)
        return self._grids[period]

    def empty_error(self) -> EpisodeStateError:
        return EpisodeStateError("nothing is stored to sample from; add(episodes) first")

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
        """Return a batch of n-step transitions from the steps at `slots`. With a pair `n_step`, each has a random
        number of steps.
        """
        ring = self._ring
        if ring.ragged:
            check_rows(ring, keys)
        is_random = isinstance(n_step, tuple)
        num_steps = self.generator.integers(*n_step, len(slots), endpoint=True) if is_random else n_step
        columns = transition_columns(RingSteps(ring, slots), keys, num_steps, gamma, views)
        columns[Columns.WEIGHTS] = weights
        columns[INDICES] = indices = numbers_at(slots, ring.head, ring.capacity)
        return make_batch(columns, ring, indices)

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
        """Sample `batch_size` sequences of consecutive steps as a `Batch` of columns [B, W, ...], padded with zeros.

        W is `lookback + burn_in + length`. The first step to learn from is in column `lookback + burn_in` of every row,
        and is a random stored step, each with the same probability. A sequence never leaves its episode. Only steps are
        sampled before which all `lookback + burn_in` steps, what views read before these, and a recorded recurrent
        state are known, or the episode's beginning. Steps of a stored lookback may be among these columns, with index
        -1.

        Args:
            batch_size: number of sequences B.
            length: maximum number of steps to learn from in a row.
            burn_in: number of earlier steps that warm up a recurrent state. `loss_mask` is False for them. They are
                zeros where the episode begins later.
            lookback: number of further columns left of those, for context.
            boundary: what to do if the episode ends within the sequence. "pad": the sequence is shorter. "stop": the
                sequence starts earlier, so that it ends with the episode; it is shorter only if the episode is. So the
                last full sequence of an episode is sampled `length` times as often as each sequence before it.
            period: sequences start only at steps with `t` divisible by it, as in the fixed grid of R2D2: neighbours
                overlap by `length - period` steps. By default the `period` of the buffer; if it has none, any step.
            views: as for `sample`.
            keys: as for `sample`.
            include_infos: as for `sample`.

        Returns:
            A batch that also has these columns:

            - `loss_mask`, bool [B, W]: True for the steps to learn from.
            - `is_first`, bool [B, W]: True for the first step of an episode (t = 0), before which states are zeros.
            - `seq_lens`, int [B]: number of columns from column `lookback` to the last step.
            - `indices`, int64 [B, W]: step indices, -1 for padding.
            - `weights`, float32 [B]: importance weights.
            - `state_in` [B, ...]: recurrent state before column `lookback`, zeros at the beginning of an episode.
                Only if there is an extra model output "state_out".

        Raises:
            EpisodeStateError: no steps are stored, or none at which a sequence may begin.
            UnknownKey: no column has a name in `keys`.
            InvalidArgument: an argument is out of range.
            WrongType: `keys` is not a list of names.
        """
        with self.lock:  # not by `@locked`, as in `sample`
            period = self.period if period is None else period
            check_sequences(batch_size, length, burn_in, lookback, boundary, period)
            ring = self.flush_ring()
            keys = checked_keys(keys, include_infos, ring.tracks)
            reach = reach_of(views, keys, lookback + burn_in)
            if Columns.STATE_OUT in ring.tracks and reach is not None:
                reach = max(reach, burn_in + 1)
            begins, weights = self._sampled(batch_size, reach, period)
            slots, extents = begins, link_traversal.extents(ring, begins)
            if boundary == "stop":
                slots, extents = link_traversal.shift_starts_back(ring, slots, extents, length, reach)
            slots, layout = link_traversal.windows(ring, slots, extents, length, lookback + burn_in)
            if ring.ragged:
                check_rows(ring, keys)
            draw = RingWindows(ring, slots, layout, extents.t)
            columns = window_columns(draw, keys, views, lookback, Columns.STATE_OUT in ring.tracks)
            indices = numbers_at(slots, ring.head, ring.capacity)
            np.copyto(indices, NONE, where=slots >= self.capacity)  # padding and context
            columns[Columns.WEIGHTS] = weights
            columns[INDICES] = indices if self.unit == "transition" else ring.slot_numbers(begins)
            self.num_sampled += int(np.count_nonzero(columns[Columns.LOSS_MASK]))
            return make_batch(columns, ring, indices)

    # --- whole episodes ----------------------------------------------------------------------------------------

    @locked
    def sample_episodes(self, n: int) -> list[SingleAgentEpisode]:
        """Return copies of `n` stored episodes, sampled uniformly with replacement.

        Only the stored steps of an episode are returned, and the lookback that was added with them.
        """
        check_counts(n=n)
        order = self.flush_ring().table.order
        if not len(order):
            raise self.empty_error()
        picked = (self.generator.random(n) * len(order)).astype(np.int64)
        episodes = [self._episode(entry) for entry in order[picked].tolist()]
        self.num_sampled += sum(map(len, episodes))
        return episodes

    @locked
    def sample_chunks(
        self, n: int, length: int | None = 1, *, lookback: int | None = None, max_age: int | None = None
    ) -> ChunkSample:
        """Sample `n` steps with replacement, and return the parts of up to `length` steps that begin there as a pack.

        Steps have the same probability, or that of their priority in a prioritized buffer. This is how buffers with
        ragged tracks, such as conversations, are sampled by turns.

        Args:
            n: number of chunks.
            length: number of steps of each chunk, or fewer at the end of its episode. None for the whole episode that
                contains the sampled step.
            lookback: maximal number of steps before a chunk that the chunk holds as lookback. None for all stored ones.
            max_age: samples only steps whose policy is at most `max_age` versions older than the newest. None for all.

        Raises:
            EpisodeStateError: no steps are stored, or none is recent enough.
            InvalidArgument: an argument is out of range.
        """
        check_sample(n, 1, 1.0, max_age)
        if length is not None:
            check_counts(length=length)
        if lookback is not None:
            check_counts(0, lookback=lookback)
        ring = self.flush_ring()
        slots, weights = self._sampled(n, max_age=max_age)
        chunks = []
        for entry, t in zip(ring.links.entry[slots].tolist(), ring.links.t[slots].tolist(), strict=True):
            episode = episode_at(ring, entry, *self._spaces, copy=False)
            start = 0 if length is None else t - episode.t_started
            stop = len(episode) if length is None else min(start + length, len(episode))
            known = start + episode.lookback
            before = known if lookback is None else min(known, lookback)
            chunks.append(episode.window(start, stop, before, stop == len(episode)))
        pack = EpisodePack.from_episodes(chunks)
        pack = pack.copied() if n == 1 else pack  # a pack of one episode may be a view
        self.num_sampled += pack.num_steps
        return ChunkSample(pack, ring.slot_numbers(slots), weights)

    @locked
    def newest_ended(self, n: int) -> list[SingleAgentEpisode]:
        """Return copies of the `n` stored episodes that ended last, in the order of their last steps in the buffer.

        Only the stored steps of an episode are returned, and the lookback that was added with them. The list is shorter
        if fewer stored episodes have ended.

        Raises:
            InvalidArgument: `n` is not an int of at least 1.
        """
        check_counts(n=n)
        ring = self.flush_ring()
        entries = ring.table.order
        if len(entries):  # without steps, there are no tracks
            entries = entries[ring.have_ended(entries)]
        newest = ring.slot_numbers(ring.table.last[entries]).argsort()[-n:]
        return [self._episode(entry) for entry in entries[newest].tolist()]

    def iter_episodes(self) -> Iterator[SingleAgentEpisode]:
        """Iterate over copies of all stored episodes, starting with the episode that has the oldest step.

        Episodes that are evicted during the iteration are left out.

        Raises:
            EpisodeStateError: the buffer was cleared or restored during the iteration.
        """
        yield from episodes_of(self.flush_ring(), self._spaces)

    def iter_packs(self, num_steps: int = _PACK_STEPS) -> Iterator[EpisodePack]:
        """Iterate over all stored episodes in packs of at most `num_steps` steps. A longer episode is its own pack.

        The episode with the oldest step comes first. Packs are copies. Steps that are evicted during the iteration are
        left out.

        Raises:
            InvalidArgument: `num_steps` is not an int of at least 1.
            EpisodeStateError: the buffer was cleared or restored during the iteration.
        """
        check_counts(num_steps=num_steps)
        return packs_of(self.flush_ring(), self._spaces, num_steps)

    @locked
    def to_dataset(self, path: str | Path | EpisodeWriter) -> None:
        """Write the stored steps to a data set on disk. Later calls append only the steps added since the last call.

        Each episode is written as one chunk. An ongoing episode is written as a cut chunk, which the next call
        continues. An ending that came later, without a step, is written as a chunk without steps. Steps that are
        evicted between two calls are in neither. Steps that the data set has already, as after the buffer was restored
        from an earlier state, are compared and left out. The buffer does not change.

        Args:
            path: directory of a new or existing data set, or an open writer.

        Raises:
            ChunkMismatch: the data set has other steps with the id of a stored episode.
            EpisodeError: as `EpisodeWriter` and its `add`.
        """
        folder = path.path if isinstance(path, EpisodeWriter) else local_path(path)
        is_new = read_header(folder) is None
        first = 0 if is_new else self._written.get(_place(folder), 0)
        with nullcontext(path) if isinstance(path, EpisodeWriter) else EpisodeWriter(path) as writer:
            for pack in packs_of(self.flush_ring(), self._spaces, _PACK_STEPS, first):
                try:
                    writer.add(pack)
                except ChunkMismatch:  # a buffer that was restored from an earlier state writes steps again
                    writer.flush()
                    writer.add(without_stored(pack, EpisodeDataset(folder)))
            writer.flush()
            if not is_new:
                ended = late_endings(self.flush_ring(), self._spaces, EpisodeDataset(folder))
                if ended is not None:
                    writer.add(ended)
                    writer.flush()
        self._written[_place(folder)] = self.flush_ring().head

    @classmethod
    def from_dataset(
        cls,
        dataset: EpisodeDataset | str | Path,
        capacity: int | None = None,
        *,
        seed: int | None = None,
        **options: Any,
    ) -> Self:
        """Create a buffer, and add the episodes of a data set in stored order, and the chunks of each in order of time.

        The data set may contain several snapshots of one buffer: steps that occur twice, with equal values, are added
        once. After missing steps, the rest of the episode becomes an entry of its own with the same id, and no sample
        crosses the gap. Chunks of an episode with ragged tracks are joined.

        Args:
            dataset: data set or path of one.
            capacity: maximum number of steps; the last ones are kept. None for all steps of the data set.
            seed: seed of the random generator.
            options: further arguments of the class, such as `alpha` or `limit`.

        Raises:
            InvalidArgument: the data set has no steps and `capacity` is None.
            ChunkMismatch: two chunks have one id and are not of one episode.
            EpisodeError: as `add`.
        """
        episodes = dataset if isinstance(dataset, EpisodeDataset) else EpisodeDataset(dataset)
        if capacity is None and not episodes.num_steps:
            raise InvalidArgument(f"{episodes!r} has no steps; give the buffer's capacity")
        buffer = cls(episodes.num_steps if capacity is None else capacity, seed=seed, **options)
        try:
            for pack in in_episode_order(episodes).packs():
                for chunks in addable_packs(buffer.flush_ring(), pack):
                    buffer.add(chunks)
        except BaseException:
            buffer.close()
            raise
        buffer._written[_place(episodes.path)] = buffer.flush_ring().head
        return buffer

    def _episode(self, entry: int) -> SingleAgentEpisode:
        return episode_at(self.flush_ring(), entry, *self._spaces)

    # --- state -------------------------------------------------------------------------------------------------

    @locked
    def get_state(self) -> dict[str, Any]:
        """Return a checkpoint: all stored steps and the random generator's state, as a dict of copies."""
        return {"format": REPLAY_STATE, "ring": ring_state(self.flush_ring()), **self._rest_of_state()}

    def _rest_of_state(self) -> dict[str, Any]:
        """Return the part of a checkpoint other than the stored steps, such as the random generator's state. Subclasses
        add to it."""
        return {
            "generator": self.generator.bit_generator.state,
            "spaces": self._spaces,
            "num_sampled": self.num_sampled,
            "written": dict(self._written),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the buffer from a dict that `get_state` returned. After an error, the buffer is unchanged.

        Raises:
            InvalidArgument: the state has another capacity.
            StateMismatch: the state belongs to a buffer of another class or format version, or is malformed.
        """
        with self.lock:
            ring = self._ring
            point, names = ring.resume_point, ring.allocator.names
            try:
                with reading_state(type(self)):
                    check_state_format(state, self)
                    self._check_kind(state)
                    attributes = self._checked_rest(state)
                    restored = ring_of_state(ring, state["ring"])
            except BaseException:
                ring.allocator.remove_all_but(names)
                raise
            if point is not None:
                point.forget()
            ring.replace_contents(restored)
            self._set_rest(attributes)
            ring.allocator.remove(names)

    def _check_kind(self, state: dict[str, Any]) -> None:
        if "priorities" in state:
            raise StateMismatch("a state with priorities; restore it into a PrioritizedEpisodeReplayBuffer")

    def _checked_rest(self, state: dict[str, Any]) -> dict[str, Any]:
        """Validate a checkpoint's random generator, spaces and sample count. Return attributes with their new values.
        This buffer does not change.

        Raises:
            WrongType, InvalidArgument: a value is invalid.
        """
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

    def _set_rest(self, attributes: dict[str, Any]) -> None:
        """Set the random generator, spaces and sample count to values that `_checked_rest` returned.

        The generator stays the same object, since the buffers of several modules may share it.
        """
        self.generator.bit_generator.state = attributes["generator"]
        self.__dict__.update({name: value for name, value in attributes.items() if name != "generator"})

    def _set_saved_rest(self, state: dict[str, Any]) -> None:
        self._check_kind(state)
        self._set_rest(self._checked_rest(state))

    @locked
    def flush(self) -> None:
        """Save everything needed to resume a memory-mapped buffer in a new process.

        The tracks are in the mapped files already. The rest takes a few milliseconds to write, longer with many infos.
        Steps that are added later are lost unless `flush` is called again, and so are the steps that they replaced.

        Raises:
            EpisodeStateError: the buffer has no path.
            WrongType: msgpack cannot hold an info or custom data. The message names it.
        """
        ring = self.flush_ring()
        if ring.resume_point is None:
            raise EpisodeStateError("this buffer has no files; give it a path, or use get_state or to_dataset")
        save(ring, ring.resume_point, self._rest_of_state())

    def __getstate__(self) -> dict[str, Any]:
        """Return the contents for copying and pickling. The copy keeps its steps in memory, not in mapped files.

        Recorders continue with the original buffer.
        """
        without = {"_ring": None, "lock": None, "_path": None, "generator": None, "_grids": {}}
        return {**self.__dict__, **without, "_state": self.get_state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        buffer_state = state.pop("_state")
        self.__dict__.update(state)
        self._ring = LinkedRing(self.capacity, Allocator(None))
        self.lock = self._ring.lock
        self.generator = np.random.default_rng()
        self._ring.keep_log(self.lineage)
        self.set_state(buffer_state)


def checked_capacity(capacity: Any) -> int:
    """Return a capacity as an int. Raise `InvalidArgument` unless it is an integer of at least 1."""
    if not is_int(capacity) or capacity < 1:
        raise InvalidArgument(f"capacity={capacity!r}: give an int, at least 1")
    return int(capacity)


def _known(before: Space | None, now: Space | None) -> Any:
    """Return the newly given space `now`, or the earlier space `before` if no space is given."""
    return before if now is None else now


def check_state_format(state: dict[str, Any], buffer: object) -> None:
    """Raise `StateMismatch` if the state of a buffer has another format version."""
    source = f"the state of a {type(buffer).__name__}"
    remedy = "write the episodes with to_dataset in the version that made it, and read that with from_dataset here"
    check_version(state.get("format"), REPLAY_STATE, source, remedy, oldest=REPLAY_STATE, error=StateMismatch)


def _place(path: Path | str) -> str:
    """Return the absolute path or URL of a data set as a string, to detect a change of the destination."""
    return str(path.absolute() if isinstance(path, Path) else path)

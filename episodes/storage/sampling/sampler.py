"""Sampler of training batches (steps, windows or episodes) from the files of a data set."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol

import numpy as np

from episodes.batch.batch import Batch, batch_of
from episodes.batch.sampling_checks import (
    INDICES,
    check_counts,
    check_sample,
    check_sequences,
    checked_step_indices,
    reach_of,
    unknown_steps,
)
from episodes.columns import Columns, check_extra_output_names
from episodes.data_types import Indices
from episodes.draws.columns import DERIVED, checked_keys, transition_columns, window_columns
from episodes.errors import (
    EpisodeStateError,
    InvalidArgument,
    StateMismatch,
    StepOutOfRange,
    UnreadableData,
    WrongType,
)
from episodes.history import BoundViews
from episodes.pack import EpisodePack
from episodes.storage.files import local_path
from episodes.storage.header import Header
from episodes.storage.layout import StoredBatch
from episodes.storage.sampling.batch_kinds import ChunkBatches, EpisodeBatches, Kind, StepBatches
from episodes.storage.sampling.dataset_steps import DatasetSteps
from episodes.storage.sampling.decoded_columns import DecodedColumn
from episodes.storage.sampling.draws import FileSteps, FileWindows
from episodes.storage.sampling.located_items import LocatedItems
from episodes.storage.sampling.order_cursor import OrderCursor
from episodes.storage.sampling.orders import (
    Blocks,
    InOrder,
    Order,
    ShuffledOrder,
    UniformOrder,
    WeightedOrder,
    runs_of,
    uniforms,
)
from episodes.storage.sampling.step_index import LocatedSteps, shift_back
from episodes.storage.sampling.stored_tracks import StoredTracks
from episodes.storage.sampling.time_windows import TimeWindows
from episodes.storage.sampling.weights import find_episodes, find_steps
from episodes.tracks import nested
from episodes.tracks.filling import ones

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

PADDING = -1
"""Index of a row without a step."""
ORDERS = ("shuffled", "blocks", "drawn", "stored")
POOL_BYTES = 1 << 28  # of memory for what is decoded of compressed tracks
_RUN_BLOCKS = 4  # of compressed items that a run of steps is in: what is observed after its last one is in another
_PLAIN_RUN, _PLAIN_RUNS = 4096, 64  # steps in a run, and runs that are mixed, where nothing is compressed


class StoredEpisodes(Protocol):
    """Interface of the data sets from which a `Sampler` can sample."""

    @property
    def path(self) -> Path | str: ...
    def __len__(self) -> int: ...
    def pack(self, indices: Indices | None = None) -> EpisodePack: ...
    def stored_batches(self) -> tuple[Sequence[StoredBatch], np.ndarray, Header]: ...
    def snapshot(self) -> list[tuple[str, int]]: ...
    def at_snapshot(self, snapshot: Sequence[tuple[str, int]] | None = None) -> Any: ...


class Sampler:
    """Iterator over batches of steps, windows or whole episodes, which are read directly from the files of a data set.

    `for batch in sampler` iterates over the rest of the epoch, and later over the next one. `sample`, `at` and
    `sample_sequences` have the arguments, columns and errors of `EpisodeReplayBuffer`. All methods but `at` advance one
    position, which `state_dict` returns; the batches depend on it and on the data only. Threads may share a sampler.

    Chunks that continue each other are one episode. Their first observations and lookbacks are read and compared with
    the chunk before them when the sampler is made. The sampler uses the data set as it was opened, about 100 bytes of
    memory per chunk, and reads files that are removed or replaced meanwhile.

    Args:
        dataset: the data set.
        kind: the kind of batches: `StepBatches`, `WindowBatches`, `TimeWindows`, `ChunkBatches` or
            `EpisodeBatches`.
        order, weights, seed, collate, pool_bytes, cache: see `EpisodeDataset.sampler`.

    Attributes:
        dataset: the data set, as of the last `refresh`.
        what: the kind of batches.
        order: name of the order.
        weights: as given.
        collate: as given.
        seed: of the order.
        source: source of the batches' `origin`.
        num_sampled: number of steps that were ever sampled to learn from.

    Raises:
        InvalidArgument: `order` is unknown or does not fit `weights` or whole episodes, or a number is out of range.
        EpisodeStateError: the data set has nothing to sample.
        TrackMismatch: an extra model output has the name of a column that batches have anyway.
        ChunkMismatch: two chunks have one id and are not of one episode.
    """

    def __init__(
        self,
        dataset: StoredEpisodes,
        kind: Kind,
        *,
        order: str | None = None,
        weights: str | ArrayLike | None = None,
        seed: int | None = None,
        collate: Callable[[Any], Any] | None = None,
        pool_bytes: int = POOL_BYTES,
        cache: str | Path | None = None,
    ) -> None:
        if order is None and weights is not None:
            order = "drawn"
        if order is not None and order not in ORDERS:
            raise InvalidArgument(f"order={order!r}: give one of {', '.join(map(repr, ORDERS))}")
        if weights is not None and order != "drawn":
            raise InvalidArgument(f"order={order!r} has all steps once an epoch, so weights mean nothing: give 'drawn'")
        check_counts(pool_bytes=pool_bytes)
        if seed is not None:
            check_counts(0, seed=seed)
        self.dataset: StoredEpisodes = dataset
        self.what, self.weights, self.collate = kind, weights, collate
        self._pool_bytes, self._cache = pool_bytes, None if cache is None else local_path(cache)
        self._given_order = order
        self.seed = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else int(seed)
        self.num_sampled = 0
        self._open()

    def _open(self) -> None:
        """Open the data set's arrays, and create the order. It is called again if the data set changes, and after
        unpickling.

        Raises:
            EpisodeStateError: the data set has nothing to sample.
            TrackMismatch: an extra model output has the name of a column that batches have anyway.
        """
        self._lock = threading.RLock()
        self._options = {f.name: getattr(self.what, f.name) for f in fields(self.what) if f.name != "size"}
        self._tracks = StoredTracks(*self.dataset.stored_batches(), self._pool_bytes, self._cache)
        check_extra_output_names(self._tracks.extra, str(self.dataset.path))
        self.source = DatasetSteps(self._tracks, str(self.dataset.path))
        table = self._tracks.table
        is_whole = isinstance(self.what, EpisodeBatches)
        decoded = any(isinstance(column, DecodedColumn) for column in self._tracks.columns)
        self.order = self._given_order or ("blocks" if decoded and not is_whole else "shuffled")
        num = len(table) if is_whole else table.num_steps
        if not num:
            items = "episodes" if is_whole else "steps"
            raise EpisodeStateError(f"{self.dataset.path}: {len(table)} episodes without {items} to draw; record some")
        self._ahead = OrderCursor(self._create_order(num), np.asarray if is_whole else table.located)

    def _create_order(self, num: int) -> Order:
        """Create the sampling order of the `num` steps (or episodes) that the options `order` and `weights` specify."""
        if self.weights is not None:
            is_whole = isinstance(self.what, EpisodeBatches)
            find = find_episodes(self.weights, num) if is_whole else find_steps(self.weights, self._tracks)
            return WeightedOrder(num, self.seed, find)
        if self.order == "stored":
            return InOrder(num)
        if self.order == "blocks":
            return self._block_order()
        return ShuffledOrder(num, self.seed) if self.order == "shuffled" else UniformOrder(num, self.seed)

    def _block_order(self) -> Order:
        """Create the sampling order "blocks", which shuffles only as many compressed blocks at a time as
        fit into the memory pool.

        Raises:
            InvalidArgument: whole episodes are sampled.
        """
        if isinstance(self.what, EpisodeBatches):
            raise InvalidArgument("order='blocks' is for steps and windows; whole episodes are near each other anyway")
        decoded = [column for column in self._tracks.columns if isinstance(column, DecodedColumn)]
        run = _RUN_BLOCKS * max((column.rows_per_block for column in decoded), default=_PLAIN_RUN // _RUN_BLOCKS)
        fitting = (c.num_slots // (run // c.rows_per_block + 1) for c in decoded)
        table = self._tracks.table
        starts, stops = runs_of(table.starts, table.lengths, self._tracks.table.lookbacks, run)
        return Blocks(starts, stops, max(min(fitting, default=_PLAIN_RUNS), 1), self.seed)

    @property
    def num_steps(self) -> int:
        """Number of steps in the data set that can be sampled."""
        return self._tracks.table.num_steps

    def acting_pipelines(self) -> frozenset[str | None]:
        """Return the distinct descriptions (JSON texts) of the observation preprocessing (rewriters and views) with
        which the recording policies acted.

        It has None if they are unknown for some episode.
        """
        return self._tracks.acting_pipelines

    def __repr__(self) -> str:
        return f"Sampler({self.dataset.path}: {self.what}, {self.order}, {self.num_steps} steps, {len(self)} batches)"

    # --- an epoch ----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of batches per epoch, that is, in one pass over the data."""
        return -(-self._ahead.order.num // self.what.size)

    def __getitem__(self, index: object) -> NoReturn:
        """Raise `WrongType`: a batch has no index. torch's `DataLoader(sampler)` calls this method."""
        raise WrongType(
            f"Sampler[{index!r}]: batches have no index; iterate over the sampler, or for a DataLoader with workers "
            "use connectors.sampled_batches.sampled_loader(sampler, num_workers=...)"
        )

    @property
    def num_left(self) -> int:
        """Number of batches left in the current epoch. If the epoch has just ended, it is the
        number of batches per epoch."""
        return -(-self._ahead.left // self.what.size)

    def __iter__(self) -> Iterator[Any]:
        """Yield the remaining batches of the current epoch. If it has just ended, yield all
        batches of the next epoch."""
        epoch = self._ahead.epoch
        while self._ahead.epoch == epoch:
            yield self.draw()

    def draw(self) -> Any:
        """Return the next batch. At the end of an epoch the next epoch begins automatically."""
        with self._lock:
            num = min(self.what.size, self._ahead.left)
            if isinstance(self.what, EpisodeBatches):
                batch: Any = self.dataset.pack(self._ahead.take(num))
                self.num_sampled += batch.num_steps
            elif isinstance(self.what, ChunkBatches):
                batch = self._chunk_pack(self.what, self._ahead.take(num))
                self.num_sampled += batch.num_steps
            elif isinstance(self.what, TimeWindows):
                batch = self._items_around(self.what, num)
            elif isinstance(self.what, StepBatches):
                batch = self.sample(num, **self._options)
            else:
                batch = self.sample_sequences(num, **self._options)
        return batch if self.collate is None else self.collate(batch)

    def _chunk_pack(self, kind: ChunkBatches, steps: LocatedSteps) -> EpisodePack:
        """Return the parts of episodes that begin at the sampled steps, with the options `kind`, as one pack."""
        pairs = zip(steps.episodes.tolist(), steps.numbers.tolist(), strict=True)
        windows = [self._tracks.window(chunk, position, kind.length, kind.lookback) for chunk, position in pairs]
        return EpisodePack.from_episodes(windows)

    def _items_around(self, kind: TimeWindows, num: int) -> Batch:
        """Return a batch of items at the times that `kind` specifies, before and after the next `num` sampled steps."""
        steps = self._ahead.take(num)
        columns = kind.columns(LocatedItems(self._tracks, steps))
        columns[INDICES] = indices = steps.indices.copy()
        return batch_of(columns, (self.source, indices))

    def skip(self, num_batches: int = 1) -> None:
        """Skip the next `num_batches` batches, for example batches that other data loading workers return."""
        with self._lock:
            for _ in range(num_batches):
                self._ahead.position += min(self.what.size, self._ahead.left)

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
    ) -> Batch:
        """Return a batch of the next `n` transitions, with the same columns as `EpisodeReplayBuffer.sample`."""
        check_sample(n, n_step, gamma)
        names = checked_keys(keys, include_infos, self._tracks.extra)
        with self._lock:
            start = self._ahead.position
            steps = self._ahead.take(n)
            self._check_complete(LocatedItems(self._tracks, steps), reach_of(views, names), start)
            self.num_sampled += n
        return self._transitions(steps, self._num_steps_of(n_step, start, n), gamma, views, names)

    def _check_complete(self, steps: LocatedItems, reach: int | None, start: int | None = None) -> None:
        """Raise `StepOutOfRange` if steps that are read before the sampled steps are not stored.

        Args:
            steps: the sampled steps.
            reach: number of steps before each, None for all of its episode.
            start: position of the order to return to before the error is raised.
        """
        if reach != 0 and not (complete := steps.are_complete(reach)).all():
            if start is not None:
                self._ahead.position = start
            i = int(complete.argmin())
            episode = self._tracks.facts("ids")[steps.episodes[i]]
            advice = "keep the chunks before it, leave its chunk out with dataset.select, or record chunks"
            raise StepOutOfRange(
                f"step {int(steps.steps.indices[i])} (t={int(steps.t[i])} of episode {episode}): the data set does not "
                f"hold {unknown_steps(reach, advice)}"
            )

    def _num_steps_of(self, n_step: int | tuple[int, int], start: int, num: int) -> int | np.ndarray:
        """Return the number of steps of each of `num` n-step returns: an int, or if `n_step` is a range, random ints
        within these bounds, both included, int64 [num]. `start` is the position of the first one in the order.
        """
        if not isinstance(n_step, tuple):
            return int(n_step)
        low, high = n_step
        return low + (uniforms(self.seed, start, start + num, stream=1) * (high - low + 1)).astype(np.int64)

    def _transitions(
        self,
        steps: LocatedSteps,
        n_step: int | np.ndarray,
        gamma: float,
        views: BoundViews | None,
        keys: Sequence[str],
    ) -> Batch:
        """Return a batch of n-step transitions from the located steps. All weights are 1."""
        columns = transition_columns(FileSteps(self._tracks, steps), keys, n_step, gamma, views)
        columns[Columns.WEIGHTS] = ones(len(steps.numbers), np.float32)
        columns[INDICES] = indices = steps.indices.copy()
        return batch_of(columns, (self.source, indices))

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
        """Return a batch of the transitions with the step indices `indices` [n], with the same columns as `sample`.

        A row with index -1 is padding: zeros in the tracks.

        Raises:
            StepOutOfRange: a step is not in the data set.
            WrongType: the indices are no ints.
            ShapeMismatch: they are not [n].
        """
        check_sample(1, n_step, gamma)
        names = checked_keys(keys, include_infos, self._tracks.extra)
        numbers = checked_step_indices(indices, ndim=1)
        num_steps = self._tracks.table.num_steps
        missing = (numbers < PADDING) | (numbers >= num_steps)
        if missing.any():
            message = f"step {int(numbers[missing][0])}: the stored steps have numbers 0..{num_steps - 1}"
            raise StepOutOfRange(message)
        num_steps_ahead = self._num_steps_of(n_step, 0, len(numbers))
        padded = numbers == PADDING
        self._check_complete(
            LocatedItems(self._tracks, self._tracks.table.located(numbers[~padded])), reach_of(views, names)
        )
        located = self._tracks.table.located(np.where(padded, 0, numbers))
        batch = self._transitions(located, num_steps_ahead, gamma, views, names)
        return self._with_padding(batch, padded) if padded.any() else batch

    def _with_padding(self, batch: Batch, padded: np.ndarray) -> Batch:
        """Return a batch in which the rows selected by the mask `padded`, bool [n], are padding:
        zeros, empty infos and index -1."""
        columns = batch.to_dict()
        fills: dict[str, Any] = {key: derived.padding for key, derived in DERIVED.items()}
        fills |= {Columns.N_STEP: 1, Columns.WEIGHTS: 1.0, INDICES: PADDING}
        for key, column in columns.items():
            fill = fills.get(key)
            for leaf in nested.leaves(column):
                if key == Columns.INFOS and leaf is column:
                    leaf[padded] = [{} for _ in range(int(padded.sum()))]
                else:
                    leaf[padded] = (
                        (None if leaf.dtype == object else np.zeros((), leaf.dtype)) if fill is None else fill
                    )
        return batch_of(columns, (self.source, columns[INDICES]))

    def sample_sequences(
        self,
        batch_size: int,
        length: int,
        *,
        burn_in: int = 0,
        lookback: int = 0,
        boundary: str = "pad",
        views: BoundViews | None = None,
        include_infos: bool | Literal["columns"] = False,
        keys: Sequence[str] | None = None,
    ) -> Batch:
        """Return a batch of the next `batch_size` windows of successive steps, with columns [B, W, ...]. The arguments,
        columns and errors are those of `EpisodeReplayBuffer.sample_sequences`.
        """
        check_sequences(batch_size, length, burn_in, lookback, boundary)
        names = checked_keys(keys, include_infos, self._tracks.extra)
        reach = reach_of(views, names, lookback + burn_in)
        if Columns.STATE_OUT in self._tracks.structure and reach is not None:
            reach = max(reach, burn_in + 1)
        with self._lock:
            start = self._ahead.position
            steps = self._ahead.take(batch_size)
            self._check_complete(LocatedItems(self._tracks, steps), reach, start)
        if boundary == "stop":
            earliest = LocatedItems(self._tracks, steps).earliest_complete(reach)
            steps = shift_back(steps, length, earliest)
        draw = FileWindows(self._tracks, steps, lookback + burn_in, length)
        columns = window_columns(draw, names, views, lookback, Columns.STATE_OUT in self._tracks.structure)
        with self._lock:
            self.num_sampled += int(np.count_nonzero(columns[Columns.LOSS_MASK]))
        columns[INDICES] = indices = draw.step_indices()
        columns[Columns.WEIGHTS] = ones(batch_size, np.float32)
        return batch_of(columns, (self.source, indices))

    # --- state -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the sampler's position, seed, options and list of files as a dict of plain
        values, for a checkpoint."""
        return {
            "seed": self.seed,
            "position": self._ahead.position,
            "kind": type(self.what).__name__,
            "order": self.order,
            "num": self._ahead.order.num,
            "shards": [list(shard) for shard in self.dataset.snapshot()],
            "num_sampled": self.num_sampled,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned, so that sampling continues with the next
        batch after the saved state.

        If the data set has grown since then, only the earlier part is sampled. `refresh` adds the rest.

        Raises:
            StateMismatch: the state is of another kind, order or data set.
            UnreadableData: a part of the earlier data does not exist any more.
        """
        expected = {"kind": type(self.what).__name__, "order": self.order}
        try:
            position, seed, num = (int(state[name]) for name in ("position", "seed", "num"))
            snapshot = [(str(name), int(count)) for name, count in state["shards"]]
            given_kind = {name: state[name] for name in expected}
            num_sampled = int(state.get("num_sampled", 0))
        except (KeyError, TypeError, ValueError) as error:
            raise StateMismatch(f"not the state of a sampler, lacking or wrong: {error}") from None
        if given_kind != expected:
            raise StateMismatch(
                f"the state is of {given_kind['kind']}, {given_kind['order']}; this sampler draws {expected}"
            )
        if min(position, seed) < 0:
            raise StateMismatch(f"the state has position {position} and seed {seed}; give a result of state_dict()")
        before = self.dataset, self.seed
        with self._lock:
            if snapshot != self.dataset.snapshot():
                self.dataset = self.dataset.at_snapshot(snapshot)
            self.seed = seed
            self._open()
            num_now = self._ahead.order.num
            if num != num_now:
                self.dataset, self.seed = before
                self._open()
                raise StateMismatch(
                    f"the state belongs to {num} {given_kind['kind']}, this sampler has {num_now}; select the same "
                    "episodes"
                )
            self._ahead.position, self.num_sampled = position, num_sampled

    def refresh(self) -> int:
        """Include episodes that were added to the data set meanwhile. A new epoch begins if there are any.
        Return their number.

        Returns:
            0 if there are none; the epoch then continues.

        Raises:
            InvalidArgument: the sampler uses a part of a data set, or weights for each step: create another sampler.
        """
        if self.weights is not None and not isinstance(self.weights, str):
            raise InvalidArgument("refresh: the weights belong to the old steps; create a new sampler with new weights")
        with self._lock:
            before, epoch = len(self._tracks.table), self._ahead.epoch
            dataset = self.dataset.at_snapshot()
            if self._is_all_of(dataset):
                return 0
            self.dataset = dataset
            self._open()
            self._ahead.position = (epoch + 1) * self._ahead.order.num
            return len(self._tracks.table) - before

    def _is_all_of(self, dataset: StoredEpisodes) -> bool:
        """Return True if the sampler already has all episodes of `dataset`, which may be a newer
        state of the same data set."""
        known = self.dataset.snapshot()
        if known == dataset.snapshot():
            return True
        try:
            return len(dataset) == len(dataset.at_snapshot(known))
        except UnreadableData:  # some of it is gone
            return False

    def copy(self) -> Sampler:
        """Return an independent copy of the sampler, with the same files, order and position."""
        return copy(self)

    def with_origin(self, batch: Batch) -> Batch:
        """Return a batch that another process sampled, with an `origin` from which this process
        can read the rows' episodes."""
        return batch_of(batch.to_dict(), (self.source, np.asarray(batch[INDICES])))

    def __getstate__(self) -> dict[str, Any]:
        names = (
            "dataset",
            "what",
            "weights",
            "collate",
            "seed",
            "num_sampled",
            "_given_order",
            "_pool_bytes",
            "_cache",
        )
        return {**{name: getattr(self, name) for name in names}, "position": self._ahead.position}

    def __setstate__(self, state: dict[str, Any]) -> None:
        position = state.pop("position")
        vars(self).update(state)
        self._open()
        self._ahead.position = position

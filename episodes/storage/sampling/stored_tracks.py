"""Arrays of a data set, each joined over all files, with an index by which the items of any step are found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from episodes.columns import Columns
from episodes.draws.n_step import SUMS
from episodes.errors import ChunkMismatch, TrackMismatch
from episodes.facts.chunk_order import (
    ChunkOrder,
    conflict_message,
    contents_message,
    episode_codes,
    keys_of,
    spans_of,
)
from episodes.facts.policy_versions import UNKNOWN, VersionColumn
from episodes.single_agent import SingleAgentEpisode
from episodes.single_agent.overlap import first_unequal_row
from episodes.storage.compressed_tracks import rows_per_block
from episodes.storage.header import Header
from episodes.storage.layout import StoredBatch
from episodes.storage.sampling.addresses import MappedColumn
from episodes.storage.sampling.decoded_columns import DecodedColumn, PlainRows, cached_rows
from episodes.storage.sampling.step_index import (
    AFTER,
    BEFORE,
    CHUNK_END,
    FIRST_BASE,
    FLAGS,
    LENGTH,
    LOOKBACK,
    T_STARTED,
    StepIndex,
)
from episodes.storage.sampling.window_grid import WindowGrid
from episodes.storage.track_schema import TrackField, assemble, is_observed
from episodes.tracks.indexing import ranges

_COMPARED = ("observations", "actions", "rewards")
_COMPARED_BYTES = 1 << 24  # of items that are compared at a time


class Column(Protocol):
    """Interface of one array of a data set (such as the rewards), joined over all files,
    from which items are read by memory offset."""

    dtype: np.dtype
    shape: tuple[int, ...]
    step: int
    bases: np.ndarray  # of each batch

    def take(self, units: np.ndarray) -> np.ndarray: ...
    def windows(self, units: np.ndarray, grid: WindowGrid) -> np.ndarray: ...


class RaggedColumn:
    """Array whose items have different lengths. It cannot be a column of a batch, only a part of sampled packs."""

    step = 1

    def __init__(self, path: str, field: TrackField, num_batches: int) -> None:
        self.path, self.dtype, self.shape = path, np.dtype(field.dtype), field.value_shape
        self.bases = np.zeros(num_batches, np.int64)

    def take(self, units: np.ndarray) -> np.ndarray:
        """Raise `TrackMismatch`, because items of different lengths cannot be a column of a batch."""
        raise TrackMismatch(
            f"track {self.path!r} is ragged: items of several lengths are no rows of a batch; sample packs with "
            "episodes=n or windows=ChunkBatches(n, length), or leave the column out of keys"
        )

    def windows(self, units: np.ndarray, grid: WindowGrid) -> np.ndarray:
        return self.take(units)


class StoredTracks:
    """All arrays of a data set, each joined over all files, with an index by which the items of any step are found.

    Args:
        batches: of the data set.
        numbers: of the chunks, counted over all batches. Steps are indexed in this order.
        header: of the data set.
        pool_bytes: memory for all decompressed tracks together.
        cache: a directory for decompressed tracks, or None.

    Attributes:
        columns: one for each track.
        structure: batch columns by name ("obs", "actions", "rewards", extra model outputs by key), as nested indices
            into `columns`.
        extra: names of the extra model outputs.
        plain: for each batch column that is one stored track: its index in `columns`, and whether items after the step
            are read.
        table: index of the steps.
        unwritten: for each track the chunks without it, bool [n], and their item; None if all chunks have it.
    """

    def __init__(
        self,
        batches: Sequence[StoredBatch],
        numbers: np.ndarray,
        header: Header,
        pool_bytes: int,
        cache: Path | None,
    ) -> None:
        self.batches, self.numbers = batches, numbers
        stored_fields = header.tracks if header.knows_steps else {}
        fields = {path: _widest_schema(batches, path, field) for path, field in stored_fields.items()}
        self.paths = list(fields)
        compressed = [
            path
            for path, field in fields.items()
            if not field.is_ragged and any(path in batch.compressed for batch in batches)
        ]

        def column(path: str, field: TrackField) -> Column:
            """Create the column that reads the array at `path`: ragged, joined, decompressed or memory-mapped,
            depending on how the array is stored."""
            if field.is_ragged:
                return RaggedColumn(path, field, len(batches))
            if _are_of_several_widths(batches, path, field):
                return _joined_strings(batches, path, field)
            if cache is None and path in compressed:
                return _decoded(batches, path, field, pool_bytes // len(compressed))
            return _mapped(batches, path, field, cache)

        self.columns = [column(path, field) for path, field in fields.items()]
        self.structure: dict[str, Any] = {}
        self.extra: tuple[str, ...] = ()
        if header.knows_steps:
            tree = assemble(header.structure, {path: place for place, path in enumerate(self.paths)})
            extra = tree.pop("extra_model_outputs", {})
            self.structure = {**extra, Columns.OBS: tree.pop("observations"), **tree}
            self.extra = tuple(extra)
        self.plain = self._plain()
        known = self._chunk_properties()[:, numbers]
        self.table = StepIndex(known, [column.step for column in self.columns], self._heads(known))
        self.infos: Any = None  # see `StoredInfos.of`
        self.unwritten = [
            self._episodes_without_track(path, field, np.dtype(fields[path].dtype))
            for path, field in stored_fields.items()
        ]

    def _plain(self) -> dict[str, tuple[int, bool]]:
        """Return the batch columns that can be read from a single stored array, as a dict from name to (index of the
        array, whether the item after the step is read).

        Rewards of a narrow dtype are not among them, because they are converted.
        """
        result = {name: (place, False) for name, place in self.structure.items() if isinstance(place, int)}
        if Columns.REWARDS in result and self.columns[result[Columns.REWARDS][0]].dtype not in SUMS:
            del result[Columns.REWARDS]
        if Columns.OBS in result:
            result[Columns.NEXT_OBS] = (result[Columns.OBS][0], True)
        return result

    def _chunk_properties(self) -> np.ndarray:
        """Return the properties (length, ending, ...) of all n chunks that `StepIndex` needs, int64 [properties, n]."""
        parts = [
            _batch_properties(batch, [int(column.bases[at]) for column in self.columns], self.columns, self.paths)
            for at, batch in enumerate(self.batches)
        ]
        return np.concatenate([np.zeros((FIRST_BASE + len(self.columns), 0), np.int64), *parts], axis=1)

    def _heads(self, known: np.ndarray) -> np.ndarray | None:
        """Return for each of n chunks the first chunk of those that follow each other up to it, int64 [n], or None if
        no chunk continues another.

        Raises:
            ChunkMismatch: two chunks with one id cannot be of one episode, or a chunk differs from the one that it
                continues in the observation at which it begins or in its lookback.
        """
        starts, lengths, ended = known[T_STARTED], known[LENGTH], known[FLAGS] > 0
        if not (starts > 0).any():
            return None  # no chunk is joined to another, whatever the ids are
        keys = keys_of(*(self.facts(name) for name in ("ids", "agent_ids", "multi_agent_episode_ids")))
        chunks = ChunkOrder.of(episode_codes(keys), starts, lengths, ended)
        for pair in chunks.pairs(chunks.is_conflict):
            if self.numbers[pair[0]] != self.numbers[pair[1]]:  # a selection may hold a chunk twice
                at = np.array(pair)
                raise ChunkMismatch(conflict_message(keys[pair[1]], *spans_of(starts[at], lengths[at], ended[at])))
        self._check_joins(known, chunks)
        heads = chunks.heads(len(keys))
        return None if (heads == np.arange(len(heads))).all() else heads

    def _check_joins(self, known: np.ndarray, chunks: ChunkOrder) -> None:
        """Raise `ChunkMismatch` if a chunk differs from the one that it continues in an item that both have.

        Of ragged tracks nothing is compared here, but when the chunks of an episode are concatenated.
        """
        before, later = chunks.before[chunks.follows], chunks.order[chunks.follows]
        num = np.minimum(known[LOOKBACK][later], known[LENGTH][before] + known[LOOKBACK][before])
        for track, (path, column) in enumerate(zip(self.paths, self.columns, strict=True), FIRST_BASE):
            name = path.split("/")[0]
            if name not in _COMPARED or isinstance(column, RaggedColumn):
                continue
            counts = num + is_observed(path)
            pairs, back = np.repeat(np.arange(len(later)), counts), ranges(-num, counts)
            bases, shifts = known[track], known[LENGTH][before]
            at_once = max(_COMPARED_BYTES // max(column.dtype.itemsize * math.prod(column.shape), 1), 1)
            for begin in range(0, len(pairs), at_once):
                of, times = pairs[begin : begin + at_once], back[begin : begin + at_once]
                first = column.take(bases[before[of]] + (shifts[of] + times) * column.step)
                second = column.take(bases[later[of]] + times * column.step)
                found = first_unequal_row({name: (first, second)})
                if found is not None:
                    chunk, t = later[of[found[1]]], known[T_STARTED]
                    at = f"{name} at t={t[chunk] + times[found[1]]}"
                    raise ChunkMismatch(contents_message(self.facts("ids")[chunk], at, t[chunk]))

    def _episodes_without_track(
        self, path: str, field: TrackField, dtype: np.dtype
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Return a mask of the chunks without the array at `path`, bool [n], and the default item for these chunks.
        Return None if all chunks have the array."""
        lacks = [field.fill is not None and path not in batch.written for batch in self.batches]
        if not any(lacks):
            return None
        # An array, also where an item has no axes: a scalar of text would have the dtype of its own length.
        item = field.filled(1).astype(dtype).reshape(field.shape)
        return np.repeat(lacks, [len(batch) for batch in self.batches])[self.numbers], item

    @property
    def t_started(self) -> np.ndarray:
        """Time index of each chunk's first step in its episode, int64 [n]."""
        return self.table.known[T_STARTED]

    def facts(self, name: str) -> np.ndarray:
        """Return the `EpisodePack` attribute `name`, such as "ids", for all n chunks, [n],
        with None for unknown values."""
        parts = [_fact(batch, name) for batch in self.batches]
        return np.concatenate(parts)[self.numbers] if parts else np.zeros(0, np.int64)

    @cached_property
    def acting_pipelines(self) -> frozenset[str | None]:
        """Distinct descriptions (JSON texts) of the observation preprocessing with which the recording policies acted.
        None is included if some are unknown."""
        return frozenset(self.facts("acting_pipelines").tolist())

    def place(self, episode: int) -> tuple[StoredBatch, int]:
        """Return the record batch that stores the chunk with the number `episode`, and the
        chunk's row in this batch."""
        number = int(self.numbers[episode])
        at = int(self._batch_ends.searchsorted(number, side="right"))
        return self.batches[at], number - int(self._batch_ends[at]) + len(self.batches[at])

    def versions_at(self, indices: np.ndarray) -> np.ndarray:
        """Return the version of the policy that acted at each step, int64 [...], given step indices [...].
        Unknown versions are -1."""
        begins, versions = self._version_runs
        if not len(begins):
            return np.full(indices.shape, UNKNOWN)
        return np.where(indices < 0, UNKNOWN, versions[begins.searchsorted(indices, side="right") - 1])

    @cached_property
    def _version_runs(self) -> tuple[np.ndarray, np.ndarray]:
        """Policy versions of all steps as runs of equal versions: each run's first step index and
        its version, int64 [k] each."""
        parts = [batch.whole.facts.policy_versions for batch in self.batches]
        column = VersionColumn.concat(parts, [len(batch) for batch in self.batches])
        column = None if column is None else column[self.numbers]
        if column is None:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        return self.table.starts.repeat(column.counts()) + column.all_begins(), column.versions

    def episode(self, chunk: int, stop: int | None = None) -> SingleAgentEpisode:
        """Return the episode that contains `chunk`, joined from all its chunks, or only its steps
        before the position `stop`."""
        first, *later = self.table.chain(chunk)
        episode = self._chunk(first, stop)
        for part in later:
            if stop is None or self._begin(part) < stop:
                episode.concat_episode(self._chunk(part, stop))
        return episode

    def window(self, chunk: int, position: int, length: int, lookback: int | None) -> SingleAgentEpisode:
        """Return a part of the episode that contains `chunk`: at most `length` steps from the position `position` on.

        Args:
            lookback: maximal number of steps before them that are the lookback; None for all.
        """
        episode = self.episode(chunk, position + length)
        start = position - self._begin(self.table.chain(chunk)[0])
        return episode.slice(
            slice(start, None), len_lookback_buffer=episode.lookback + start if lookback is None else lookback
        )

    def _begin(self, chunk: int) -> int:
        """Return the position of a chunk's first step. Positions are explained in `StepIndex`."""
        return int(self.table.known[CHUNK_END][chunk] - self.table.lengths[chunk])

    def _chunk(self, chunk: int, stop: int | None) -> SingleAgentEpisode:
        """Return one stored chunk as an episode, or only its steps before the position `stop`."""
        batch, row = self.place(chunk)
        return batch.episode(row, None if stop is None else slice(0, max(stop - self._begin(chunk), 0)))

    @cached_property
    def _batch_ends(self) -> np.ndarray:
        return np.cumsum([len(batch) for batch in self.batches])


def _fact(batch: StoredBatch, name: str) -> np.ndarray:
    """Return one fact of each episode of a batch, [n]. All are `None` if the batch does not have the fact."""
    values = getattr(batch.whole, name)
    return np.full(len(batch), None, object) if values is None else values


def _batch_properties(
    batch: StoredBatch, bases: list[int], columns: Sequence[Column], paths: Sequence[str]
) -> np.ndarray:
    """Return the properties (length, ending, ...) of one record batch's n chunks that `StepIndex`
    needs, int64 [properties, n]."""
    pack, num_rows = batch.whole, int(batch.whole.offsets[-1])
    known = np.zeros((FIRST_BASE + len(columns), len(batch)), np.int64)
    known[LENGTH], known[LOOKBACK] = pack.lengths, pack.lookbacks
    known[FLAGS], known[T_STARTED] = pack.terminated + 2 * pack.truncated, pack.t_started
    known[BEFORE], known[AFTER] = pack.offsets[:-1], num_rows - pack.offsets[1:]
    for place, (path, base, column) in enumerate(zip(paths, bases, columns, strict=True), FIRST_BASE):
        first = (pack.observation_offsets if is_observed(path) else pack.offsets)[:-1] + pack.lookbacks
        known[place] = base + first * column.step
    return known


def _widest_schema(batches: Sequence[StoredBatch], path: str, field: TrackField) -> TrackField:
    """Return the schema of an array. Strings get the longest width that any record batch has."""
    if not field.is_text:
        return field
    dtypes = (batch.fields[path].dtype for batch in batches if path in batch.written)
    return replace(field, dtype=max((field.dtype, *dtypes), key=lambda dtype: np.dtype(dtype).itemsize))


def _are_of_several_widths(batches: Sequence[StoredBatch], path: str, field: TrackField) -> bool:
    """Return True if strings at `path` have another width in some record batch than `field` has."""
    return any(batch.fields[path].dtype != field.dtype for batch in batches if path in batch.written)


def _joined_strings(batches: Sequence[StoredBatch], path: str, field: TrackField) -> MappedColumn:
    """Return an array of strings, joined over all record batches. Narrower strings are copied,
    since all need one width."""
    dtype = np.dtype(field.dtype)
    arrays = [
        batch.decoded(path, batch.whole.tracks[path]).astype(dtype, copy=False) if path in batch.written else None
        for batch in batches
    ]
    return MappedColumn(arrays, dtype, tuple(field.shape))


def _mapped(batches: Sequence[StoredBatch], path: str, field: TrackField, cache: Path | None) -> MappedColumn:
    """Create a column that reads the array at `path` from the memory-mapped files of all record batches.

    Compressed arrays are decompressed into files in `cache`, unless it is `None`. A batch without the array has no
    items.
    """
    arrays = []
    for batch in batches:
        if cache is not None and path in batch.compressed:
            name = f"{batch.place.decode().replace(':', '-')}-{path.replace('/', '.')}.decoded"
            arrays.append(cached_rows(cache, name, batch.compressed[path], field.empty(), batch.source))
        else:
            arrays.append(batch.whole.tracks[path] if path in batch.written else None)
    return MappedColumn(arrays, np.dtype(field.dtype), tuple(field.shape))


def _decoded(batches: Sequence[StoredBatch], path: str, field: TrackField, pool_bytes: int) -> DecodedColumn:
    """Return a column over all batches whose compressed blocks are decompressed into a pool of `pool_bytes`."""
    size = rows_per_block(field)
    rows = [batch.compressed.get(path) or PlainRows(batch.whole.tracks[path], size) for batch in batches]
    sources = [batch.source for batch in batches]
    return DecodedColumn(rows, sources, np.dtype(field.dtype), tuple(field.shape), size, pool_bytes)

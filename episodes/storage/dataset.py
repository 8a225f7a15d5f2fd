"""Read-only sequence of the episodes of a data set on disk or in remote storage."""

from __future__ import annotations

import time
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from episodes.data_types import Indices
from episodes.errors import ChunkMismatch, InvalidArgument, UnreadableData
from episodes.facts.ending import codes_of
from episodes.pack import EpisodePack
from episodes.pack.pack import describe_counts
from episodes.single_agent import SingleAgentEpisode
from episodes.storage.arrow import as_unreadable_data, pyarrow
from episodes.storage.catalog import Catalog, ShardFile
from episodes.storage.chunk_checks import chunk_problems
from episodes.storage.directory import Files, LocalFiles
from episodes.storage.episode_rows import EpisodeRows
from episodes.storage.files import local_path
from episodes.storage.header import NAME, Header, read_header
from episodes.storage.identity import foreign_parts
from episodes.storage.layout import StoredBatch
from episodes.storage.remote.mirror import CACHE_BYTES, Mirror
from episodes.storage.remote.remote_directory import is_remote
from episodes.storage.sampling import ChunkBatches, EpisodeBatches, StepBatches, TimeWindows, WindowBatches
from episodes.storage.sampling.batch_kinds import kind_of
from episodes.storage.sampling.sampler import POOL_BYTES, Sampler
from episodes.storage.search.episode_table import CUSTOM, ENDING_WORDS, EpisodeTable
from episodes.storage.search.query import run
from episodes.storage.search.selection import SavedSelection, Selection
from episodes.storage.search.splits import parse_splits, put_splits, read_splits, split_mask
from episodes.storage.search.sql_columns import BatchSteps, StepTable
from episodes.storage.search.statistics import OfTracks, merge_statistics, of_batch, put_statistics, read_statistics
from episodes.storage.search.whole_episodes import columns_of_whole_episodes
from episodes.storage.shards import ShardRead
from episodes.tracks.notebook_repr import notebook_repr
from episodes.tracks.selection import position_of, positions_of

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Table = Mapping[str, np.ndarray]


class EpisodeDataset(Sequence[SingleAgentEpisode]):
    """Read-only sequence of the episodes in a data set, or in a part of it such as a slice or split.

    `dataset[i]` is an episode whose arrays are views of the mapped file; compressed tracks are decompressed. Slices,
    `select` and `split` return data sets that share the files. `pack` returns episodes as one pack. Episodes that are
    written after the data set was opened are not in it.

    A data set pickles as its path and episode numbers, so torch's `DataLoader` can send it to its workers (with a
    `collate_fn` that takes a list of episodes). A remote data set (`s3://bucket/data`) reads the facts of all episodes
    when it is opened. It downloads a shard when an episode in it is first read, and all shards for a `sampler`.

    Files that are damaged or lost raise a `UserWarning`, and are read as far as possible. The lengths of arrays are
    always checked, their values only with `verify`.

    Args:
        path: the directory, or the URL of a remote one.
        verify: read everything now, and compare it with its checksums.
        mmap: map the files, so that only used parts are read. If another process truncates a mapped file, this process
            ends with SIGBUS. False reads all files into memory now.
        cache: the local directory for shards of a remote data set; by default a folder of the user's cache directory.
        cache_bytes: the size of this cache.
        storage_options: options of the remote file system, as fsspec takes them.

    Attributes:
        path: the directory or URL.
        recovered: number of episodes in unfinished files. Their writer is at work, or was killed.
        unread: number of unreadable bytes at the end of each file, by shard name.
        problems: texts of the warnings.

    Raises:
        MissingExtra: pyarrow is not installed, or for a remote data set fsspec or the package of its scheme.
        UnreadableData: there is no data set, its format version is newer, or with `verify` a part is damaged.
        ChunkMismatch: with `verify`, two chunks have one id and are not of one episode.

    >>> import tempfile
    >>> from episodes.storage import EpisodeWriter
    >>> path = tempfile.mkdtemp()
    >>> with EpisodeWriter(path) as writer:
    ...     writer.add(SingleAgentEpisode.from_arrays([0.0, 1.0, 2.0], [1, 1], [1.0, 1.0], terminated=True))
    >>> dataset = EpisodeDataset(path)
    >>> len(dataset), dataset.num_steps, dataset[0].get_return()
    (1, 2, 2.0)
    """

    _repr_html_ = notebook_repr("episodes.inspect.html", "dataset")

    def __init__(
        self,
        path: str | Path,
        *,
        verify: bool = False,
        mmap: bool = True,
        cache: str | Path | None = None,
        cache_bytes: int = CACHE_BYTES,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if is_remote(path):
            files: Files = Mirror(str(path), dict(storage_options or {}), cache, cache_bytes)
        else:
            files = LocalFiles(local_path(path), mmap)
        self._open(files, None, verify)

    def _open(self, files: Files, known: list[tuple[str, int]] | None, verify: bool) -> None:
        """Open the data set: read its header and its Arrow files.

        If `known` is given, read only files that contain the episodes of these shards. Problems are warnings, unless
        `verify` is True.

        Raises:
            UnreadableData: there is no data set, or with `verify` a part is damaged.
        """
        pyarrow()
        catalog, shards, header = _read_all(files, known, verify)
        if header is None:
            raise UnreadableData(f"{files.path} is not a data set: it has no {NAME}; EpisodeWriter(path) creates one")
        self._files, self.path = files, files.path
        self._header = header
        self.recovered, self.unread = 0, dict[str, int]()
        self._batches: list[StoredBatch] = []
        self._shards: list[tuple[str, int]] = []
        self._num_batches: list[int] = []  # one number for each shard
        self._sealed: set[str] = set()  # finished shards, which never change
        problems = [] if known else [*catalog.problems, *foreign_parts(files.path, header, catalog, shards)]
        if verify:
            read_splits(files.directory)
        for shard in shards:
            problems += self._add_shard(shard, verify)
        for problem in problems:
            if verify:
                raise UnreadableData(problem)
            warnings.warn(problem, stacklevel=3)
        self.problems = tuple(problems)
        self._starts = np.cumsum([0, *map(len, self._batches)])
        self._bounds = self._starts.tolist()
        self._numbers: np.ndarray | None = None  # numbers of the episodes in this view; None for all
        self._opened: np.ndarray | None = None  # numbers of the episodes when the data set was opened; None for all
        self._known, self._is_part = known, False
        if known is not None:
            self._opened = self._numbers = _episode_numbers(known, catalog, self._shards)
        for problem in chunk_problems(self) if verify else ():
            raise ChunkMismatch(problem)

    def _add_shard(self, shard: ShardRead, verify: bool) -> list[str]:
        """Append the episodes of one Arrow file to this sequence, and return texts on problems of the file. With
        `verify`, all checksums are verified.
        """
        file, source = shard.file, str(shard.file.path)
        self._shards.append((file.name, shard.num_episodes))
        self._num_batches.append(len(shard.batches) if shard.layout is not None else 0)
        if file.sealed and not shard.damage:
            self._sealed.add(file.name)
        self._batches += self._files.stored_batches(shard, self._header)
        if not file.sealed or shard.problem:
            self.recovered += shard.num_episodes
        if shard.unread:
            self.unread[file.name] = shard.unread
        wrong = shard.damaged() if verify else {}
        problems = [f"{source}: record batch {at} is damaged: {', '.join(columns)}" for at, columns in wrong.items()]
        if shard.damage:
            problems.append(
                f"{self.path}: shard {file.name} is damaged ({shard.damage}): {len(shard.batches)} record batches were "
                f"read, {shard.unread} bytes were not"
            )
        return problems

    # --- sequence ----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._bounds[-1] if self._numbers is None else len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> SingleAgentEpisode: ...
    @overload
    def __getitem__(self, index: slice) -> EpisodeDataset: ...
    def __getitem__(self, index: int | slice) -> SingleAgentEpisode | EpisodeDataset:
        """Return the episode at `index`, or for a slice a data set of the selected episodes.

        Raises:
            WrongType: the index is no int and no slice.
            StepOutOfRange: there is no such episode.
        """
        if isinstance(index, slice):
            return self._view(self._all_numbers()[index])
        batch, row = self._locate(index)
        return batch.episode(row)

    def __iter__(self) -> Iterator[SingleAgentEpisode]:
        return map(self.__getitem__, range(len(self)))

    def steps(self, index: int, start: int | None = None, stop: int | None = None) -> SingleAgentEpisode:
        """Return steps `start` to `stop` of the episode at `index`, like `dataset[index][start:stop]`,
        but read only these steps.

        Of compressed tracks, only the blocks with these steps are decompressed.

        Raises:
            WrongType: the index is no int.
            StepOutOfRange: there is no such episode.
        """
        batch, row = self._locate(index)
        return batch.episode(row, slice(start, stop))

    def _locate(self, index: int) -> tuple[StoredBatch, int]:
        """Return where the episode at `index` is stored: its record batch, and its row in the batch.

        Raises:
            WrongType: the index is no int.
            StepOutOfRange: there is no such episode.
        """
        number = position_of(index, len(self), "dataset", "select and pack take arrays")
        if self._numbers is not None:
            number = self._numbers.item(number)
        at = bisect_right(self._bounds, number) - 1
        return self._batches[at], number - self._bounds[at]

    # --- many episodes -----------------------------------------------------------------------------------------

    def pack(self, indices: Indices | None = None) -> EpisodePack:
        """Return the episodes at `indices` (default: all), concatenated to an `EpisodePack` with
        one array per time series.

        Consecutive episodes of one record batch are views of it, unless tracks are compressed. Other episodes are
        copied once.

        Args:
            indices: ints, a mask bool [n], a slice, or None for all episodes.

        Raises:
            InvalidArgument: no episode was ever written to the data set, so that its tracks are unknown.
            StepOutOfRange: there is no such episode.
            WrongType: `indices` are neither ints nor bools.
        """
        numbers = self._all_numbers()
        if indices is not None:
            numbers = numbers[positions_of(indices, len(self), "dataset.pack")]
        if len(numbers):
            return self._pack(numbers)
        if not self._batches:
            raise InvalidArgument(f"{self.path} has no episodes, so the shapes and spaces of a pack are unknown")
        return self._batches[0].pack(np.zeros(1, np.int64))[:0]

    def packs(self) -> Iterator[EpisodePack]:
        """Yield all episodes in order, as packs of the episodes that are stored together."""
        numbers = self._all_numbers()
        for start, stop in self._runs(numbers):
            yield self._pack(numbers[start:stop])

    def select(self, which: Callable[[Table], Indices] | Indices) -> Self:
        """Return a data set of selected episodes. `which` is a function of the metadata table, a mask, or indices.

        Args:
            which: a function from `metadata` to a mask, such as `lambda rows: rows["episode_return"] > 100`; or a mask
                bool [n]; or ints.

        Raises:
            StepOutOfRange: there is no such episode.
            WrongType: neither ints nor bools.
        """
        indices = which(self.metadata) if callable(which) else which
        return self._view(self._all_numbers()[positions_of(indices, len(self), "dataset.select")])

    def snapshot(self) -> list[tuple[str, int]]:
        """Return a list of (shard name, number of episodes) that identifies the current contents, for `at_snapshot`."""
        return list(self._shards if self._known is None else self._known)

    def at_snapshot(self, snapshot: Sequence[tuple[str, int]] | None = None) -> Self:
        """Return the data set with the contents that it had when `snapshot` was taken, or with its
        current contents for None.

        Args:
            snapshot: the value of `snapshot()`; None for the present state. Compactions since then do not matter.

        Raises:
            InvalidArgument: this data set is a part of another one, such as a slice.
            UnreadableData: rows of the snapshot do not exist any more.
        """
        if self._is_part:
            raise InvalidArgument(f"{self!r} is a part of a data set; open {self.path} and select from that")
        dataset = self.__new__(type(self))
        dataset._open(self._files, None if snapshot is None else list(snapshot), False)
        return dataset

    def stored_batches(self) -> tuple[list[StoredBatch], np.ndarray, Header]:
        """Return all stored record batches, the indices of this data set's episodes among the episodes in them,
        int64 [n], and the header."""
        self._here = [stored.here for stored in self._batches]  # keeps the mappings: samplers read them by address
        return self._here, self._all_numbers(), self._header

    def sampler(
        self,
        *,
        steps: int | StepBatches | None = None,
        windows: tuple[int, int] | WindowBatches | ChunkBatches | TimeWindows | None = None,
        episodes: int | EpisodeBatches | None = None,
        order: str | None = None,
        weights: str | ArrayLike | None = None,
        seed: int | None = None,
        collate: Callable[[Any], Any] | None = None,
        pool_bytes: int = POOL_BYTES,
        cache: str | Path | None = None,
    ) -> Sampler:
        """Return a sampler that reads batches of steps, windows of steps or whole episodes directly from the files.

        Give one of `steps`, `windows` and `episodes`.

        Args:
            steps: number of steps per batch, or `StepBatches` with n-step returns, columns and views.
            windows: (number of windows per batch, steps per window), or `WindowBatches`,
                `ChunkBatches` or `TimeWindows`.
            episodes: number of whole episodes per batch, or `EpisodeBatches`.
            order: "shuffled" (the default) samples each item once per epoch. "stored" keeps the order of the files.
                "blocks" (the default if tracks are compressed) shuffles runs of steps, as many at a time as fit
                decompressed into the pool. "drawn" (the default with `weights`) samples each item independently, like a
                replay buffer.
            weights: relative probabilities for each episode [n] or step [num_steps], or the name of a column with one
                number per step. For whole episodes one weight each [n].
            seed: equal seeds give equal batches over equal data. None: a random seed.
            collate: a function that is applied to each batch.
            pool_bytes: memory for decompressed tracks.
            cache: a directory for decompressed tracks. They are decompressed once, and then sampled as fast as
                uncompressed ones.

        Raises:
            InvalidArgument: not exactly one of `steps`, `windows` and `episodes`, or an invalid option.
            EpisodeStateError: the data set has nothing to sample.
            TrackMismatch: an extra model output has the name of a column that batches have anyway.
            UnknownKey: `weights` names no column with one number per step.
        """
        kind = kind_of(steps, windows, episodes)
        memory: dict[str, Any] = {"pool_bytes": pool_bytes, "cache": cache}
        return Sampler(self, kind, order=order, weights=weights, seed=seed, collate=collate, **memory)

    def _pack(self, numbers: np.ndarray) -> EpisodePack:
        """Return the episodes with the numbers `numbers` as a pack, in this order. Each record batch is read once."""
        runs = self._runs(numbers)
        if len(runs) == 1:
            at = bisect_right(self._bounds, int(numbers[0])) - 1
            return self._batches[at].pack(numbers - self._bounds[at])
        order = np.argsort(numbers, kind="stable")
        if len(self._runs(numbers[order])) < len(runs):  # read each batch once, then reorder
            back = np.empty_like(order)
            back[order] = np.arange(len(order))
            return self._pack(numbers[order]).select(back)
        return EpisodePack.concat([self._pack(numbers[start:stop]) for start, stop in runs])

    def _runs(self, numbers: np.ndarray) -> list[tuple[int, int]]:
        """Split an array of episode numbers into runs from the same record batch, and return the (start,
        stop) indices of each run."""
        if not len(numbers):
            return []
        of = np.searchsorted(self._starts, numbers, side="right")
        edges = [0, *(np.flatnonzero(np.diff(of)) + 1).tolist(), len(numbers)]
        return list(pairwise(edges))

    def _all_numbers(self) -> np.ndarray:
        return np.arange(self._bounds[-1]) if self._numbers is None else self._numbers

    def _view(self, numbers: np.ndarray) -> Self:
        view = self.__new__(type(self))
        shared = {name: value for name, value in vars(self).items() if name not in _OF_A_VIEW}
        vars(view).update(shared, _numbers=numbers, _is_part=True)
        return view

    # --- search ------------------------------------------------------------------------------------------------

    def sql(self, query: str, *, decode: bool = False) -> Selection[Self]:
        """Run a SQL SELECT over the tables `steps` and `episodes` of this data set, with DuckDB, and return the result.

        A row of `episodes` is a row of `metadata`. A row of `steps` has the columns `step`, `episode`, `t`,
        `terminated`, `truncated`, `policy_version`, `observations`, `next_observations`, `actions`, `rewards`,
        `extra_model_outputs/KEY` and `infos/PATH` (of the info after the step). One number of an item is a column too:
        `select step from steps where "observations/2" > 0.2`. Only the columns that the query names are computed.

        Args:
            query: one SELECT statement.
            decode: include compressed tracks. They are decompressed completely.

        Raises:
            MissingExtra: duckdb is not installed (extra `sql`).
            InvalidArgument: the query is invalid, or names an unknown column; the message lists the columns.
        """
        return Selection(self, query, run(query, lambda: self.step_table(decode=decode), lambda: self.metadata))

    def step_table(self, *, decode: bool = False) -> StepTable:
        """Return a table with one row per step of all episodes. Its columns are computed when they are first read.

        Args:
            decode: include compressed tracks. They are decompressed completely.
        """
        if decode not in self._step_tables:
            self._step_tables[decode] = StepTable(self._steps_by_batch(), [*self._header.tracks], decode)
        return self._step_tables[decode]

    @cached_property
    def _step_tables(self) -> dict[bool, StepTable]:
        return {}

    def _steps_by_batch(self) -> list[BatchSteps]:
        """Return a `BatchSteps` for each run of this data set's episodes that is stored in one record batch."""
        numbers, parts, first, step = self._all_numbers(), list[BatchSteps](), 0, 0
        for start, stop in self._runs(numbers):
            at = bisect_right(self._bounds, int(numbers[start])) - 1
            rows = None if self._numbers is None else numbers[start:stop] - self._bounds[at]
            parts.append(BatchSteps(self._batches[at], rows, first, step))
            first, step = first + stop - start, step + parts[-1].num_steps
        return parts

    def load_selection(self, path: str | Path) -> Selection[Self]:
        """Load the steps that `Selection.save` wrote to a file, and find them in this data set,
        which may have grown since.

        Raises:
            UnreadableData: the file is damaged.
        """
        saved = SavedSelection.read(path)
        numbers, t, changes = saved.found_in(self, self._files.refresh().place)
        return Selection(self, saved.query, None, changes, (numbers, t))

    def add_splits(self, shares: Mapping[str, Any], *, seed: int = 0) -> None:
        """Define named parts of the data set, such as a training and a test set, and store their
        definitions with the data set.

        Chunks of one episode, and agents of one multi-agent episode, are always in the same split. Episodes that are
        written later are assigned too.

        Args:
            shares: for each name a share of the episodes, selected by their ids and the seed; or a list of episode ids.
            seed: of the selection.

        Raises:
            InvalidArgument: the shares add up to more than 1, or the data set is remote.
            UnreadableData: the stored splits are damaged.
        """
        if self._files.is_remote:
            raise InvalidArgument(f"{self.path} is remote: add splits to the local data set, and upload it again")
        put_splits(self._files.directory, read_splits(self._files.directory) | parse_splits(shares, seed))

    @property
    def splits(self) -> list[str]:
        """Names of the stored splits (parts of the data set), such as "train" and "test"."""
        return [*read_splits(self._files.directory)]

    def split(self, name: str) -> Self:
        """Return a data set of the episodes in the split `name`.

        Raises:
            UnknownKey: there is no such split; the message lists the splits.
            UnreadableData: the stored splits are damaged.
        """
        return self._view(self._all_numbers()[split_mask(name, read_splits(self._files.directory), self.metadata)])

    def statistics(self) -> OfTracks:
        """Return statistics of each numeric array, as a dict by path: count, mean,
        standard deviation, extremes and quantiles.

        The statistics of finished shards are stored with the data set, so the next call reads only new shards. For a
        part of a data set, all its steps are read.
        """
        if self._numbers is not None:
            return merge_statistics([of_batch(part.stored, part.rows) for part in self._steps_by_batch()])
        saved, by_shard, first = read_statistics(self._files.directory), dict[str, OfTracks](), 0
        added = {path for path, field in self._header.tracks.items() if field.fill is not None and field.is_number}
        for (name, _), num_batches in zip(self._shards, self._num_batches, strict=True):
            batches = self._batches[first : first + num_batches]
            statistics = saved.get(name, {})  # from before a track was added, it lacks that
            by_shard[name] = (
                statistics
                if statistics and added <= statistics.keys()
                else merge_statistics([of_batch(stored) for stored in batches])
            )
            first += num_batches
        keep = {name: statistics for name, statistics in by_shard.items() if name in self._sealed}
        if any(saved.get(name) is not statistics for name, statistics in keep.items()) or keep.keys() != saved.keys():
            put_statistics(self._files.directory, keep)
        return merge_statistics([*by_shard.values()])

    # --- what is there -----------------------------------------------------------------------------------------

    @cached_property
    def metadata(self) -> EpisodeTable:
        """Table of metadata with one row per stored episode chunk, and columns such as `id`,
        `length` and `return`, each [n].

        - `id`, `agent_id`, `module_id`, `multi_agent_episode_id`: objects.
        - `t_started`, `length` (steps), `return`, `terminated`, `truncated`, `lookback`: of the chunk. A chunk that is
          neither terminated nor truncated is cut. `ending` is this in words.
        - `episode_length`, `episode_return`, `is_complete`: over all chunks of the episode in the data set, also those
          that a view leaves out. Complete: the chunks follow each other from t = 0 to an ending. They raise
          `ChunkMismatch` if two chunks have one id and cannot be of one episode.
        - `policy_version_min`, `policy_version_max`: -1 if no version is known.
        - `acting_pipeline`: rewriters and views with which the policy acted, as JSON, or None.
        - `custom_data/KEY`: for each key of `custom_data` whose values are all bools, numbers or strings. A chunk
          without the key has NaN (numbers) or None.
        - `seed`: `custom_data["seed"]`, which `RecordEpisodes` sets and runners do not, or -1.
        - `episode` (0 to n - 1), `shard` and `writer`.
        """
        # The functions below must not refer to this object: only the cyclic collector could free it then.
        rows, numbers, num, shards = self._all_rows, self._numbers, len(self), self._shards
        index = slice(None) if numbers is None else numbers
        table = rows.table(index)
        codes = codes_of(table["terminated"], table["truncated"])
        shard_of = cache(lambda: _shards_and_rows(shards, np.arange(num) if numbers is None else numbers)[0])
        names = np.array([name for name, _ in shards], object)
        writers = np.array([name.rpartition("-")[0] for name, _ in shards], object)
        later = {
            **columns_of_whole_episodes(rows.columns, self._opened, numbers),
            "episode": lambda: np.arange(num),
            "ending": lambda: ENDING_WORDS[codes],
            "shard": lambda: names[shard_of()],
            "writer": lambda: writers[shard_of()],
            CUSTOM: lambda: rows.custom_data_of(index),
        }
        return EpisodeTable(table, later)

    @property
    def lengths(self) -> np.ndarray:
        """Number of steps of each episode, int64 [n]."""
        return self.metadata["length"]

    def shard_locations(self) -> tuple[list[tuple[str, int]], np.ndarray, np.ndarray]:
        """Return a list of all shards (Arrow files), and for each episode the index of its shard and its
        row there, int64 [n] each."""
        return self._shards, *_shards_and_rows(self._shards, self._all_numbers())

    @cached_property
    def _all_rows(self) -> EpisodeRows:
        with as_unreadable_data(str(self.path)):
            return EpisodeRows.joined([stored.batch for stored in self._batches])

    @property
    def stored_header(self) -> Header:
        """Contents of the file `episodes.json`: the spaces, array schemas and metadata that
        apply to the whole data set."""
        return self._header

    @property
    def observation_space(self) -> spaces.Space | None:
        """Observation space of the environment, or None if unknown."""
        return self._header.observation_space

    @property
    def action_space(self) -> spaces.Space | None:
        """Action space of the stored actions, or None if unknown."""
        return self._header.action_space

    @property
    def env_spec(self) -> EnvSpec | str | None:
        """Gymnasium `EnvSpec` of the environment, or only its id, or None if unknown."""
        return self._header.env_spec

    @property
    def user_metadata(self) -> dict[str, Any]:
        """Metadata that the user gave to `EpisodeWriter(metadata=...)`."""
        return self._header.metadata

    @property
    def num_steps(self) -> int:
        """Total number of steps of all episodes, without lookback steps."""
        return int(self.metadata["length"].sum())

    @property
    def nbytes(self) -> int:
        """Size in bytes of the stored episodes. Compressed arrays count with their compressed size.

        Episodes of a selection count with the share of their observations in their record batches.
        """
        if self._numbers is None:
            return sum(stored.nbytes for stored in self._batches)
        batch_of = np.searchsorted(self._starts, self._numbers, side="right") - 1
        selected = np.bincount(batch_of, self.metadata["length"] + 1, minlength=len(self._batches))
        parts = zip(self._batches, selected.tolist(), strict=True)
        return round(sum(each.nbytes * num / int((each.lengths + 1).sum()) for each, num in parts if num))

    def __getstate__(self) -> dict[str, Any]:
        view = {"numbers": self._numbers, "known": self.snapshot(), "is_part": self._is_part}
        return {"files": self._files, "shards": self._shards, **view}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._open(state["files"], state["shards"], False)
        if state["numbers"] is not None:
            self._numbers = self._all_numbers()[state["numbers"]]
        self._known, self._is_part = state["known"], state["is_part"]

    def __repr__(self) -> str:
        rows = self.metadata
        terminated, truncated = int(rows["terminated"].sum()), int((rows["truncated"] & ~rows["terminated"]).sum())
        whole = (rows["t_started"] == 0) & (rows["terminated"] | rows["truncated"])
        parts = describe_counts(whole, rows["return"], self.num_steps)
        if len(self):
            cut = len(self) - terminated - truncated
            parts += [f"{terminated} terminated", f"{truncated} truncated"]
            parts += [f"{cut} cut"] * bool(cut)
        parts += [f"{self.recovered} recovered"] * bool(self.recovered)
        parts += [f"{sum(self.unread.values())} bytes unread"] * bool(self.unread)
        return f"EpisodeDataset({str(self.path)!r}: {', '.join(parts)}, {self.nbytes} bytes)"


_OF_A_VIEW = ("metadata", "_step_tables", "_numbers")
_MOST_SECONDS = 60.0  # limit for reading a directory whose shards are replaced all the time


def _read_all(
    home: Files, known: list[tuple[str, int]] | None, verify: bool
) -> tuple[Catalog, list[ShardRead], Header | None]:
    """Read the Arrow files of a data set. Return the catalog, the contents of the files, and the header.

    With `known`, only files with the episodes of these shards are read. With `verify`, remote files are downloaded
    whole.

    Shards may be sealed, compacted and removed meanwhile. So the directory is listed again until no commit was added,
    and no shard is missing that was not missing in the listing before.

    Raises:
        UnreadableData: the shards still change after a minute.
    """
    until = time.monotonic() + _MOST_SECONDS
    done: dict[ShardFile, ShardRead] = {}
    missing_before: set[str] | None = None
    while True:
        catalog = home.refresh()
        header = read_header(home.directory)
        files = catalog.shards
        if known is not None:
            names = {place and place[0] for place in (catalog.place(name) for name, _ in known)}
            files = [file for file in files if file.name in names]
        to_read = [file for file in files if file not in done]
        done |= {file: read for file, read in zip(to_read, home.read(to_read, verify), strict=True) if read is not None}
        absent = [file for file in files if file not in done]
        missing = {str(file.path) for file in absent} | set(catalog.lost)
        if not home.has_new_commit(catalog) and (not missing or missing == missing_before):
            return catalog, [done.get(file) or ShardRead(file, problem="it is not there") for file in files], header
        if time.monotonic() > until:
            raise UnreadableData(f"{home.path}: its shards were replaced all the time while it was read; open it again")
        missing_before = missing


def _shards_and_rows(shards: list[tuple[str, int]], numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return for each episode the index of its shard in `shards`, and its row in that shard, int64 [n] each."""
    sizes = np.array([num for _, num in shards], np.int64)
    ends = np.cumsum(sizes)
    shard_of = np.searchsorted(ends, numbers, side="right")
    return shard_of, numbers - (ends - sizes)[shard_of]


def _episode_numbers(
    known: list[tuple[str, int]], catalog: Catalog, shards: list[tuple[str, int]]
) -> np.ndarray | None:
    """Return the numbers of the episodes that the earlier shards `known` contained, int64 [n],
    or None if these are all episodes.

    Raises:
        UnreadableData: an earlier shard's episodes no longer exist.
    """
    starts = dict(zip([name for name, _ in shards], np.cumsum([0, *(num for _, num in shards)]).tolist(), strict=False))
    sizes, parts = dict(shards), []
    for name, num in known:
        place = catalog.place(name)
        if place is None or place[0] not in starts or place[1] + num > sizes[place[0]]:
            raise UnreadableData(f"shard {name} of {catalog.directory} is gone; open the data set again")
        parts.append(np.arange(num) + (starts[place[0]] + place[1]))
    numbers = np.concatenate([np.zeros(0, np.int64), *parts])
    total = sum(sizes.values())
    return None if len(numbers) == total and bool((numbers == np.arange(total)).all()) else numbers

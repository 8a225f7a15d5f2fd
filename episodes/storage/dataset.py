"""`EpisodeDataset`: episodes on disk, read as views of memory-mapped columns."""

from __future__ import annotations

import time
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Self, overload

import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from episodes.errors import InvalidArgument, StepOutOfRange, UnreadableData, WrongType
from episodes.facts.ending import codes_of
from episodes.pack import EpisodePack
from episodes.pack.pack import describe_counts
from episodes.single_agent import SingleAgentEpisode
from episodes.storage.arrow import pyarrow, reading
from episodes.storage.catalog import Catalog, ShardFile
from episodes.storage.directory import Files, LocalFiles
from episodes.storage.episode_rows import EpisodeRows
from episodes.storage.header import NAME, Header, read_header
from episodes.storage.identity import foreign_parts
from episodes.storage.layout import StoredBatch
from episodes.storage.remote.mirror import CACHE_BYTES, Mirror
from episodes.storage.remote.remote_directory import is_elsewhere
from episodes.storage.sampling import EpisodeBatches, Moments, Sampler, StepBatches, WindowBatches
from episodes.storage.sampling.batch_kinds import kind_of
from episodes.storage.sampling.sampler import POOL_BYTES
from episodes.storage.search.episode_table import CUSTOM, ENDING_WORDS, EpisodeTable
from episodes.storage.search.query import run
from episodes.storage.search.selection import SavedSelection, Selection
from episodes.storage.search.splits import made, put_splits, read_splits, split_mask
from episodes.storage.search.sql_columns import BatchSteps, StepTable
from episodes.storage.search.statistics import OfTracks, merged, of_batch, put_statistics, read_statistics
from episodes.storage.search.whole_episodes import columns_of_whole_episodes
from episodes.storage.shards import ShardRead
from episodes.tracks.notebook_repr import notebook_repr

Table = Mapping[str, np.ndarray]


class EpisodeDataset(Sequence[SingleAgentEpisode]):
    """The episodes of a directory that `EpisodeWriter`s wrote, or some of them: an immutable sequence.

    `dataset[i]` is an episode, a view of the mapped file (compressed tracks are decompressed); `dataset[a:b]` and
    `select` give data sets of those episodes, which hold numbers only; `pack` gives them as one pack. What is written
    after the data set was opened is not in it. It pickles as its path and numbers, so it goes to the workers of a torch
    `DataLoader` as it is (with a `collate_fn` that takes a list of episodes).

    Attributes:
        path: of the directory.
        recovered: how many episodes were read from files that no writer has finished: it is at work, or was killed.
        unread: bytes that could not be read, by file; those of a batch that a writer was in the midst of.
        problems: what was warned of, in words.

    Files that are damaged although their writers had finished them, or lost, are warned of (`UserWarning`), and read as
    far as they go. Lengths are always compared with what is there; values are, with the sums that they were written
    with, by `verify`.

    Args:
        path: of the directory.
        verify: read all of it now, and raise for whatever is not as it was written.
        mmap: map the files, which reads what is asked for. A file that somebody cuts then ends the process (SIGBUS);
            False reads all of them into memory now.
        cache, cache_bytes: of a data set elsewhere (`s3://bucket/data`), the directory in which shards that were read
            are kept, and how many bytes of them.
        storage_options: of a data set elsewhere, what fsspec is told of its file system.

    Of a data set elsewhere, opening reads the footers and rows of its shards; a shard comes when an episode in it is
    first read, and all come for a `sampler`.

    Raises:
        MissingExtra: without pyarrow; without fsspec, or the package of this scheme.
        UnreadableData: there is no data set, one of a newer version, or with `verify` a damaged one.
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
        files: Files = LocalFiles(Path(path), mmap)
        if is_elsewhere(path):
            files = Mirror(str(path), dict(storage_options or {}), cache, cache_bytes)
        self._open(files, None, verify)

    def _open(self, files: Files, known: list[tuple[str, int]] | None, verify: bool) -> None:
        """Read all shards; or where those are now that are known by name, and so many episodes of each."""
        pyarrow()
        catalog, shards, header = _read_all(files, known, verify)
        if header is None:
            raise UnreadableData(f"{files.path} is no data set: there is no {NAME}; EpisodeWriter(path) makes one")
        self._files, self.path = files, files.path
        self._header = header
        self.recovered, self.unread = 0, dict[str, int]()
        self._batches: list[StoredBatch] = []
        self._shards: list[tuple[str, int]] = []
        self._num_batches: list[int] = []  # of each shard
        self._sealed: set[str] = set()  # shards that stay as they are
        problems = [] if known else [*catalog.problems, *foreign_parts(files.path, header, catalog, shards)]
        if verify:
            read_splits(files.directory)
        for shard in shards:
            problems += self._put(shard, verify)
        for problem in problems:
            if verify:
                raise UnreadableData(problem)
            warnings.warn(problem, stacklevel=3)
        self.problems = tuple(problems)
        self._starts = np.cumsum([0, *map(len, self._batches)])
        self._bounds = self._starts.tolist()
        self._numbers: np.ndarray | None = None  # of the episodes that are in this view; None: all
        self._opened: np.ndarray | None = None  # of the episodes that the data set had when it was opened; None: all
        self._known, self._is_part = known, False
        if known is not None:
            self._opened = self._numbers = _numbers_of(known, catalog, self._shards)

    def _put(self, shard: ShardRead, verify: bool) -> list[str]:
        """Take what was read of a shard, and say what is wrong with it."""
        file, source = shard.file, str(shard.file.path)
        self._shards.append((file.name, shard.num_episodes))
        self._num_batches.append(len(shard.batches) if shard.layout is not None else 0)
        if file.sealed and not shard.damage:
            self._sealed.add(file.name)
        self._batches += self._files.stored(shard, self._header)
        if not file.sealed or shard.problem:
            self.recovered += shard.num_episodes
        if shard.unread:
            self.unread[file.name] = shard.unread
        wrong = shard.damaged() if verify else {}
        problems = [f"{source}: record batch {at} is damaged: {', '.join(what)}" for at, what in wrong.items()]
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
        """Episode i; or the data set of a slice, which reads nothing."""
        if isinstance(index, slice):
            return self._view(self._all_numbers()[index])
        batch, row = self._place(index)
        return batch.episode(row)

    def __iter__(self) -> Iterator[SingleAgentEpisode]:
        return map(self.__getitem__, range(len(self)))

    def steps(self, index: int, start: int | None = None, stop: int | None = None) -> SingleAgentEpisode:
        """`dataset[index][start:stop]`; of compressed tracks, only the blocks that these steps are in are read."""
        batch, row = self._place(index)
        return batch.episode(row, slice(start, stop))

    def _place(self, index: int) -> tuple[StoredBatch, int]:
        """The batch of an episode, and its place in there."""
        if not isinstance(index, (int, np.integer)):
            raise WrongType(f"dataset[{index!r}]: give an int or a slice; select and pack take arrays")
        size = len(self)
        number = int(index) + size if index < 0 else int(index)
        if not 0 <= number < size:
            there = f"there are episodes 0..{size - 1}" if size else "there are none"
            raise StepOutOfRange(f"dataset[{index}]: {there}")
        if self._numbers is not None:
            number = self._numbers.item(number)
        at = bisect_right(self._bounds, number) - 1
        return self._batches[at], number - self._bounds[at]

    # --- many episodes -----------------------------------------------------------------------------------------

    def pack(self, indices: Any = None) -> EpisodePack:
        """The episodes as one pack: all, or those of an integer array, a list, a boolean mask or a slice.

        Episodes that follow each other in one record batch are views of it (but for compressed tracks); else each track
        is joined by one copy. Errors: `InvalidArgument` for no episodes of an empty data set; `StepOutOfRange`.
        """
        numbers = self._all_numbers() if indices is None else self._picked(indices)
        if len(numbers):
            return self._pack(numbers)
        if not self._batches:
            raise InvalidArgument(f"{self.path} has no episodes, so nothing says what a pack of them is like")
        return self._batches[0].pack(np.zeros(1, np.int64))[:0]

    def packs(self) -> Iterator[EpisodePack]:
        """The episodes in order, in one pack for each record batch: never more in memory than one of these."""
        numbers = self._all_numbers()
        for start, stop in self._runs(numbers):
            yield self._pack(numbers[start:stop])

    def select(self, which: Callable[[Table], Any] | Any) -> Self:
        """The data set of the episodes that a predicate over `metadata` (or a mask, or integers) picks.

        For example `dataset.select(lambda rows: (rows["return"] > 100) & ~rows["truncated"])`.
        """
        return self._view(self._picked(which(self.metadata) if callable(which) else which))

    def snapshot(self) -> list[tuple[str, int]]:
        """The shards that are read, and how many episodes of each."""
        return list(self._shards if self._known is None else self._known)

    def as_of(self, snapshot: Sequence[tuple[str, int]] | None = None) -> Self:
        """The data set as it was when it had this `snapshot`, wherever its rows are now; or as it is now.

        Raises:
            InvalidArgument: this is a part of a data set, which would be another one.
            UnreadableData: some of it is gone.
        """
        if self._is_part:
            raise InvalidArgument(f"{self!r} is a part of a data set; open {self.path} and select from that")
        other = self.__new__(type(self))
        other._open(self._files, None if snapshot is None else list(snapshot), False)
        return other

    def stored(self) -> tuple[list[StoredBatch], np.ndarray, Header]:
        """The record batches of the directory, the numbers of these episodes in them, and what they all share."""
        self._here = [stored.here for stored in self._batches]  # who draws by addresses needs them to stay
        return self._here, self._all_numbers(), self._header

    def sampler(
        self,
        *,
        steps: int | StepBatches | None = None,
        windows: tuple[int, int] | WindowBatches | Moments | None = None,
        episodes: int | EpisodeBatches | None = None,
        order: str | None = None,
        weights: Any = None,
        seed: int | None = None,
        collate: Callable[[Any], Any] | None = None,
        pool_bytes: int = POOL_BYTES,
        cache: str | Path | None = None,
    ) -> Sampler:
        """Batches of steps, of windows (how many, how long) or of whole episodes, drawn straight from the files.

        `StepBatches`, `WindowBatches` and `Moments` (windows by time stamps) of `episodes.storage.sampling` say more.

        What is drawn from is this data set; what is written after it was opened is not.

        Args:
            order: "shuffled" (the default): all once an epoch; "stored": likewise, in the order of the files;
                "blocks" (the default where tracks are compressed): likewise, runs of steps mixed as many at a time as
                decoded fit into the pool; "drawn" (the default with weights): each by itself, as replay buffers draw.
            weights: how likely a step is to be drawn: for each episode [n] that of all its steps, or for each step
                [num_steps], or the name of a column that says so ("rewards", an extra model output). Of episodes that
                are drawn whole, for each one [n].
            seed: with the same seed, and over the same data set, batches are the same.
            collate: what is made of each batch.
            pool_bytes: of memory for what is decoded of compressed tracks.
            cache: a directory where they are decoded once and for all, into files that are mapped: as fast to draw
                from as what was never compressed.

        Raises:
            InvalidArgument: not one of steps, windows and episodes, or one that makes no sense.
            EpisodeStateError: there is nothing to draw.
        """
        what = kind_of(steps, windows, episodes)
        memory: dict[str, Any] = {"pool_bytes": pool_bytes, "cache": cache}
        return Sampler(self, what, order=order, weights=weights, seed=seed, collate=collate, **memory)

    def _picked(self, indices: Any) -> np.ndarray:
        numbers = self._all_numbers()
        if isinstance(indices, slice):
            return numbers[indices]
        picked = np.asarray(indices)
        if picked.ndim != 1 or (picked.dtype.kind not in "bui" and picked.size):
            given = f"an array {list(picked.shape)} of {picked.dtype}"
            raise WrongType(f"give integers or a mask of bools [{len(self)}], not {given}")
        try:
            return numbers[picked if picked.size else np.zeros(0, np.int64)]
        except IndexError as error:
            raise StepOutOfRange(f"{error}; there are episodes 0..{len(self) - 1}") from None

    def _pack(self, numbers: np.ndarray) -> EpisodePack:
        runs = self._runs(numbers)
        if len(runs) == 1:
            at = bisect_right(self._bounds, int(numbers[0])) - 1
            return self._batches[at].pack(numbers - self._bounds[at])
        order = np.argsort(numbers, kind="stable")
        if len(self._runs(numbers[order])) < len(runs):  # each batch once, then the order that was asked for
            back = np.empty_like(order)
            back[order] = np.arange(len(order))
            return self._pack(numbers[order]).select(back)
        return EpisodePack.concat([self._pack(numbers[start:stop]) for start, stop in runs])

    def _runs(self, numbers: np.ndarray) -> list[tuple[int, int]]:
        """The stretches of the numbers that lie in one batch."""
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
        """What a SELECT over the tables `steps` and `episodes` finds, by DuckDB (extra `sql`).

        A row of `episodes` is one of `metadata`, and its `episode` says which one. A row of `steps` has `step`,
        `episode`, `t` (in its episode), `terminated`, `truncated`, `policy_version`, `observations`,
        `next_observations`, `actions`, `rewards`, `extra_model_outputs/KEY`, and `infos/PATH` (that came with the
        reward). One number of an item is a column of its own: `select step from steps where "observations/2" > 0.2`.
        Only the columns that the query names are made, and of these tracks of one number a step are not copied.

        Args:
            decode: let compressed tracks be read, all of them.

        Raises:
            MissingExtra: without duckdb.
            InvalidArgument: the query is none, or names a column that is not there; the message lists them.
        """
        return Selection(self, query, run(query, lambda: self.step_table(decode=decode), lambda: self.metadata))

    def step_table(self, *, decode: bool = False) -> StepTable:
        """The steps of these episodes as flat columns, which are made by name, and kept up to 256 MB.

        Args:
            decode: let compressed tracks be read, all of them.
        """
        if decode not in self._step_tables:
            self._step_tables[decode] = StepTable(self._stretches(), [*self._header.tracks], decode)
        return self._step_tables[decode]

    @cached_property
    def _step_tables(self) -> dict[bool, StepTable]:
        return {}

    def _stretches(self) -> list[BatchSteps]:
        numbers, found, first, step = self._all_numbers(), list[BatchSteps](), 0, 0
        for start, stop in self._runs(numbers):
            at = bisect_right(self._bounds, int(numbers[start])) - 1
            rows = None if self._numbers is None else numbers[start:stop] - self._bounds[at]
            found.append(BatchSteps(self._batches[at], rows, first, step))
            first, step = first + stop - start, step + found[-1].num_steps
        return found

    def load_selection(self, path: str | Path) -> Selection[Self]:
        """What `Selection.save` wrote, as far as this data set has it; its `changes` say what is other now.

        Raises:
            UnreadableData: the file is damaged.
        """
        saved = SavedSelection.read(path)
        numbers, t, changes = saved.found_in(self, self._files.refresh().place)
        return Selection(self, saved.query, None, changes, (numbers, t))

    def add_splits(self, told: Mapping[str, Any], *, seed: int = 0) -> None:
        """Name parts of the data set, and keep that with it: `add_splits({"train": 0.8, "test": 0.2})`.

        A number is the share of the episodes; which ones, their ids and the seed say, so that what is written later
        belongs somewhere too. Or give ids. Chunks of one episode, and agents of one multi-agent episode, stay together.

        Raises:
            InvalidArgument: shares whose sum is more than 1.
        """
        if self._files.is_elsewhere:
            raise InvalidArgument(f"{self.path} is elsewhere: add splits where it was made, and upload it again")
        put_splits(self._files.directory, read_splits(self._files.directory) | made(told, seed))

    @property
    def splits(self) -> list[str]:
        """The names of the splits."""
        return [*read_splits(self._files.directory)]

    def split(self, name: str) -> Self:
        """The data set of the episodes in a split. `UnknownKey` lists the splits there are."""
        return self._view(self._all_numbers()[split_mask(name, read_splits(self._files.directory), self.metadata)])

    def statistics(self) -> OfTracks:
        """By track, the count, mean, standard deviation, lowest, highest and quantiles of its numbers.

        Of all finished shards they are kept with the data set, so that only new ones are read. Of a view, all is read.
        """
        if self._numbers is not None:
            return merged([of_batch(one.stored, one.rows) for one in self._stretches()])
        kept, found, first = read_statistics(self._files.directory), dict[str, OfTracks](), 0
        added = {path for path, field in self._header.tracks.items() if field.fill is not None and field.is_number}
        for (name, _), num_batches in zip(self._shards, self._num_batches, strict=True):
            batches = self._batches[first : first + num_batches]
            own = kept.get(name, {})  # from before a track was added, it lacks that
            found[name] = own if own and added <= own.keys() else merged([of_batch(stored) for stored in batches])
            first += num_batches
        keep = {name: own for name, own in found.items() if name in self._sealed}
        if any(kept.get(name) is not own for name, own in keep.items()) or keep.keys() != kept.keys():
            put_statistics(self._files.directory, keep)
        return merged([*found.values()])

    # --- what is there -----------------------------------------------------------------------------------------

    @cached_property
    def metadata(self) -> EpisodeTable:
        """Table with one row for each chunk, as columns [n] by name; see `EpisodeTable` for pandas, polars and Arrow.

        - `id`, `agent_id`, `module_id`, `multi_agent_episode_id`: objects.
        - `t_started`, `length` (steps), `return`, `terminated`, `truncated`, `lookback`: of the chunk. A chunk that is
          neither terminated nor truncated is cut. `ending` is this in words.
        - `episode_length`, `episode_return`, `is_complete`: over all chunks of the episode in the data set, also those
          that a view leaves out. Complete: the chunks follow each other from t = 0 to an ending.
        - `policy_version_min`, `policy_version_max`: -1 if no version is known.
        - `custom_data/KEY`: for each key of `custom_data` whose values are all bools, numbers or strings. A chunk
          without the key has NaN (numbers) or None.
        - `seed`: `custom_data["seed"]`, which `RecordEpisodes` sets and runners do not, or -1.
        - `episode` (0 to n - 1), `shard` and `writer`.
        """
        # the functions below must not refer to this object: it would then be freed by the cyclic collector only
        rows, numbers, num, shards = self._all_rows, self._numbers, len(self), self._shards
        which = slice(None) if numbers is None else numbers
        table = rows.table(which)
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
            CUSTOM: lambda: rows.facts_of(which),
        }
        return EpisodeTable(table, later)

    @property
    def lengths(self) -> np.ndarray:
        """The steps of each episode, int64 [n]."""
        return self.metadata["length"]

    def places(self) -> tuple[list[tuple[str, int]], np.ndarray, np.ndarray]:
        """The shards by name, with how many episodes each has; and of each episode the shard and its row in there."""
        return self._shards, *_shards_and_rows(self._shards, self._all_numbers())

    @cached_property
    def _all_rows(self) -> EpisodeRows:
        with reading(str(self.path)):
            return EpisodeRows.joined([stored.batch for stored in self._batches])

    @property
    def stored_header(self) -> Header:
        """What all episodes of the directory share."""
        return self._header

    @property
    def observation_space(self) -> spaces.Space | None:
        """The space of all observations."""
        return self._header.observation_space

    @property
    def action_space(self) -> spaces.Space | None:
        """The space of all actions."""
        return self._header.action_space

    @property
    def env_spec(self) -> EnvSpec | str | None:
        """What the writer said of the environment."""
        return self._header.env_spec

    @property
    def user_metadata(self) -> dict[str, Any]:
        """What was given to `EpisodeWriter(metadata=...)`."""
        return self._header.metadata

    @property
    def num_steps(self) -> int:
        """The number of steps of these episodes, lookbacks not counted."""
        return int(self.metadata["length"].sum())

    @property
    def nbytes(self) -> int:
        """The bytes of all columns of all episodes in the directory, as they lie there."""
        return sum(stored.nbytes for stored in self._batches)

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
_MOST_SECONDS = 60.0  # for a directory whose shards are replaced while it is read


def _read_all(
    home: Files, known: list[tuple[str, int]] | None, verify: bool
) -> tuple[Catalog, list[ShardRead], Header | None]:
    """Read all shards, or only the shards that now hold the rows of the shards `known`; and the header.

    Shards may be sealed, compacted and removed meanwhile. So the directory is listed again until no commit was added,
    and no shard is missing or was missing in the listing before too.

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
            wanted = {place and place[0] for place in (catalog.place(name) for name, _ in known)}
            files = [file for file in files if file.name in wanted]
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
    """Return the shard of each episode, by index, and its row in the shard, int64 [n] each."""
    sizes = np.array([num for _, num in shards], np.int64)
    ends = np.cumsum(sizes)
    shard_of = np.searchsorted(ends, numbers, side="right")
    return shard_of, numbers - (ends - sizes)[shard_of]


def _numbers_of(known: list[tuple[str, int]], catalog: Catalog, there: list[tuple[str, int]]) -> np.ndarray | None:
    """The numbers, among the episodes of the shards there, of those that other shards had; None: all, in order."""
    starts = dict(zip([name for name, _ in there], np.cumsum([0, *(num for _, num in there)]).tolist(), strict=False))
    sizes, found = dict(there), []
    for name, num in known:
        place = catalog.place(name)
        if place is None or place[0] not in starts or place[1] + num > sizes[place[0]]:
            raise UnreadableData(f"shard {name} of {catalog.directory} is gone; open the data set again")
        found.append(np.arange(num) + (starts[place[0]] + place[1]))
    numbers = np.concatenate([np.zeros(0, np.int64), *found])
    total = sum(sizes.values())
    return None if len(numbers) == total and bool((numbers == np.arange(total)).all()) else numbers

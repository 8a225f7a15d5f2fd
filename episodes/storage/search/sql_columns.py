"""Columns of the SQL table `steps`: arrays of a data set with one row per step, without copies where possible.

name                            value at step t of a chunk
step, episode, t                index among all steps, number of the chunk, and t
terminated, truncated           whether the episode ends with the step
policy_version                  version of the policy that acted, or -1
observations, observations/2    observation before the action; one number of it; part: observations/camera/2
next_observations, ...          observation after the action
actions, rewards                of the step
extra_model_outputs/KEY         of the step
infos/PATH                      value in the info after the step, or null
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.errors import InvalidArgument
from episodes.storage.arrow import pyarrow
from episodes.storage.layout import StoredBatch
from episodes.storage.track_schema import is_observed
from episodes.tracks.indexing import ranges
from episodes.tracks.infos.info_column import Column, PackedColumn
from episodes.tracks.ragged import Ragged

if TYPE_CHECKING:
    import pyarrow as pa

    from episodes.pack import EpisodePack

OWN = ("step", "episode", "t", "terminated", "truncated", "policy_version")
NEXT, INFO = "next_", "infos/"
MOST_THREADS = 8
MOST_KEPT = 1 << 28
"""Most bytes of computed columns in memory. Further columns of a table are in temporary files."""


@dataclass(frozen=True, slots=True)
class ColumnLocation:
    """Source of a SQL column: the path of an array or info, an index into its items, and whether the
    item after the step is read.

    Attributes:
        path: of a track or info.
        part: index of one number in each item; () for the item.
        next: whether the observation after the step is read.
    """

    path: str
    part: tuple[int, ...] = ()
    next: bool = False  # of the observation after the step


@dataclass(frozen=True)
class BatchSteps:
    """Part of the SQL table `steps`: the steps of the episodes in one record batch.

    Attributes:
        stored: the record batch.
        rows: of the chunks in the batch, int64 [n]; None for all.
        first_episode: number of the first chunk.
        first_step: index of the first step.
    """

    stored: StoredBatch
    rows: np.ndarray | None  # of the episodes in the batch, [n]; None: all of them, in order
    first_episode: int
    first_step: int

    @cached_property
    def lengths(self) -> np.ndarray:
        """Number of steps of each selected chunk, int64 [n]."""
        whole = self.stored.lengths
        return whole if self.rows is None else whole[self.rows]

    @cached_property
    def num_steps(self) -> int:
        return int(self.lengths.sum())

    def items(self, path: str, *, later: bool = False) -> Any:
        """Return the index (a slice, mask or int array) by which one item per step is selected from the array at
        `path`. With `later`, observations after the steps are selected.
        """
        observed = is_observed(path) or path.startswith(INFO)
        return self._observed(later) if observed else self._stepped

    @cached_property
    def _stepped(self) -> Any:
        """Index of the steps in tracks with one item per step, lookback excluded: a slice or row numbers."""
        pack = self.stored.whole
        if self.rows is None and not pack.lookbacks.any():
            return slice(None)
        starts = pack.offsets[:-1] + pack.lookbacks
        return ranges(starts if self.rows is None else starts[self.rows], self.lengths)

    def _observed(self, later: bool) -> Any:
        """Return the index of the steps' observations, lookback excluded: a mask or row numbers. With `later`, the
        index of the observations after the steps.
        """
        pack = self.stored.whole
        starts = pack.observation_offsets[:-1]
        if self.rows is None and not pack.lookbacks.any():  # all but the last one of each episode, or but the first
            mask = np.ones(int(pack.observation_offsets[-1]), bool)
            mask[starts if later else pack.observation_offsets[1:] - 1] = False
            return mask
        starts = starts + pack.lookbacks + later
        return ranges(starts if self.rows is None else starts[self.rows], self.lengths)

    def compute(self, name: str) -> np.ndarray:
        """Compute a column [num_steps] of the SQL table that is not stored as an array, such as "step", "episode" or
        "t"."""
        num = self.num_steps
        if name == "step":
            return np.arange(self.first_step, self.first_step + num)
        if name == "episode":
            first = self.first_episode
            return np.repeat(np.arange(first, first + len(self.lengths), dtype=np.int32), self.lengths)
        ends = np.cumsum(self.lengths)
        if name == "t":
            t = np.arange(num, dtype=np.int32)
            t -= np.repeat((ends - self.lengths).astype(np.int32), self.lengths)
            return t
        pack = self.stored.whole
        if name == "policy_version":
            versions = pack.get_policy_versions()
            return versions if self.rows is None else versions[ranges(_first_steps(pack)[self.rows], self.lengths)]
        flags = np.zeros(num, bool)
        ended = getattr(pack, name) if self.rows is None else getattr(pack, name)[self.rows]
        flags[(ends - 1)[ended & (self.lengths > 0)]] = True
        return flags


def _first_steps(pack: EpisodePack) -> np.ndarray:
    """Return the index of the first step of each of the n chunks of a pack, int64 [n].
    Lookback steps are not counted."""
    return np.cumsum(pack.lengths) - pack.lengths


class StepTable:
    """SQL table `steps` of a data set, with one row per step. Its columns are computed when they are first read.

    Args:
        stretches: the steps, by record batch.
        paths: of the data set's tracks.
        decode: whether compressed tracks may be read.
    """

    def __init__(self, stretches: Sequence[BatchSteps], paths: Sequence[str], decode: bool = False) -> None:
        self.stretches = [part for part in stretches if part.num_steps]
        self._paths, self._decode = [*paths], decode
        self._made: dict[ColumnLocation, Any] = {}  # columns, those that were asked for last at the end

    @cached_property
    def names(self) -> list[str]:
        """Names of the table's columns, except for columns of a single number of an item, such as `observations/2`."""
        names = [*OWN]
        for path in self._paths:
            names += (path, NEXT + path) if is_observed(path) else (path,)
        return [*names, *dict.fromkeys(INFO + path for part in self.stretches for path in part.stored.info_paths)]

    @property
    def plain(self) -> list[str]:
        """Names of the columns that `select *` returns: all columns, except compressed arrays
        if these may not be read."""
        return [name for name in self.names if self._decode or not self._is_compressed(name)]

    def resolve(self, name: str) -> ColumnLocation | None:
        """Return the source of the column `name`: an array, an info or a computed column such as "step". Return None if
        no such column exists.

        The index of a single number, as in `observations/2`, is not checked.
        """
        parts: list[int] = []
        while name:
            if name in self.names:
                later = name.startswith(NEXT) and is_observed(name[len(NEXT) :])
                return ColumnLocation(name[len(NEXT) :] if later else name, tuple(parts), later)
            name, _, part = name.rpartition("/")
            if not part.isdecimal():
                return None
            parts.insert(0, int(part))
        return None

    def table(self, names: Sequence[str]) -> Any:
        """Return the columns `names` for all steps as a `pyarrow.Table`. Columns that are not cached are computed.

        Raises:
            InvalidArgument: there is no such column, or it is compressed and may not be read.
        """
        places = [self._place(name) for name in names]
        made = [place for place in dict.fromkeys(places) if place not in self._made]
        spill = Spill()
        with ThreadPoolExecutor(min(os.cpu_count() or 1, MOST_THREADS)) as pool:  # numpy copies without the lock
            rows = list(pool.map(lambda part: [self._column(part, place, spill) for place in made], self.stretches))
        columns = {
            place: pyarrow().chunked_array(_with_common_type([row[i] for row in rows])) for i, place in enumerate(made)
        }
        columns |= {place: self._made.pop(place) for place in places if place in self._made}
        result = pyarrow().table([columns[place] for place in places], [*names])
        for place, column in columns.items():
            self._remember(place, column)
        return result

    def _remember(self, place: ColumnLocation, column: pa.ChunkedArray) -> None:
        """Store a computed column in the cache. If the cache exceeds 256 MiB, the least recently
        used columns are removed. A larger column is not stored."""
        if column.nbytes > MOST_KEPT:
            return
        self._made[place] = column
        while sum(cached.nbytes for cached in self._made.values()) > MOST_KEPT:
            self._made.pop(next(iter(self._made)))

    def batches(self, names: Sequence[str]) -> Iterator[Any]:
        """Yield a `pyarrow.Table` of the columns `names` for each record batch in turn,
        which needs less memory than `table`."""
        for part in self.stretches:
            yield StepTable([part], self._paths, self._decode).table(names)

    def _is_compressed(self, name: str) -> bool:
        """Return True if a column is stored compressed in any batch. An unknown column is not."""
        place = self.resolve(name)
        fields = (part.stored.fields.get(place.path) for part in self.stretches) if place is not None else ()
        return any(field is not None and field.compression == "zstd" for field in fields)

    def _place(self, name: str) -> ColumnLocation:
        """Return where a column is stored. Raise `InvalidArgument` if there is no such column."""
        place = self.resolve(name)
        if place is None:
            raise InvalidArgument(f"steps have no column {name!r}; there are {', '.join(self.names)}")
        return place

    def _column(self, part: BatchSteps, place: ColumnLocation, spill: Spill) -> Any:
        """Return one column of one batch as an Arrow array. Computed values, except infos, are kept by `spill`."""
        if place.path in OWN:
            return _to_arrow(spill.keep(part.compute(place.path)))
        if place.path.startswith(INFO):
            return _info_column(_infos(part.stored).get(place.path[len(INFO) :]), part, place)
        return _to_arrow(self._values(part, place, spill))

    def _values(self, part: BatchSteps, place: ColumnLocation, spill: Spill) -> Any:
        """Return the values of an SQL column for the steps of one batch. Values that are not a view of the data set go
        to `spill`.

        Raises:
            InvalidArgument: the batch has no such array, or it is compressed and `decode` is False.
        """
        array: Any = part.stored.whole.tracks.get(place.path)
        if array is None:
            raise InvalidArgument(f"some episodes have no {place.path!r}")
        items = part.items(place.path, later=place.next)
        if place.path in part.stored.compressed:
            if not self._decode:
                raise InvalidArgument(f"{place.path!r} is compressed: give decode=True to read all of it")
            array, items = part.stored.decoded(place.path, array[items]), slice(None)
        picked = _select_part(array, place)[items]
        if type(picked) is Ragged:
            return Ragged.of(spill.keep(picked.flat), spill.keep(picked.bounds))
        return picked if isinstance(items, slice) and not place.part else spill.keep(picked)


class Spill:
    """Storage for computed arrays: memory for the first 256 MiB, temporary files for the rest."""

    def __init__(self) -> None:
        self._kept, self._lock = 0, Lock()

    def keep(self, array: np.ndarray) -> np.ndarray:
        """Return the array itself, or if too much memory is used already, a copy that is
        memory-mapped from a temporary file."""
        with self._lock:
            self._kept += array.nbytes
            fits = self._kept <= MOST_KEPT
        if fits or not array.nbytes:
            return array
        with tempfile.TemporaryFile() as file:
            np.ascontiguousarray(array).tofile(file)
            file.flush()
            return np.memmap(file, array.dtype, "r", shape=array.shape)


def _select_part(array: np.ndarray | Ragged, place: ColumnLocation) -> Any:
    """Return `array` [n, ...] or, if the SQL column is a single number of each item, these numbers [n].

    Raises:
        InvalidArgument: the items are ragged, or have no such part.
    """
    if type(array) is Ragged and place.part:
        raise InvalidArgument(f"{place.path!r} is ragged: its column is a list, whose values SQL reads as column[1]")
    try:
        return array[(slice(None), *place.part)] if place.part else array
    except IndexError:
        name = "/".join((place.path, *map(str, place.part)))
        raise InvalidArgument(
            f"no column {name!r}: items of {place.path!r} have shape {list(array.shape[1:])}"
        ) from None


def _to_arrow(array: np.ndarray | Ragged) -> Any:
    """Convert a numpy array to an Arrow array. Items that are arrays become lists.

    Raises:
        InvalidArgument: the numbers are complex, or floats of more than 64 bits.
    """
    arrow = pyarrow()
    if type(array) is Ragged:
        return arrow.LargeListArray.from_arrays(arrow.array(np.array(array.bounds)), _to_arrow(array.flat))
    if array.dtype == np.float16:
        array = array.astype(np.float32)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype.kind == "c" or (array.dtype.kind == "f" and array.dtype.itemsize > 8):
        kind = "complex numbers" if array.dtype.kind == "c" else f"numbers of dtype {array.dtype}"
        raise InvalidArgument(f"{kind} are no columns of SQL")
    size = int(np.prod(array.shape[1:], dtype=np.int64))
    flat = np.ascontiguousarray(array).reshape(-1)
    values = arrow.array(flat.tolist() if array.dtype.kind in "US" else flat)
    if array.ndim == 1:
        return values
    return (
        arrow.FixedSizeListArray.from_arrays(values, type=arrow.list_(values.type, size))
        if size
        else arrow.nulls(len(array))
    )


def _infos(stored: StoredBatch) -> dict[str, Column]:
    """Return the info columns of a batch by key path, empty if it has no infos."""
    return getattr(stored.whole.infos, "columns", {})


def _info_column(column: Column | None, part: BatchSteps, place: ColumnLocation) -> Any:
    """Return the values of one info key after each step as an Arrow array of numbers or strings.
    Other values become JSON texts."""
    arrow, items = pyarrow(), part.items(place.path, later=True)
    if column is None:
        return arrow.nulls(part.num_steps)
    absent = ~column.present[items]
    if isinstance(column, PackedColumn):
        rows = np.flatnonzero(items) if isinstance(items, np.ndarray) and items.dtype == bool else items
        return arrow.array([_text(value) for value in column.list(rows)], arrow.string())
    values = _to_arrow(_select_part(column.values, place)[items])
    if not absent.any():
        return values
    return arrow.compute.if_else(arrow.array(absent), arrow.scalar(None, values.type), values)


def _text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, default=_to_list)


def _to_list(value: object) -> Any:
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else repr(value)


def _with_common_type(chunks: list[Any]) -> list[Any]:
    """Convert Arrow arrays to a common type, so that they can form one column. If their types differ, this is text."""
    arrow = pyarrow()
    types = [kind for kind in dict.fromkeys(chunk.type for chunk in chunks) if not arrow.types.is_null(kind)]
    if len(types) > 1:
        return [arrow.array([_text(value) for value in chunk.to_pylist()], arrow.string()) for chunk in chunks]
    type_ = types[0] if types else arrow.null()
    return [chunk if chunk.type == type_ else arrow.nulls(len(chunk), type_) for chunk in chunks] or [arrow.nulls(0)]

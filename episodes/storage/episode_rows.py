"""Storage of episode metadata (ids, lengths, endings, ...) in Arrow columns with one value per episode chunk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property, lru_cache
from typing import TYPE_CHECKING, Any, assert_never, overload

import numpy as np

from episodes.data_types import Space
from episodes.errors import UnreadableData, WrongType
from episodes.facts.ending import codes_of
from episodes.facts.facts import FACTS, OPTIONAL, FactKind, PackFacts
from episodes.facts.policy_versions import VersionColumn
from episodes.pack import EpisodePack
from episodes.storage.arrow import flags_of, numbers_of, pyarrow, text_column
from episodes.tracks.indexing import offsets_of
from episodes.tracks.infos import msgpack_codec
from episodes.tracks.read_only import read_only

if TYPE_CHECKING:
    import pyarrow as pa

MOST_STEPS = 1 << 40  # larger lengths of an episode are damage

_FLOAT64, _INT64 = np.dtype(np.float64), np.dtype(np.int64)

UNKNOWN = -1
"""Value in the table for an unknown seed or policy version."""

SEED = "seed"  # key of `custom_data`, and a column
OTHER_IDS = "other_ids"
_VERSIONS, _BEGINS = "policy_versions", "policy_version_begins"  # lists: the runs, and the step at which each begins
_NAMES = {FactKind.ENDING: ("terminated", "truncated"), FactKind.VERSIONS: (_VERSIONS, _BEGINS)}


@cache
def row_fields() -> list[Any]:
    """Return the names and types (Arrow fields) of all metadata columns, such as ids,
    endings and lengths, in stored order."""
    pa = pyarrow()
    types = {
        FactKind.ID: pa.string(),
        FactKind.OPTIONAL_ID: pa.string(),
        FactKind.INTEGER: pa.int64(),
        FactKind.ENDING: pa.bool_(),
    }
    types |= {FactKind.VERSIONS: pa.large_list(pa.int64()), FactKind.TEXT: pa.string()}
    named = [
        *((name, types[kind]) for fact, kind in FACTS.items() for name in _column_names(fact, kind)),
        ("length", pa.int64()),
        ("lookback", pa.int64()),
        ("return", pa.float64()),
        (SEED, pa.int64()),
        (OTHER_IDS, pa.large_binary()),
        ("custom_data", pa.large_binary()),
    ]
    return [pa.field(name, type_) for name, type_ in named]


@cache
def optional_names() -> frozenset[str]:
    """Return the names of the metadata columns that files of older versions may lack. Their values are then null."""
    return frozenset(name for fact, kind in FACTS.items() if kind in OPTIONAL for name in _column_names(fact, kind))


def num_columns(names: Sequence[str]) -> int:
    """Return how many of `names`, the column names of an Arrow file, are metadata columns (one value per chunk)."""
    known = _known_names()
    return sum(name in known for name in names)


@cache
def _known_names() -> frozenset[str]:
    return frozenset(field.name for field in row_fields())


def _column_names(fact: str, kind: FactKind) -> tuple[str, ...]:
    """Return the names of the Arrow columns that store one fact of an episode. An ending has two:
    `terminated` and `truncated`."""
    return _NAMES.get(kind, (fact.rstrip("_"),))


def row_columns(pack: EpisodePack) -> list[Any]:
    """Return the metadata of a pack's episodes as a list of Arrow columns with one value per chunk.

    Raises:
        WrongType: custom data or an id cannot be encoded as msgpack; the message names the key.
    """
    pa = pyarrow()
    other_ids: dict[int, dict[str, Any]] = {}
    facts = []
    for (fact, kind), values in zip(FACTS.items(), pack.facts.columns, strict=True):
        if kind is FactKind.ENDING:
            facts += [pa.array(pack.terminated), pa.array(pack.truncated)]
        elif kind is FactKind.VERSIONS:
            facts += _version_columns(values, len(pack))
        elif kind is FactKind.INTEGER:
            facts.append(pa.array(values))
        elif kind is FactKind.TEXT:
            facts.append(_nulls(len(pack), pa.string()) if values is None else text_column(values))
        elif kind is FactKind.ID or kind is FactKind.OPTIONAL_ID:
            facts.append(_id_column(fact.rstrip("_"), values, len(pack), other_ids))
        else:
            assert_never(kind)
    custom = pack.facts.custom_data
    seeds = _nulls(len(pack), pa.int64()) if custom is None else pa.array([_seed(data) for data in custom], pa.int64())
    return [
        *facts,
        *(pa.array(values) for values in (pack.lengths, pack.lookbacks, pack.returns())),
        seeds,
        _bytes_column(((i, _encode(value, "ids")) for i, value in other_ids.items()), len(pack)),
        _bytes_column(((i, _encode(data, "custom_data")) for i, data in enumerate(custom or ()) if data), len(pack)),
    ]


def _id_column(name: str, ids: np.ndarray | None, num: int, other_ids: dict[int, dict[str, Any]]) -> Any:
    """Return ids as an Arrow column of `num` strings. Ids that are not strings become null,
    and are added to `other_ids` by row.

    Raises:
        WrongType: a str cannot be encoded as UTF-8.
    """
    pa = pyarrow()
    if ids is None:
        return _nulls(num, pa.string())
    texts: np.ndarray | list[str | None] = ids
    if ids.dtype.kind != "U" and not set(map(type, ids)) <= {str, type(None)}:
        strange = {i: id_ for i, id_ in enumerate(ids.tolist()) if id_ is not None and type(id_) is not str}
        for i, id_ in strange.items():
            other_ids.setdefault(i, {})[name] = id_
        texts = [None if i in strange else id_ for i, id_ in enumerate(ids.tolist())]
    try:
        return text_column(texts)
    except UnicodeError as error:
        raise WrongType(f"{name}: a text with a lone surrogate cannot be written as UTF-8 ({error})") from None


def _version_columns(versions: VersionColumn | None, num: int) -> list[Any]:
    """Return the policy versions of `num` episodes as two Arrow columns of lists: versions, and the steps at which they
    begin. All values are null if `versions` is `None`.
    """
    pa = pyarrow()
    if versions is None:
        return [_nulls(num, pa.large_list(pa.int64()))] * 2
    ends = offsets_of(versions.counts())
    lists = (versions.versions, versions.all_begins())
    return [pa.LargeListArray.from_arrays(ends, pa.array(values)) for values in lists]


@lru_cache(maxsize=16)
def _nulls(num: int, type_: pa.DataType) -> Any:
    return pyarrow().nulls(num, type_)


def _seed(data: dict[str, Any] | None) -> int | None:
    """Return the seed in an episode's custom data, or None if no seed fits into int64."""
    seed = (data or {}).get(SEED)
    return int(seed) if isinstance(seed, (int, np.integer)) and 0 <= seed < 2**63 else None


def _encode(value: object, name: str) -> bytes:
    return msgpack_codec.encode(value, name)


def _bytes_column(by_row: Iterable[tuple[int, bytes]], num: int) -> Any:
    """Return an Arrow column of `num` byte strings, which are null except for the given (row, bytes) pairs."""
    pa = pyarrow()
    documents = dict(by_row)
    if not documents:
        return _nulls(num, pa.large_binary())
    return pa.array([documents.get(i) for i in range(num)], pa.large_binary())


class EpisodeRows:
    """Metadata of n stored episode chunks. Each column is checked when it is first used.

    Args:
        arrow: Arrow columns by name, [n] each. Those of `optional_names` may be missing.
        num: number n of chunks.
    """

    def __init__(self, arrow: Mapping[str, Any], num: int) -> None:
        self._arrow = arrow
        self._num = num

    @staticmethod
    def joined(batches: Sequence[Any]) -> EpisodeRows:
        """Return the metadata of several record batches, concatenated."""
        pa, fields = pyarrow(), row_fields()
        names = [field.name for field in fields]
        whole = [_with_optional_columns(batch).select(names) for batch in batches]
        table = pa.Table.from_batches(whole, pa.schema(fields))
        texts = (pa.string(), pa.large_binary())  # strings of many chunks may not fit into one
        columns = {
            name: column if column.type in texts else column.combine_chunks()
            for name, column in zip(names, table.columns, strict=True)
        }
        return EpisodeRows(columns, table.num_rows)

    @cached_property
    def lengths(self) -> np.ndarray:
        """Number of steps of each chunk, int64 [n]."""
        return self._counts("length")

    @cached_property
    def lookbacks(self) -> np.ndarray:
        """Number of lookback steps of each chunk, int64 [n]."""
        return self._counts("lookback")

    def facts(self, observation_space: Space | None, action_space: Space | None) -> PackFacts:
        """Return the metadata, and the given spaces, as `PackFacts`, the form in which an
        `EpisodePack` stores metadata.

        Raises:
            UnreadableData: an episode lacks a required value. Arrow raises errors of its own.
        """
        values: list[Any] = []
        for fact, kind in FACTS.items():
            name = fact.rstrip("_")
            if kind is FactKind.INTEGER:
                values.append(numbers_of(self._required(name), _INT64, self._num, name))
            elif kind is FactKind.ENDING:
                values.append(codes_of(*self._flags.values()))
            elif kind is FactKind.VERSIONS:
                values.append(self._versions)
            elif kind is FactKind.ID or kind is FactKind.OPTIONAL_ID or kind is FactKind.TEXT:
                texts = self._texts(name)
                if texts is None and kind is FactKind.ID:
                    texts = np.full(self._num, None)
                values.append(texts if texts is None else read_only(texts))
            else:
                assert_never(kind)
        custom = self._custom_data
        return PackFacts._make(
            (*values, observation_space, action_space, custom if custom is not None and any(custom) else None)
        )

    @cached_property
    def columns(self) -> dict[str, np.ndarray]:
        """Metadata as arrays [n], by the names of columns of a data set's table.

        Raises:
            UnreadableData: an episode lacks a required value. Arrow raises errors of its own.
        """
        columns: dict[str, np.ndarray] = {}
        for fact, kind in FACTS.items():
            name = fact.rstrip("_")
            if kind is FactKind.INTEGER:
                columns[name] = numbers_of(self._required(name), _INT64, self._num, name)
            elif kind is FactKind.ENDING:
                columns |= self._flags
            elif kind is FactKind.VERSIONS:
                continue  # the last of these columns
            elif kind is FactKind.ID or kind is FactKind.OPTIONAL_ID or kind is FactKind.TEXT:
                texts = self._texts(name)
                columns[name] = np.full(self._num, None) if texts is None else texts
            else:
                assert_never(kind)
        columns |= dict(zip(_BOUNDS, _lowest_and_highest(self._versions, self._num), strict=True))
        columns |= {"length": self.lengths, "lookback": self.lookbacks}
        columns["return"] = numbers_of(self._required("return"), _FLOAT64, self._num, "return")
        seeds = self._known(SEED)
        columns[SEED] = np.full(self._num, UNKNOWN) if seeds is None else seeds.fill_null(UNKNOWN).to_numpy()
        return columns

    def table(self, index: slice | np.ndarray) -> dict[str, np.ndarray]:
        """Return the metadata of selected chunks as a dict of arrays by column name.
        `index` is anything that indexes an array."""
        return {name: column[index] for name, column in self.columns.items()}

    def custom_data_of(self, index: slice | np.ndarray) -> list[dict[str, Any] | None]:
        """Return the `custom_data` dicts of selected chunks as a list, or [] if no chunk has any.
        `index` is anything that indexes an array."""
        custom = self._custom_data
        return [] if custom is None else [custom[i] for i in np.arange(self._num)[index].tolist()]

    @cached_property
    def _custom_data(self) -> CustomData | None:
        column = self._known("custom_data")
        return None if column is None else CustomData(column)

    @cached_property
    def _versions(self) -> VersionColumn | None:
        """Policy versions of all chunks, or None if no policy version is stored."""
        versions, begins = map(self._known, _NAMES[FactKind.VERSIONS])
        if versions is None or begins is None:
            return None
        (values, bounds), (since, _) = _values_and_bounds(versions), _values_and_bounds(begins)
        return VersionColumn.of_runs(values, since, np.diff(bounds))

    @cached_property
    def _other_ids(self) -> dict[int, dict[str, Any]]:
        """Ids that are not strings, by row and name. They are stored as one msgpack document per row."""
        column = self._known(OTHER_IDS)
        documents = () if column is None else column.to_pylist()
        return {i: msgpack_codec.decode(document) for i, document in enumerate(documents) if document}

    def _known(self, name: str) -> Any:
        """Return a column that passes Arrow's checks, or None if all its values are null."""
        column = self._arrow.get(name)
        if column is None or column.null_count == self._num:
            return None
        if len(column) != self._num:
            raise UnreadableData(f"column {name!r}: {len(column)} values for {self._num} episodes")
        column.validate(full=True)
        return column

    def _texts(self, name: str) -> np.ndarray | None:
        """Return texts or ids as an array of objects, or None if all are null."""
        column = self._known(name)
        values = None if column is None else np.array(column.to_pylist(), object)  # to_numpy would import pandas
        for i, ids in self._other_ids.items():
            if name in ids:
                values = np.full(self._num, None) if values is None else values
                values[i] = ids[name]
        return values

    @property
    def _flags(self) -> dict[str, np.ndarray]:
        """Whether each chunk terminated and was truncated, bool [n], by the names of the columns."""
        return {name: flags_of(self._required(name), self._num, name) for name in _NAMES[FactKind.ENDING]}

    def _required(self, name: str) -> Any:
        """Return an Arrow column. Raise `UnreadableData` if a value is null or missing."""
        column = self._arrow[name]
        if column.null_count or len(column) != self._num:
            nulls = column.null_count + self._num - len(column)
            raise UnreadableData(f"column {name!r}: {nulls} episodes have none")
        return column

    def _counts(self, name: str) -> np.ndarray:
        """Return numbers of steps. Raise `UnreadableData` if one is negative or extreme."""
        values = numbers_of(self._required(name), _INT64, self._num, name)
        if len(values) and not 0 <= values.min() <= values.max() < MOST_STEPS:
            raise UnreadableData(f"column {name!r}: an episode of {values.min()} or {values.max()}")
        return values


def _with_optional_columns(batch: pa.RecordBatch | pa.Table) -> Any:
    """Return a record batch (or table) in which metadata columns that older files lack are
    added as columns of nulls."""
    missing = optional_names().difference(batch.schema.names)
    if not missing:
        return batch
    for field in (field for field in row_fields() if field.name in missing):
        batch = batch.append_column(field, pyarrow().nulls(batch.num_rows, field.type))
    return batch


_BOUNDS = ("policy_version_min", "policy_version_max")


def _values_and_bounds(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the concatenated values of an Arrow list column, and the bounds of its n lists in them, [n + 1]."""
    bounds = column.offsets.to_numpy()
    return column.values.to_numpy()[bounds[0] : bounds[-1]], bounds - bounds[0]


def _lowest_and_highest(versions: VersionColumn | None, num: int) -> np.ndarray:
    """Return the lowest and the highest policy version of each episode, int64 [2, num]. Both are `UNKNOWN` without
    versions.
    """
    return np.full((2, num), UNKNOWN) if versions is None else versions.lowest_and_highest().T


class CustomData(Sequence[dict[str, Any] | None]):
    """Sequence of the `custom_data` dicts of stored chunks, each of which is decoded when it is read."""

    __slots__ = ("column",)

    def __init__(self, column: pa.Array | pa.ChunkedArray) -> None:
        self.column = column

    def __reduce__(self) -> Any:
        return list, (list(self),)

    def __len__(self) -> int:
        return len(self.column)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any] | None: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any] | None]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        document = self.column[int(index)].as_py()
        return None if document is None else msgpack_codec.decode(document)

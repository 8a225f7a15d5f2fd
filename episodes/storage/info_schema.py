"""Storage of info dicts in Arrow: one column per key, typed if all values have one dtype and
shape, else as msgpack bytes.

A path whose values change their dtype or shape between batches becomes documents from then on. So a writer begins at
most two shards for each path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from episodes.format_versions import checked_shape
from episodes.storage.arrow import (
    ListColumn,
    check_offsets,
    documents_column,
    documents_of,
    list_column,
    pyarrow,
    value_type,
)
from episodes.tracks.infos import Infos
from episodes.tracks.infos.info_column import Column, PackedColumn, TypedColumn, as_documents

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class InfoField:
    """Dtype and shape of the values under one info key, such as "episode/r", or a mark that they
    are stored as msgpack bytes.

    Attributes:
        dtype: of the values; None for documents.
        shape: of one value.
        plain: True if the values are Python's numbers, not numpy's.
    """

    dtype: str | None = None
    shape: tuple[int, ...] = ()
    plain: bool = False

    @staticmethod
    def of(column: Column) -> InfoField:
        """Return how a column is stored: typed if it has numbers, else as msgpack documents."""
        if isinstance(column, PackedColumn) or column.values.dtype.kind in "UO":
            return InfoField()  # strings of each length have another dtype
        return InfoField(column.values.dtype.str, column.values.shape[1:], column.plain)

    @staticmethod
    def from_json(value: dict[str, Any]) -> InfoField:
        return InfoField(value["dtype"], checked_shape(value["shape"], "the shape of an info"), value["plain"])

    def to_json(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "shape": list(self.shape), "plain": self.plain}

    def column_types(self, path: str) -> dict[str, Any]:
        """Return the names and types of the Arrow columns that store the values under the info key `path`."""
        arrow = pyarrow()
        if self.dtype is None:
            return {_values(path): arrow.large_list(arrow.large_binary())}
        value = value_type(np.dtype(self.dtype))
        return {_values(path): arrow.large_list(value), _present(path): arrow.large_list(arrow.uint8())}


InfoFields = dict[str, InfoField]


def _values(path: str) -> str:
    """Return the name of the Arrow column with the values of an info key."""
    return f"infos/{path}"


def _present(path: str) -> str:
    """Return the name of the Arrow column of flags: whether a row has this typed info key."""
    return f"infos.present/{path}"


def written_columns(infos: Infos) -> dict[str, Column]:
    """Return infos as a dict of columns by key path. Raise `WrongType`, naming the key, if a value
    cannot be encoded as msgpack."""
    return infos.without_objects().columns


def combine_fields(known: InfoFields, columns: dict[str, Column]) -> InfoFields:
    """Return the schema `known`, extended by the keys of new infos. Keys whose dtypes or shapes
    differ change to msgpack."""
    new = {path: InfoField.of(column) for path, column in columns.items()}
    fields = {path: field if known.get(path, field) == field else InfoField() for path, field in new.items()}
    changed = {path: field for path, field in fields.items() if known.get(path) != field}
    return known | changed if changed else known


def arrow_columns(fields: InfoFields, columns: dict[str, Column], offsets: np.ndarray, copies: bool) -> list[Any]:
    """Convert columns of infos to Arrow columns with one list of values per episode, for all keys in `fields`.

    Args:
        offsets: bounds of each episode's infos.
        copies: whether the result must not share memory with `columns`.
    """
    num_rows, result = int(offsets[-1]), []
    for path, field in fields.items():
        if field.dtype is None:
            result.append(_documents(path, columns.get(path), offsets, num_rows))
            continue
        column = columns.get(path) or _absent(field, num_rows)
        result += [list_column(column.values, offsets, copies), list_column(column.present, offsets, copies)]  # type: ignore[union-attr]
    return result


def _absent(field: InfoField, num_rows: int) -> TypedColumn:
    """Return a typed column in which no row has a value."""
    values = np.zeros((num_rows, *field.shape), np.dtype(field.dtype))
    return TypedColumn(values, np.zeros(num_rows, bool), field.plain)


def _documents(path: str, column: Column | None, offsets: np.ndarray, num_rows: int) -> Any:
    """Return one key's infos as an Arrow column of lists of msgpack documents, with an empty document where a row has
    no value.

    Args:
        column: the values, or None if no row has one.
        offsets: bounds of each episode's rows.
    """
    if column is None:
        return documents_column(b"", np.zeros(num_rows + 1, np.int64), offsets)
    data, bounds = as_documents(path, column).joined()
    return documents_column(data, bounds, offsets)


class InfoReader(NamedTuple):
    """How the values of one info key are read: from columns of values and flags, or without flags from documents."""

    path: str
    values: ListColumn
    present: ListColumn | None
    plain: bool


def readers_of(fields: InfoFields, places: dict[str, int]) -> list[InfoReader]:
    """Return how each info key is read from record batches, whose columns have the indices `places` by name."""
    readers = []
    for path, field in fields.items():
        values, present = _values(path), _present(path)
        is_typed = field.dtype is not None
        kind = np.dtype(field.dtype if is_typed else np.uint8)
        column = ListColumn.of(values, places[values], kind, field.shape)
        flags = ListColumn.of(present, places[present], np.dtype(bool), ()) if is_typed else None
        readers.append(InfoReader(path, column, flags, field.plain))
    return readers


def stored_infos(readers: list[InfoReader], batch: pa.RecordBatch, offsets: np.ndarray) -> Infos:
    """Return the infos that are stored in an Arrow record batch. Typed values are not copied.

    Raises:
        UnreadableData: the number of infos differs from that of observations.
    """
    columns: dict[str, Column] = {}
    for path, values, present, plain in readers:
        if present is None:
            documents = batch.column(values.place)
            check_offsets(documents, offsets, values.name)
            data, bounds, _ = documents_of(documents, values.name)
            columns[path] = PackedColumn(data, bounds[:-1], bounds[1:])
        else:
            columns[path] = TypedColumn(values.read(batch, offsets), present.read(batch, offsets), plain)
    num_rows = offsets.item(-1)
    return Infos(columns, num_rows)

"""Conversion of info dicts to table columns (numbers, arrays, text, msgpack) and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.converters.columns import array_of, column_of, has_column, rare_column, spread
from episodes.converters.loss_report import LossReport
from episodes.errors import WrongType
from episodes.pack import EpisodePack
from episodes.storage.arrow import pyarrow
from episodes.tracks.infos import Infos
from episodes.tracks.infos.info_column import Column, PackedColumn, TypedColumn, as_documents

if TYPE_CHECKING:
    import pyarrow as pa

_TEXT, _DOCUMENTS = "text", "msgpack"


def storable_infos(pack: EpisodePack, report: LossReport) -> dict[str, Column]:
    """Return the info dicts of a pack, one per observation, as columns by key path. Keys that cannot be stored are
    added to `report`.
    """
    infos, kept = pack.infos, dict[str, Column]()
    for path, column in infos.whole().columns.items():
        try:
            kept[path] = as_documents(path, column) if column.holds_objects else column
        except WrongType as error:
            ids = pack.ids.repeat(np.diff(pack.observation_offsets))
            for id_ in ids[column.present].tolist():
                report.add(f"infos/{path}", str(error), id_)
    return kept


def info_columns(
    infos: dict[str, Column], prefix: str, rows: np.ndarray, rare: tuple[np.ndarray, int] | None = None
) -> dict[str, Any]:
    """Return the infos at the indices `rows` as a dict of Arrow columns, whose names start with `prefix`.

    Args:
        infos: all infos, as columns by key path.
        prefix: the first part of the columns' names.
        rows: indices of infos, [k].
        rare: None, or the rows [k] and the number of rows of a column that is null elsewhere.
    """
    made = {}
    for path, column in infos.items():
        if kind_of_infos(column) in (_TEXT, _DOCUMENTS):
            made[f"{prefix}{path}"] = _objects(path, column, rows, rare)
            continue
        values, present = column.values[rows], column.present[rows]  # type: ignore[union-attr]
        if rare is not None:
            made[f"{prefix}{path}"] = rare_column(values[present], rare[0][present], rare[1])
        else:
            made[f"{prefix}{path}"] = column_of(values, present)
    return made


def _objects(path: str, column: Column, rows: np.ndarray, rare: tuple[np.ndarray, int] | None) -> Any:
    """Return the rows of a column of text or msgpack documents as a pyarrow array, with null where a row has no
    value.

    Args:
        rows: the rows of `column` to convert.
        rare: if the values belong to a few rows of a longer table: their rows, and the length of the table.
    """
    pa = pyarrow()
    if kind_of_infos(column) == _TEXT:
        kind, values = pa.string(), column.list(rows)
    else:
        packed = as_documents(path, column)
        bounds = zip(packed.starts[rows], packed.ends[rows], strict=True)
        kind, values = pa.binary(), [packed.buffer[a:b].tobytes() for a, b in bounds]
    present = column.present[rows].tolist()
    made = pa.array([value if is_present else None for value, is_present in zip(values, present, strict=True)], kind)
    return made if rare is None else spread(made, *rare)


def read_infos(kinds: dict[str, Any], table: pa.Table, rows: np.ndarray, last_rows: np.ndarray) -> Infos:
    """Convert the columns of an Arrow table back to info dicts.

    Args:
        kinds: the kind of each column, by path.
        table: the table.
        rows: indices of the infos of steps.
        last_rows: indices of the infos of last observations.
    """
    num, columns = len(rows) + len(last_rows), dict[str, Column]()
    ends = last_rows - np.arange(len(last_rows)) - 1
    for path, kind in kinds.items():
        parts = (table[f"infos/{path}"], rows), (table[f"last_infos/{path}"].take(pyarrow().array(ends)), last_rows)
        columns[path] = _read_column(kind, path, parts, num)
    return Infos(columns, num)


def kind_of_infos(column: Column) -> Any:
    """Return how a column is stored: `_TEXT`, `_DOCUMENTS`, or for numbers the list [dtype, shape of an item, whether
    the values were plain Python values].
    """
    if isinstance(column, PackedColumn):
        return _DOCUMENTS
    if column.values.dtype.kind in "UT":
        return _TEXT if column.plain else _DOCUMENTS
    if not has_column(column.values) or 0 in column.values.shape[1:]:
        return _DOCUMENTS
    return [column.values.dtype.str, list(column.values.shape[1:]), column.plain]


def _read_column(kind: Any, path: str, parts: Sequence[tuple[pa.ChunkedArray, np.ndarray]], num: int) -> Column:
    """Return the info column of `num` rows, joined from the parts that have it.

    Args:
        kind: how it is stored, see `kind_of_infos`.
        parts: pairs of a pyarrow column and its rows in the result. Null means that the row has no value.
    """
    present, joined = np.zeros(num, bool), []
    for column, rows in parts:
        is_present = ~np.asarray(column.is_null().to_numpy(zero_copy_only=False))
        present[rows[is_present]] = True
        joined.append(rows[is_present])
    order = np.concatenate(joined)
    if kind in (_TEXT, _DOCUMENTS):
        values = [value for column, _ in parts for value in column.to_pylist() if value is not None]
        if kind == _DOCUMENTS:
            return _of_documents(values, order, num)
        array = np.zeros(num, f"U{max(map(len, values), default=1) or 1}")
        array[order] = values
        return TypedColumn(array, present, True)
    dtype, shape, plain = kind
    read = [array_of(column, np.dtype(dtype), tuple(shape)) for column, _ in parts]
    array = np.zeros((num, *shape), np.dtype(dtype))
    array[order] = np.concatenate([part.reshape(-1, *shape) for part in read])
    return TypedColumn(array, present, plain)


def _of_documents(values: list[bytes], order: np.ndarray, num: int) -> PackedColumn:
    """Return an info column of `num` rows in which the rows `order` contain the msgpack documents `values`, and all
    other rows have no value."""
    by_row = sorted(zip(order.tolist(), values, strict=True))
    sizes = np.zeros(num, np.int64)
    sizes[[row for row, _ in by_row]] = [len(value) for _, value in by_row]
    ends = np.cumsum(sizes)
    return PackedColumn(np.frombuffer(b"".join(value for _, value in by_row), np.uint8), ends - sizes, ends)

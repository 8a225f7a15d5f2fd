"""Infos as columns of a table that everybody reads: numbers, arrays of one shape, text; msgpack for all else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from episodes.converters.columns import array_of, column_of, has_column, rare_column
from episodes.converters.loss_report import LossReport
from episodes.errors import WrongType
from episodes.storage.arrow import pyarrow
from episodes.tracks.infos import Infos
from episodes.tracks.infos.info_columns import Column, ColumnInfos, PackedColumn, TypedColumn, packed_column
from episodes.tracks.infos.infos import EmptyInfos

_TEXT, _DOCUMENTS = "text", "msgpack"


@dataclass(frozen=True, slots=True)
class InfoColumns:
    """The columns of n infos by path, and what each holds: `[dtype, shape, plain]`, "text" or "msgpack"."""

    kinds: dict[str, Any]
    values: dict[str, Column]

    @classmethod
    def of(cls, infos: Infos, whose: Sequence[Any], report: LossReport) -> InfoColumns:
        """The columns of infos of the episodes `whose` [n]; `report` is told of keys that msgpack cannot hold."""
        columns = infos.whole().columns if isinstance(infos, ColumnInfos) else {}
        found: dict[str, Column] = {}
        for path, column in columns.items():
            try:
                found[path] = ColumnInfos({path: column}, len(infos)).without_objects().columns[path]
            except WrongType as error:
                for row in np.flatnonzero(column.present).tolist():
                    report.add(f"infos/{path}", str(error), whose[row])
        return cls({path: _kind_of(column) for path, column in found.items()}, found)

    def to_json(self) -> dict[str, Any]:
        return self.kinds

    def columns(self, prefix: str, rows: np.ndarray, rare: tuple[np.ndarray, int] | None) -> dict[str, Any]:
        """The Arrow columns of some of the infos; with `rare`, at these of so many rows."""
        made = {}
        for path, column in self.values.items():
            if self.kinds[path] in (_TEXT, _DOCUMENTS):
                made[f"{prefix}{path}"] = self._objects(path, column, rows, rare)
                continue
            values, present = column.values[rows], column.present[rows]  # type: ignore[union-attr]
            if rare is not None:
                made[f"{prefix}{path}"] = rare_column(values[present], rare[0][present], rare[1])
            else:
                made[f"{prefix}{path}"] = column_of(values, present)
        return made

    def _objects(self, path: str, column: Column, rows: np.ndarray, rare: tuple[np.ndarray, int] | None) -> Any:
        pa = pyarrow()
        if self.kinds[path] == _TEXT:
            kind, own = pa.string(), list(column.list(rows))
        else:
            packed = column if isinstance(column, PackedColumn) else _packed(path, column)
            kind, own = (
                pa.binary(),
                [packed.buffer[a:b].tobytes() for a, b in zip(packed.starts[rows], packed.ends[rows], strict=True)],
            )
        own = [value if there else None for value, there in zip(own, column.present[rows].tolist(), strict=True)]
        if rare is None:
            return pa.array(own, kind)
        at = np.full(rare[1], -1)
        at[rare[0]] = np.arange(len(own))
        return pa.array(own, kind).take(pa.array(at, mask=at < 0))

    @staticmethod
    def read(kinds: dict[str, Any], table: Any, rows: np.ndarray, last_rows: np.ndarray) -> Infos:
        """The infos of a table, those of steps at `rows` and those after the last ones at `last_rows`."""
        num, found = len(rows) + len(last_rows), dict[str, Column]()
        ends = last_rows - np.arange(len(last_rows)) - 1
        for path, kind in kinds.items():
            parts = (table[f"infos/{path}"], rows), (table[f"last_infos/{path}"].take(pyarrow().array(ends)), last_rows)
            found[path] = _read_column(kind, path, parts, num)
        return ColumnInfos(found, num) if found else EmptyInfos(num)


def _kind_of(column: Column) -> Any:
    if isinstance(column, PackedColumn):
        return _DOCUMENTS
    if column.values.dtype.kind in "UT":
        return _TEXT if column.plain else _DOCUMENTS
    if not has_column(column.values) or 0 in column.values.shape[1:]:
        return _DOCUMENTS
    return [column.values.dtype.str, list(column.values.shape[1:]), column.plain]


def _packed(path: str, column: TypedColumn) -> PackedColumn:
    rows = np.flatnonzero(column.present).tolist()
    return packed_column(path, rows, [column.value(row) for row in rows], len(column.values))


def _read_column(kind: Any, path: str, parts: Any, num: int) -> Column:
    present, joined = np.zeros(num, bool), []
    for column, rows in parts:
        there = ~np.asarray(column.is_null().to_numpy(zero_copy_only=False))
        present[rows[there]] = True
        joined.append(rows[there])
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
    by_row = sorted(zip(order.tolist(), values, strict=True))
    sizes = np.zeros(num, np.int64)
    sizes[[row for row, _ in by_row]] = [len(value) for _, value in by_row]
    ends = np.cumsum(sizes)
    return PackedColumn(np.frombuffer(b"".join(value for _, value in by_row), np.uint8), ends - sizes, ends)

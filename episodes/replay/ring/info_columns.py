"""`InfoColumns`: infos of a replay ring's observations as one array per key, built when infos are first sampled."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Protocol

import numpy as np

from episodes.replay.ring.info_segments import InfoSegments
from episodes.replay.ring.track_ring import put
from episodes.tracks.infos.column_infos import Column, ColumnInfos, PackedColumn, TypedColumn, copy_mutable
from episodes.tracks.infos.dicts import as_object_array


class HasInfos(Protocol):
    """Interface of a replay ring that stores the infos of its observations."""

    infos: InfoSegments
    num_rows: int
    rows_head: int

    @property
    def first_row(self) -> int: ...


class InfoColumns:
    """Cache of info values as columns: for each key path an array with one value per observation in the ring.

    The columns are derived from the ring's `infos`. Each segment is copied once, when infos are sampled after it was
    added. A buffer whose infos are never sampled has no columns.

    Attributes:
        are_exact: whether all values kept their types, so that dicts can be built from these columns.
    """

    def __init__(self) -> None:
        self._reset(0)

    def _reset(self, num_rows: int) -> None:
        """Drop all columns. They are built again when infos are next sampled."""
        self._paths: dict[str, _PathColumn] = {}
        self._num_rows = num_rows
        self._seen = 0  # rows with smaller numbers are copied
        self.are_exact = True

    def columns(self, ring: HasInfos, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return info values at the ring positions `rows` by key path, and as "_<path>" whether each is present.

        Missing values are zeros.
        """
        self._add_new_rows(ring)
        result = {f"_{path}": column.present[rows] for path, column in self._paths.items()}
        return result | {path: column.take(rows) for path, column in self._paths.items()}

    def dicts(self, ring: HasInfos, rows: np.ndarray) -> list[dict[str, Any]] | None:
        """Return the infos at the ring positions `rows` [n] as dicts. None if the columns lost the type of a value."""
        self._add_new_rows(ring)
        if not self.are_exact:
            return None
        columns: dict[str, Column] = {
            path: TypedColumn(column.values[rows], column.present[rows], column.plain)
            for path, column in self._paths.items()
        }
        return ColumnInfos(columns, len(rows)).dicts()

    def _add_new_rows(self, ring: HasInfos) -> None:
        """Copy the infos of observations that were added to the ring since the last call into the columns."""
        if self._num_rows != ring.num_rows:
            self._reset(ring.num_rows)
        if self._seen == ring.rows_head:
            return
        start, stop = max(self._seen, ring.first_row), ring.rows_head
        for column in self._paths.values():
            column.clear(start % self._num_rows, stop - start)
        starts, parts = ring.infos.starts, ring.infos.parts
        for at in range(max(bisect_right(starts, start) - 1, 0), len(starts)):
            part, skipped = parts[at], max(start - starts[at], 0)
            if isinstance(part, ColumnInfos) and skipped < len(part):
                for path, column in part.view(skipped, len(part)).whole().columns.items():
                    self._put(path, starts[at] + skipped, column)
        self._seen = stop

    def _put(self, path: str, row: int, column: Column) -> None:
        """Copy a part of a column to the rows from `row` on. A new key gets a column."""
        column = _typed(column)
        own_column = self._paths.get(path)
        if own_column is None:
            own_column = self._paths[path] = _PathColumn(column, self._num_rows)
        self.are_exact &= own_column.put(row % self._num_rows, column)


def _typed(column: Column) -> Column:
    """Convert a compactly stored string column to an array column. Other columns are returned unchanged."""
    dtype = column.text_dtype() if isinstance(column, PackedColumn) else None
    if dtype is None:
        return column
    present = column.present
    values = np.zeros(len(present), dtype)
    values[present] = column.list(present)
    return TypedColumn(values, present, True)


class _PathColumn:
    """Values of one info key for all observations in a ring, [num_rows + 1, ...]. The last row is padding."""

    __slots__ = ("num_rows", "plain", "present", "values")

    def __init__(self, column: Column, num_rows: int) -> None:
        self.num_rows = num_rows
        self.present = np.zeros(num_rows + 1, bool)
        if isinstance(column, TypedColumn) and not column.holds_objects:
            self.plain = column.plain
            self.values = np.zeros((num_rows + 1, *column.values.shape[1:]), column.values.dtype)
        else:
            self.plain, self.values = False, np.full(num_rows + 1, None)

    def clear(self, position: int, count: int) -> None:
        """Mark the values at `count` ring positions from `position` on as missing."""
        put(self.present, self.num_rows, position, np.zeros(count, bool))
        nothing = None if self.values.dtype == object else np.zeros((), self.values.dtype)
        put(self.values, self.num_rows, position, np.full((count, *self.values.shape[1:]), nothing))

    def put(self, position: int, column: Column) -> bool:
        """Write info values from ring position `position` on. Return False if the column cannot keep their type."""
        exact = isinstance(column, TypedColumn) and self._fits(column)
        if not exact:
            self._convert_to_objects()
        values = column.values if isinstance(column, TypedColumn) and exact else as_object_array(_all_values(column))
        put(self.values, self.num_rows, position, values)
        put(self.present, self.num_rows, position, column.present)
        return exact

    def _fits(self, column: TypedColumn) -> bool:
        """Return True if new info values have the column's dtype and shape. String columns are widened if needed."""
        dtype, other_dtype = self.values.dtype, column.values.dtype
        if column.holds_objects or column.plain != self.plain or column.values.shape[1:] != self.values.shape[1:]:
            return False
        if dtype != other_dtype and dtype.kind == other_dtype.kind == "U":
            self.values = self.values.astype(np.promote_types(dtype, other_dtype))
            return True
        return dtype == other_dtype

    def _convert_to_objects(self) -> None:
        """Convert the values to Python objects, because a later value does not fit the dtype."""
        if self.values.dtype != object:
            present_rows = self.present.nonzero()[0]
            before = self.values[present_rows].tolist() if self.plain else list(self.values[present_rows])
            self.values, self.plain = np.full(self.num_rows + 1, None), False
            self.values[present_rows] = as_object_array(before)

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return the info values at the ring positions `rows` [...], with copies of Python objects."""
        result = self.values[rows]
        if result.dtype == object:
            result.reshape(-1)[:] = as_object_array([copy_mutable(value) for value in result.reshape(-1)])
        return result


def _all_values(column: Column) -> list[Any]:
    """Return the values of an info column as a list, with None for observations without this info."""
    present_rows = column.present
    values = iter(column.list(present_rows.nonzero()[0]))
    return [next(values) if real else None for real in present_rows.tolist()]

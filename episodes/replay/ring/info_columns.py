"""The infos of a ring's observation rows as columns: made when a draw asks for them, a gather a key from then on."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Protocol

import numpy as np

from episodes.replay.ring.info_segments import InfoSegments
from episodes.replay.ring.track_ring import put
from episodes.tracks.infos.dicts import objects
from episodes.tracks.infos.info_columns import Column, ColumnInfos, PackedColumn, TypedColumn, copy_mutable


class HasInfos(Protocol):
    """A ring of observation rows, and their infos."""

    infos: InfoSegments
    num_rows: int
    rows_head: int

    @property
    def first_row(self) -> int: ...


class InfoColumns:
    """For each path a column of `num_rows` values, and one that says where there are any.

    They are derived from the ring's `infos`: each segment is laid in once, when somebody draws after it came. A buffer
    of whose infos nobody draws has none.

    Attributes:
        are_exact: no value had to become another kind than it was, so dicts can be made of these columns.
    """

    def __init__(self) -> None:
        self._reset(0)

    def _reset(self, num_rows: int) -> None:
        self._paths: dict[str, _PathColumn] = {}
        self._num_rows = num_rows
        self._seen = 0  # rows with smaller numbers are laid in
        self.are_exact = True

    def columns(self, ring: HasInfos, rows: np.ndarray) -> dict[str, np.ndarray]:
        """By path the values [...] at row positions, and as "_<path>" where there are any; zeros where not."""
        self._add_new_rows(ring)
        found = {f"_{path}": column.present[rows] for path, column in self._paths.items()}
        return found | {path: column.take(rows) for path, column in self._paths.items()}

    def dicts(self, ring: HasInfos, rows: np.ndarray) -> list[dict[str, Any]] | None:
        """The infos at row positions [n]; None unless they are exact."""
        self._add_new_rows(ring)
        if not self.are_exact:
            return None
        columns: dict[str, Column] = {
            path: TypedColumn(column.values[rows], column.present[rows], column.plain)
            for path, column in self._paths.items()
        }
        return ColumnInfos(columns, len(rows)).dicts()

    def _add_new_rows(self, ring: HasInfos) -> None:
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
        column = _typed(column)
        own_column = self._paths.get(path)
        if own_column is None:
            own_column = self._paths[path] = _PathColumn(column, self._num_rows)
        self.are_exact &= own_column.put(row % self._num_rows, column)


def _typed(column: Column) -> Column:
    """Return a packed column of Python strings as a typed one, other columns as they are."""
    dtype = column.text_dtype() if isinstance(column, PackedColumn) else None
    if dtype is None:
        return column
    present = column.present
    values = np.zeros(len(present), dtype)
    values[present] = column.list(present)
    return TypedColumn(values, present, True)


class _PathColumn:
    """The values [num_rows + 1, ...] of one path; the last is padding, see `track_ring`."""

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
        """No values from a position on."""
        put(self.present, self.num_rows, position, np.zeros(count, bool))
        nothing = None if self.values.dtype == object else np.zeros((), self.values.dtype)
        put(self.values, self.num_rows, position, np.full((count, *self.values.shape[1:]), nothing))

    def put(self, position: int, column: Column) -> bool:
        """Write from a position on; whether values are still what they were."""
        exact = isinstance(column, TypedColumn) and self._fits(column)
        if not exact:
            self._convert_to_objects()
        values = column.values if isinstance(column, TypedColumn) and exact else objects(_all_values(column))
        put(self.values, self.num_rows, position, values)
        put(self.present, self.num_rows, position, column.present)
        return exact

    def _fits(self, column: TypedColumn) -> bool:
        """Whether values are of the kind that is here; strings may be longer."""
        mine, theirs = self.values.dtype, column.values.dtype
        if column.holds_objects or column.plain != self.plain or column.values.shape[1:] != self.values.shape[1:]:
            return False
        if mine != theirs and mine.kind == theirs.kind == "U":
            self.values = self.values.astype(np.promote_types(mine, theirs))
            return True
        return mine == theirs

    def _convert_to_objects(self) -> None:
        if self.values.dtype != object:
            there = self.present.nonzero()[0]
            before = self.values[there].tolist() if self.plain else list(self.values[there])
            self.values, self.plain = np.full(self.num_rows + 1, None), False
            self.values[there] = objects(before)

    def take(self, rows: np.ndarray) -> np.ndarray:
        """The values at the row positions [...]; objects are the reader's own."""
        found = self.values[rows]
        if found.dtype == object:
            found.reshape(-1)[:] = objects([copy_mutable(value) for value in found.reshape(-1)])
        return found


def _all_values(column: Column) -> list[Any]:
    """The values, None where there is none."""
    there = column.present
    values = iter(column.list(there.nonzero()[0]))
    return [next(values) if real else None for real in there.tolist()]

"""`RingInfos`: infos of a replay ring's observations, as one column per key with a value and a flag per observation.

Infos that were added wait, as they came, until infos are first read. Then they are laid into the columns and freed.
So infos that are never read cost nothing but their memory.

    ring of 6, head 9       position   0   1   2   3   4   5 | 6
    observation                        6   7   8   3   4   5 | padding
    "speed"                 values    .6  .7  .8   0   0   0 | 0
                            present    T   T   T   F   F   F | F      seen = 9
    waiting                 (9, infos of the observations 9 and 10)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import numpy as np

from episodes.replay.ring.track_ring import contiguous_ranges, put
from episodes.tracks.infos import Infos
from episodes.tracks.infos.dicts import as_object_array
from episodes.tracks.infos.info_column import Column, PackedColumn, TypedColumn, copy_mutable

Segments = Iterable[tuple[int, Infos]]  # infos of consecutive observations, each with the number of its first one


_SHORT_NBYTES = 1024  # a gap of fewer bytes is cheaper to save than one segment more


class RingInfos:
    """Storage of infos by the running number of their observation. Observations without infos take no memory.

    Args:
        num_rows: size of the ring of observations.
        segments: infos to begin with, in the order of their observations.
    """

    __slots__ = ("_columns", "_waiting", "num_rows")

    def __init__(self, num_rows: int, segments: Segments = ()) -> None:
        self.num_rows = num_rows
        self._columns: dict[str, _RingColumn] = {}
        self._waiting: deque[tuple[int, Infos]] = deque(segments)

    def __bool__(self) -> bool:
        return bool(self._waiting or self._columns)

    def append(self, start: int, infos: Infos) -> None:
        """Add the infos of consecutive observations, of which the first has the number `start`.

        A repeated call has no effect.
        """
        if infos.columns and len(infos) and not (self._waiting and self._waiting[-1][0] == start):
            self._waiting.append((start, infos))

    def drop_before(self, number: int) -> None:
        """Free the waiting infos that belong only to observations with numbers below `number`."""
        waiting = self._waiting
        while waiting and waiting[0][0] + len(waiting[0][1]) <= number:
            waiting.popleft()

    def columns(self, head: int, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return info values at ring positions by key path, and as "_<path>" whether each is present.

        Missing values are zeros.

        Args:
            head: number of the next observation.
            rows: the ring positions, [...].
        """
        columns = self._laid(head)
        result = {f"_{path}": column.present[rows] for path, column in columns.items()}
        return result | {path: column.copies(rows) for path, column in columns.items()}

    def at(self, head: int, rows: np.ndarray) -> Infos:
        """Return the infos at the ring positions `rows` [n], without keys that none of them has. They are empty at the
        position of padding. `head` is the number of the next observation.
        """
        taken: dict[str, Column] = {}
        for path, column in self._laid(head).items():
            present = column.present[rows]
            num_present = np.count_nonzero(present)
            if num_present:
                mask = None if num_present == len(rows) else present
                taken[path] = TypedColumn(column.values[rows], mask, column.plain)
        return Infos(taken, len(rows))

    def segments(self, first: int, head: int) -> Iterator[tuple[int, Infos]]:
        """Yield all infos of the observations with numbers [first, head), with the number of each segment's first one.

        Segments share memory with the ring. Observations without infos are left out, except short gaps between others.
        """
        columns = self._laid(head)
        row_nbytes = sum(column.row_nbytes for column in columns.values())
        for number, count in contiguous_ranges(first, head, self.num_rows) if columns else ():
            start = number % self.num_rows
            has_infos = np.any([column.present[start : start + count] for column in columns.values()], axis=0)
            edges = np.flatnonzero(np.diff(has_infos, prepend=False, append=False))
            is_long = np.repeat(np.diff(edges)[1::2] * row_nbytes > _SHORT_NBYTES, 2)  # gaps
            edges = edges[np.concatenate([[True], is_long, [True]])] if len(edges) else edges
            for begin, end in edges.reshape(-1, 2).tolist():
                span = slice(start + begin, start + end)
                parts: dict[str, Column] = {
                    path: column.part(span) for path, column in columns.items() if column.present[span].any()
                }
                yield number + begin, Infos(parts, end - begin)

    def resized(self, num_rows: int, first: int, head: int) -> RingInfos:
        """Return the infos of the observations with numbers [first, head) in a ring of another size."""
        result = RingInfos(num_rows, self._waiting)
        for path, column in self._columns.items():
            result._columns[path] = column.resized(num_rows, first, head)
        return result

    def _laid(self, head: int) -> dict[str, _RingColumn]:
        """Write all waiting infos to the columns, and return these. They are correct for observations with numbers
        below `head`.

        If the call is interrupted, the next one repeats what was left.
        """
        while self._waiting:
            start, infos = self._waiting[0]
            skipped = max(len(infos) - self.num_rows, 0)
            for path, column in infos.view(skipped, len(infos)).whole().columns.items():
                self._write(path, start + skipped, _typed(column))
            self._waiting.popleft()
        for column in self._columns.values():
            if column.seen < head:
                column.clear_to(head)
        return self._columns

    def _write(self, path: str, number: int, column: Column) -> None:
        """Write the values of one key for consecutive observations from `number` on."""
        own = self._columns.get(path)
        if own is None:
            own = self._columns[path] = _RingColumn.like(column, self.num_rows, number)
        own.write(number, column)


def _typed(column: Column) -> Column:
    """Convert a compactly stored string column to an array column. Other columns are returned unchanged."""
    dtype = column.text_dtype() if isinstance(column, PackedColumn) else None
    if dtype is None:
        return column
    present = column.present
    values = np.zeros(len(present), dtype)
    values[present] = column.list(present)
    return TypedColumn(values, present, True)


class _RingColumn:
    """Values of one info key for all observations in a ring, [num_rows + 1, ...]. The last row is padding.

    Values that do not fit the dtype and shape convert the column to Python objects, each of the type it had.

    Attributes:
        values: the values, zero or None where none is present.
        present: which observations have a value, bool [num_rows + 1].
        plain: whether the values are read as Python's numbers or strings, not numpy's.
        seen: rows are correct for observations with smaller numbers. Later ones are cleared when infos are read, so
            that keys which are absent cost nothing when steps are added.
    """

    __slots__ = ("num_rows", "plain", "present", "seen", "values")

    def __init__(self, values: np.ndarray, plain: bool, seen: int) -> None:
        self.num_rows = len(values) - 1
        self.values, self.plain, self.seen = values, plain, seen
        self.present = np.zeros(len(values), bool)

    @staticmethod
    def like(column: Column, num_rows: int, seen: int) -> _RingColumn:
        """Return an empty column for values of the dtype and shape in `column`."""
        if isinstance(column, TypedColumn) and not column.holds_objects:
            values = np.zeros((num_rows + 1, *column.values.shape[1:]), column.values.dtype)
            return _RingColumn(values, column.plain, seen)
        return _RingColumn(np.full(num_rows + 1, None), False, seen)

    def clear_to(self, number: int) -> None:
        """Mark the observations from `seen` to `number` as missing, which replaced older ones."""
        for first, count in contiguous_ranges(max(self.seen, number - self.num_rows), number, self.num_rows):
            start = first % self.num_rows
            present = self.present[start : start + count]
            if present.any():  # only these are touched: memory of a key that few observations have stays small
                values = self.values[start : start + count]
                values[present] = None if values.dtype == object else np.zeros((), values.dtype)
                present[:] = False
        self.seen = max(self.seen, number)

    def write(self, number: int, column: Column) -> None:
        """Write values of consecutive observations from `number` on. A repeated call has no effect."""
        self.clear_to(number)
        start = number % self.num_rows
        if isinstance(column, TypedColumn) and self._fits(column):
            values = column.values
        else:
            self._convert_to_objects()
            values = _as_objects(column)
        put(self.values, self.num_rows, start, values)
        put(self.present, self.num_rows, start, column.present)
        self.seen = max(self.seen, number + column.num)

    def _fits(self, column: TypedColumn) -> bool:
        """Return True if values have the column's dtype and shape. String columns are widened if needed."""
        dtype, other_dtype = self.values.dtype, column.values.dtype
        if column.holds_objects or column.plain != self.plain or column.values.shape[1:] != self.values.shape[1:]:
            return False
        if dtype != other_dtype and dtype.kind == other_dtype.kind == "U":
            self.values = self.values.astype(np.promote_types(dtype, other_dtype))
            return True
        return dtype == other_dtype

    def _convert_to_objects(self) -> None:
        """Convert the values to Python objects, unless they are objects already."""
        if self.values.dtype != object:
            values = _as_objects(self.part(slice(None)))
            self.values, self.plain = values, False

    @property
    def row_nbytes(self) -> int:
        """Bytes that an observation takes in this column, whether it has a value or not."""
        return self.values[:1].nbytes + 1

    def part(self, rows: slice) -> TypedColumn:
        """Return the values at a range of ring positions. They share memory with the ring."""
        return TypedColumn(self.values[rows], self.present[rows], self.plain)

    def copies(self, rows: np.ndarray) -> np.ndarray:
        """Return the values at the ring positions `rows` [...], with copies of Python objects."""
        result = self.values[rows]
        if result.dtype == object:
            result.reshape(-1)[:] = as_object_array([copy_mutable(value) for value in result.reshape(-1)])
        return result

    def resized(self, num_rows: int, first: int, head: int) -> _RingColumn:
        """Return the values of the observations with numbers [first, head) in a ring of another size."""
        result = _RingColumn.like(self.part(slice(0, 0)), num_rows, self.seen)
        for number, count in contiguous_ranges(first, min(self.seen, head), self.num_rows, num_rows):
            a, b = number % self.num_rows, number % num_rows
            present = self.present[a : a + count]
            result.present[b : b + count] = present
            result.values[b : b + count][present] = self.values[a : a + count][present]
        return result


def _as_objects(column: Column) -> np.ndarray:
    """Return the values of an info column as an array of objects, with None for observations without this info."""
    rows = column.present.nonzero()[0]
    result = np.full(column.num, None)
    result[rows] = as_object_array(column.list(rows))
    return result

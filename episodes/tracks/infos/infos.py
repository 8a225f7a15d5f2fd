"""`Infos`: the info dicts of a finished episode, one column per key. Those of a growing episode are a list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any, overload

import numpy as np

from episodes.errors import StepOutOfRange
from episodes.tracks import nested
from episodes.tracks.infos.info_column import WHOLE, Column, PackedColumn, TypedColumn, as_documents

Key = tuple[tuple[str, ...], str | None]  # keys of the dicts around a value, and its key (None: the value is the info)


class Infos(Sequence[dict[str, Any]]):
    """Immutable sequence of info dicts, one per observation, stored as one array per key path.

    A dict is created each time an item is read. Slices share memory with the sequence. Without columns, all dicts are
    empty.

    Args:
        columns: columns by key path, which may have more rows than these infos.
        num: number of infos.
        start: row of the first one.
        keys: the parsed paths, if they are known.
    """

    __slots__ = ("columns", "keys", "num", "start")

    def __init__(self, columns: dict[str, Column], num: int, start: int = 0, keys: list[Key] | None = None) -> None:
        self.columns = columns  # may hold more rows than this view
        self.num = num
        self.start = start
        self.keys = list(map(_key_of, columns)) if keys is None else keys  # parsed once and shared by all views

    def whole(self) -> Infos:
        """Return these infos with columns of exactly their length. A slice otherwise shares the
        columns of the longer sequence."""
        if not self.start and self.num == self._num_rows:
            return self
        span = slice(self.start, self.start + self.num)
        return Infos({path: column.take(span) for path, column in self.columns.items()}, self.num, 0, self.keys)

    @property
    def _num_rows(self) -> int:
        return next(iter(self.columns.values()), self).num

    @property
    def holds_objects(self) -> bool:
        """Whether some values may be Python objects, such as lists, instead of numbers, strings and arrays."""
        return any(column.holds_objects for column in self.columns.values())

    def copied(self) -> Infos:
        """Return a copy of these infos that shares no array with other infos."""
        selected = self.take(np.arange(self.num))
        for path, column in selected.columns.items():
            if isinstance(column, PackedColumn):
                data, bounds = column.joined()
                selected.columns[path] = PackedColumn(data.copy(), bounds[:-1], bounds[1:])
        return selected

    def arrays(self) -> list[np.ndarray]:
        """Return the list of all arrays in which the infos are stored."""
        return [array for column in self.columns.values() for array in column.arrays()]

    def without_objects(self) -> Infos:
        """Return these infos with all columns of Python objects encoded as msgpack, so that they can be
        written to a file or message.

        Raises:
            WrongType: names the key of a value that msgpack cannot encode.
        """
        whole = self.whole()
        if not any(isinstance(column, TypedColumn) and column.holds_objects for column in whole.columns.values()):
            return whole
        columns = {path: as_documents(path, c) if c.holds_objects else c for path, c in whole.columns.items()}
        return Infos(columns, whole.num, 0, whole.keys)

    def __deepcopy__(self, memo: dict[int, Any]) -> Infos:
        """Return a deep copy of the infos, Python objects included."""
        whole = self.whole()
        return Infos(deepcopy(whole.columns, memo), whole.num, 0, whole.keys)

    def parts(self) -> tuple[list[str], list[tuple[Any, Any, Any]], int]:
        """Return the infos as plain tuples for pickling: key paths, contents of the columns, and number of infos.
        `from_parts` is the inverse."""
        whole = self.without_objects()
        parts = [
            (c.values, c.mask, c.plain) if isinstance(c, TypedColumn) else (c.buffer, c.starts, c.ends)
            for c in whole.columns.values()
        ]
        return list(whole.columns), parts, whole.num

    def __reduce__(self) -> Any:
        return from_parts, self.parts()

    def __len__(self) -> int:
        return self.num

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Infos: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | Infos:
        if not isinstance(index, slice):
            row = index + len(self) if index < 0 else index
            if not 0 <= row < len(self):
                raise StepOutOfRange(f"infos[{index}]: there are infos 0..{len(self) - 1}")
            return self.item(int(row))
        start, stop, step = index.indices(len(self))
        if step == 1:
            return self.view(start, max(start, stop))
        return self.take(np.arange(start, stop, step))

    def item(self, row: int) -> dict[str, Any]:
        """Return the info dict at the non-negative index `row`."""
        info: dict[str, Any] = {}
        row += self.start
        for (parents, last), column in zip(self.keys, self.columns.values(), strict=True):
            mask = column.mask
            if mask is None or mask[row]:
                if last is None or parents:
                    _put([info], parents, last, [column.value(row)])
                else:
                    info[last] = column.value(row)
        return info

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.dicts())

    def dicts(self) -> list[dict[str, Any]]:
        """Return all infos as a list of dicts.

        Reading column by column takes a fifth of the time of reading info by info.
        """
        infos: list[dict[str, Any]] = [{} for _ in range(self.num)]
        span = slice(self.start, self.start + self.num)
        for (parents, last), column in zip(self.keys, self.columns.values(), strict=True):
            mask = column.mask
            if mask is None or mask[span].all():
                _put(infos, parents, last, column.list(span))
                continue
            rows = mask[span].nonzero()[0]
            _put([infos[row] for row in rows.tolist()], parents, last, column.list(rows + self.start))
        return infos

    def view(self, start: int, stop: int) -> Infos:
        """Return the infos at the indices [start, stop), without a copy."""
        return Infos(self.columns, stop - start, self.start + start, self.keys)

    def take(self, rows: np.ndarray) -> Infos:
        """Return the infos at the indices `rows` [k]."""
        if not self.columns:
            return Infos({}, len(rows), 0, self.keys)
        rows = np.asarray(rows) + self.start
        columns: dict[str, Column] = {}
        mask = selected = None
        for path, column in self.columns.items():
            if isinstance(column, TypedColumn) and column.mask is not None:
                if column.mask is not mask:  # keys of the same infos share one mask, which is gathered once
                    mask, selected = column.mask, nested.take(column.mask, rows)
                columns[path] = TypedColumn(nested.take(column.values, rows), selected, column.plain)
            else:
                columns[path] = column.take(rows)
        return Infos(columns, len(rows), 0, self.keys)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (Infos, list)):
            return NotImplemented
        return len(self) == len(other) and all(map(same_info, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)})"


def from_parts(paths: list[str], parts: list[tuple[Any, Any, Any]], num: int) -> Infos:
    """Create the infos from the tuples that `Infos.parts` returned. Tuples pickle
    faster than the column objects."""
    columns = [TypedColumn(*part) if type(part[2]) is bool else PackedColumn(*part) for part in parts]
    return Infos(dict(zip(paths, columns, strict=True)), num)


def _key_of(path: str) -> Key:
    """Split the path of an info value into the tuple of its parent keys and its own key.

    A whole info has no own key (None).
    """
    if path == WHOLE:
        return (), None
    *parents, last = map(nested.unescape, path.split("/"))
    return tuple(parents), last


def _put(infos: list[dict[str, Any]], parents: tuple[str, ...], last: str | None, values: list[Any]) -> None:
    """Write one value into each info dict, under the key `last` of the nested dicts with the keys `parents`."""
    for parent in parents:
        infos = [info.setdefault(parent, {}) for info in infos]
    if last is None:
        for info, value in zip(infos, values, strict=True):
            info.update(value)
    else:
        for info, value in zip(infos, values, strict=True):
            info[last] = value


def same_info(a: object, b: object) -> bool:
    """Return True if two infos, or two info values, are equal. NaN equals NaN."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same_info(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same_info, a, b))
    if _is_array(a) or _is_array(b):
        return nested.equal_arrays(a, b)
    if isinstance(a, (list, tuple)) or isinstance(b, (list, tuple)):
        return False  # a numpy scalar would compare itself with each item
    return bool(a == b) or (a != a and b != b)


def _is_array(value: object) -> bool:
    """Return True if the value is an array of numpy or another library, not a numpy scalar."""
    return isinstance(value, np.ndarray) or (hasattr(value, "__array__") and not isinstance(value, np.generic))

"""Infos as typed columns: how they travel to other processes, to disk and over the network.

Each key (nested keys by path) is one column: an array with a presence mask where its values are regular (numbers,
strings, arrays of one shape and dtype), else one msgpack document per value. Never a pickle.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from episodes.tracks import nested
from episodes.tracks.infos import documents as encoding
from episodes.tracks.infos.kinds import EmptyInfos, Infos

_PLAIN = (bool, int, float, str)


@dataclass(slots=True, eq=False)
class TypedColumn:
    """Regular values, one row each; rows without a value are zero."""

    values: np.ndarray  # [n, ...]
    present: np.ndarray  # [n] bool
    plain: bool  # values were Python numbers or strings, not numpy's

    def value(self, row: int) -> Any:
        value = self.values[row]
        return value.item() if self.plain else value

    def take(self, rows: Any) -> TypedColumn:
        return TypedColumn(self.values[rows], self.present[rows], self.plain)


@dataclass(slots=True, eq=False)
class PackedColumn:
    """Irregular values, each a msgpack document in one buffer."""

    buffer: np.ndarray  # [bytes] uint8
    starts: np.ndarray  # [n]
    ends: np.ndarray  # [n]

    @property
    def present(self) -> np.ndarray:
        return self.ends > self.starts

    def value(self, row: int) -> Any:
        return encoding.decode(self.buffer[self.starts[row] : self.ends[row]].tobytes())

    def take(self, rows: Any) -> PackedColumn:
        return PackedColumn(self.buffer, self.starts[rows], self.ends[rows])


Column = TypedColumn | PackedColumn


class ColumnInfos(Infos):
    """Infos as columns by path; a dict is made when one is read."""

    __slots__ = ("columns", "num", "start")

    def __init__(self, columns: dict[str, Column], num: int, start: int = 0) -> None:
        self.columns = columns
        self.num = num
        self.start = start

    @staticmethod
    def of(infos: Infos) -> Infos:
        """The infos as columns; `WrongType` names the key of a value that cannot travel."""
        if isinstance(infos, EmptyInfos):
            return infos
        if isinstance(infos, ColumnInfos):
            return infos.take(slice(0, None)) if infos.start or infos.num < infos.num_rows else infos
        found: dict[str, tuple[list[int], list[Any]]] = {}
        for row, info in enumerate(infos):
            for path, value in _leaves(info):
                rows, values = found.setdefault(path, ([], []))
                rows.append(row)
                values.append(value)
        if not found:
            return EmptyInfos(len(infos))
        return ColumnInfos({path: _column(path, *pair, len(infos)) for path, pair in found.items()}, len(infos))

    @property
    def num_rows(self) -> int:
        """The rows of the columns, of which this view may be a part."""
        column = next(iter(self.columns.values()))
        return len(column.present)

    def __reduce__(self) -> Any:
        whole = ColumnInfos.of(self)
        return _restore, (whole.columns, whole.num)  # type: ignore[attr-defined]

    def __len__(self) -> int:
        return self.num

    def item(self, row: int) -> dict[str, Any]:
        info: dict[str, Any] = {}
        for path, column in self.columns.items():
            if column.present[self.start + row]:
                _put(info, path, column.value(self.start + row))
        return info

    def view(self, start: int, stop: int) -> ColumnInfos:
        return ColumnInfos(self.columns, stop - start, self.start + start)

    def take(self, rows: Any) -> ColumnInfos:
        rows = np.arange(self.start, self.start + self.num)[rows]
        return ColumnInfos({path: column.take(rows) for path, column in self.columns.items()}, len(rows))


def _restore(columns: dict[str, Column], num: int) -> ColumnInfos:
    return ColumnInfos(columns, num)


def _leaves(info: dict[Any, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    if not all(isinstance(key, str) for key in info):
        yield _WHOLE, info
        return
    for key, value in info.items():
        path = prefix + nested.escape(key)
        if isinstance(value, dict) and value and all(isinstance(k, str) for k in value):
            yield from _leaves(value, path + "/")
        else:
            yield path, value


_WHOLE = "~"  # the path of an info with keys that are no strings, kept as one value; no key escapes to it


def _put(info: dict[str, Any], path: str, value: Any) -> None:
    if path == _WHOLE:
        info.update(value)
        return
    *parents, last = map(nested.unescape, path.split("/"))
    for parent in parents:
        info = info.setdefault(parent, {})
    info[last] = value


def _column(path: str, rows: list[int], values: list[Any], num: int) -> Column:
    array = _regular(values)
    if array is None:
        return packed_column(path, rows, values, num)
    present = np.zeros(num, bool)
    present[rows] = True
    spread = np.zeros((num, *array.shape[1:]), array.dtype)
    spread[rows] = array
    return TypedColumn(spread, present, isinstance(values[0], _PLAIN) and not isinstance(values[0], np.generic))


def _regular(values: list[Any]) -> np.ndarray | None:
    """The values as one array, or None when reading it back would not give the same values."""
    kinds = {_kind(value) for value in values}
    if len(kinds) > 1 or None in kinds:
        return None
    array = np.array(values)
    if array.dtype.kind == "U":
        return array if all(a == b for a, b in zip(array.tolist(), values, strict=True)) else None
    return array if array.dtype.kind in "biufcM" else None


def _kind(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return (isinstance(value, np.ndarray), value.dtype, value.shape)
    if type(value) is int and not -(2**63) <= value < 2**63:
        return None
    return type(value) if type(value) in _PLAIN else None


def _named(path: str) -> str:
    return "infos" + "".join(f"[{nested.unescape(part)!r}]" for part in path.split("/") if path != _WHOLE)


def packed_column(path: str, rows: list[int], values: list[Any], num: int) -> PackedColumn:
    """The values as documents: those of the rows, out of `num`."""
    documents = [encoding.encode(value, _named(path)) for value in values]
    sizes = np.zeros(num, np.int64)
    sizes[rows] = [len(document) for document in documents]
    ends = np.cumsum(sizes)
    return PackedColumn(np.frombuffer(b"".join(documents), np.uint8), ends - sizes, ends)

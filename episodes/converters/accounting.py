"""`Account`: the named values of a source, each of which is read, kept as custom data, or named in the report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np

from episodes.converters.loss_report import LossReport
from episodes.errors import UnreadableData, WrongType
from episodes.tracks import nested
from episodes.tracks.infos import msgpack_codec

UNKNOWN_MEANING = "it is not known what it is"
SOURCE = "source"
"""Key of custom data: values that a source stores for all its episodes, such as the frames per second of a robot."""
_MOST_BYTES = 4096  # of a value that is kept as custom data of each episode
_NUMBERS = "biufc"


class StoredArray(Protocol):
    """An array in memory or in a file, of which rows are read by slices."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype: ...

    def __getitem__(self, rows: slice, /) -> Any: ...


StoredArrays: TypeAlias = "StoredArray | Mapping[Any, StoredArrays] | tuple[StoredArrays, ...]"
"""A stored array, or dicts and tuples of them that share their first axis."""


class Account:
    """Named values of a source. It remembers which ones were read, so that all others can be kept or reported.

    Args:
        values: the values by name.
        path: format of the names in the report, such as "features[{!r}]".

    >>> report = LossReport()
    >>> stored = Account({"fps": 10, "robot": "arm", "scans": np.zeros(9999)})
    >>> stored["fps"], stored.kept(), stored.report_rest(report, "a")
    (10, {'robot': 'arm'}, None)
    >>> print(report)
    scans: it is not known what it is (1 episodes, the first is a)
    """

    __slots__ = ("_inner", "_path", "_read", "_values")

    def __init__(self, values: Mapping[str, Any], path: str = "{}") -> None:
        self._values, self._path = values, path
        self._read: set[str] = set()
        self._inner: dict[str, Account] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._values

    @property
    def values(self) -> Mapping[str, Any]:
        """The values by name, without marking them as read."""
        return self._values

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        self._read.add(key)
        return value

    def get(self, key: str, default: object = None) -> Any:
        """Return the value of `key` and mark it as read, or return `default` if there is none."""
        return self[key] if key in self._values else default

    def has_read(self, key: str) -> bool:
        """Return True if the value of `key` was read or skipped."""
        return key in self._read

    def skip(self, *keys: str) -> None:
        """Mark values that follow from other values, such as the number of rows, as read."""
        self._read.update(keys)

    def inside(self, key: str, path: str | None = None) -> Account:
        """Return the account of the mapping at `key`. Its unread values count as unread values of this account."""
        if key not in self._inner:
            name = self._path.format(key).replace("{", "{{").replace("}", "}}")
            self._inner[key] = Account(self._values[key], path or name + "/{}")
        return self._inner[key]

    def unread(self) -> Iterator[tuple[str, Any]]:
        """Yield name and value of each value that was not read. A mapping that was not read yields its parts."""
        for key, value in self._values.items():
            if key in self._inner:
                yield from self._inner[key].unread()
            elif key in self._read:
                continue
            elif isinstance(value, Mapping) and len(value):
                yield from self.inside(key).unread()
            else:
                yield self._path.format(key), value

    def kept(self) -> dict[str, Any]:
        """Return the unread values that are small enough to be custom data of each episode, and mark them as read."""
        kept = {}
        for key, value in self._values.items():
            if key in self._inner:
                kept |= self._inner[key].kept()
            elif key in self._read:
                continue
            elif isinstance(value, Mapping) and len(value):
                kept |= self.inside(key).kept()
            elif _is_small(document := plain(value)):
                self._read.add(key)
                if document is not None:
                    kept[self._path.format(key)] = document
        return kept

    def report_rest(self, report: LossReport, where: object, reason: str = UNKNOWN_MEANING) -> None:
        """Add each value that was not read to the report. A value None has no information.

        Args:
            report: gets the names.
            where: id of the episode, or position in the source.
            reason: why the values are not read.
        """
        for name, value in self.unread():
            if value is not None:
                report.add(name, reason, where)


def _is_small(value: object) -> bool:
    """Return True if a value can be custom data of each episode: a document of at most `_MOST_BYTES`."""
    try:
        return len(msgpack_codec.encode(value, "")) <= _MOST_BYTES
    except WrongType:
        return False


def plain(value: Any) -> Any:
    """Convert numpy scalars and arrays, bytes of text and h5py's values to Python values, also inside dicts."""
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if getattr(value, "shape", ()) is None:
        return None  # h5py's value for an array without items
    if hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, (np.ndarray, np.generic)):
        return plain(value[()]) if value.nbytes <= _MOST_BYTES else value  # an array in a file
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist())
    if isinstance(value, (set, frozenset)):
        return sorted(map(plain, value), key=str)
    return [plain(part) for part in value] if isinstance(value, (list, tuple)) else value


def check_rows(where: str, columns: Mapping[str, Any], num_rows: int, known: str) -> None:
    """Raise `UnreadableData` unless all columns have `num_rows` rows.

    Args:
        where: name of the source, for the error.
        columns: nested arrays [N, ...] by their names in the source.
        num_rows: N.
        known: name of the column that has N rows, for the error.
    """
    for key, data in columns.items():
        for name, leaf in nested.flatten(data, key).items():
            if tuple(leaf.shape[:1]) != (num_rows,):
                count = f"{leaf.shape[0]} rows" if leaf.shape else "no rows"
                raise UnreadableData(
                    f"{where}: {name!r} has {count}, {known!r} has {num_rows}; all arrays have one row per step"
                )


def check_numbers(where: str, columns: Mapping[str, Any], advice: str = "") -> None:
    """Raise `UnreadableData` if a column has items that are neither numbers nor bools.

    Text is data only if the source declares it, for example by a Text space. Such columns are not checked.

    Args:
        where: name of the source, for the error.
        columns: nested arrays by their names in the source.
        advice: what to do, for the error.
    """
    for key, data in columns.items():
        for name, leaf in nested.flatten(data, key).items():
            if leaf.dtype.kind not in _NUMBERS:
                kinds = {"U": "text", "S": "text", "T": "text", "O": "Python objects", "V": "records"}
                kind = kinds.get(leaf.dtype.kind, f"items of {leaf.dtype}")
                raise UnreadableData(
                    f"{where}: {name!r} holds {kind}, numbers are needed; {advice or 'convert them to numbers first'}"
                )

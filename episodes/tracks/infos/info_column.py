"""Columns of the infos of a finished episode: an array per key path, and a mask of the rows that have a value.

    path          values                 mask
    "speed"       [0.5, 0.7, 0.9]        None: every info has it
    "log/loss"    [0.0, 0.3, 0.0]        [F, T, F]
    "moves"       [None, ["e4"], None]   [F, T, F]     dtype object: values of no common dtype, in memory only

Pickles, messages and files use the same form. There, values of no common dtype are one msgpack document each
(`PackedColumn`), never a pickle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from episodes.tracks import nested
from episodes.tracks.copies import copied
from episodes.tracks.indexing import offsets_of, ranges
from episodes.tracks.infos import msgpack_codec

WHOLE = "~"  # path of an info that is stored as one value, since a key is not a string; no key escapes to it
_IMMUTABLE = (str, bytes, int, float, bool, type(None), np.generic)


@dataclass(slots=True, eq=False)
class TypedColumn:
    """Values of one info key in n info dicts, as a read-only array [n, ...]. Its dtype is object if the
    values have no common dtype."""

    values: np.ndarray  # [n, ...]; zero or None in rows without a value
    mask: np.ndarray | None  # [n] bool, True for rows with a value; None if all rows have one
    plain: bool  # True if the values are read as Python's numbers or strings, not numpy's

    def __post_init__(self) -> None:
        self.values = nested.frozen(self.values)

    def __reduce__(self) -> Any:
        return TypedColumn, (self.values, self.mask, self.plain)

    @property
    def num(self) -> int:
        """Number n of info dicts that this column covers, including those without the key."""
        return len(self.values)

    @property
    def parts(self) -> tuple[np.ndarray, ...]:
        """Tuple of arrays whose concatenation has one value of this key per info dict. Usually it is a single array."""
        return (self.values,)

    @property
    def present(self) -> np.ndarray:
        return np.ones(self.num, bool) if self.mask is None else self.mask

    @property
    def holds_objects(self) -> bool:
        return self.values.dtype.hasobject

    def arrays(self) -> list[np.ndarray]:
        """Return the arrays of this column: the values, and if some dicts lack the key,
        the mask of the dicts that have it."""
        return [*self.parts] if self.mask is None else [*self.parts, self.mask]

    def list(self, rows: slice | np.ndarray) -> list[Any]:
        """Return the values that the info dicts `rows` have under this key, as a list with
        the original Python types."""
        values = self.values[rows]
        if self.holds_objects:
            return list(map(copy_mutable, values))
        return values.tolist() if self.plain else list(values)

    def value(self, row: int) -> Any:
        """Return the value in row `row` as it was recorded.

        Mutable objects are copied. The mask is not checked.
        """
        value = self.values[row]
        if self.holds_objects:
            return copy_mutable(value)
        return value.item() if self.plain else value

    def take(self, rows: slice | np.ndarray) -> TypedColumn:
        mask = None if self.mask is None else nested.take(self.mask, rows)
        return TypedColumn(nested.take(self.values, rows), mask, self.plain)


@dataclass(slots=True, eq=False)
class PackedColumn:
    """Values of one info key that do not fit into one typed array. Each is encoded as
    msgpack, in a common byte buffer."""

    buffer: np.ndarray  # [bytes] uint8
    starts: np.ndarray  # [n]
    ends: np.ndarray  # [n]

    @property
    def num(self) -> int:
        """Number n of info dicts that this column covers, including those without the key."""
        return len(self.starts)

    @property
    def mask(self) -> np.ndarray:
        """Which infos have a value, bool [n]: those whose document is not empty."""
        return self.ends > self.starts

    @property
    def present(self) -> np.ndarray:
        return self.mask

    @property
    def holds_objects(self) -> bool:
        return True

    def arrays(self) -> list[np.ndarray]:
        """Return the arrays of this column: the byte buffer, and each value's first and stop byte in it."""
        return [self.buffer, self.starts, self.ends]

    def text_dtype(self) -> np.dtype | None:
        """Return the numpy string dtype that fits all values of the column, or None if a value is not a string."""
        starts, stops = self.starts[self.present], self.ends[self.present]
        if not len(starts):
            return None
        first, last = self.buffer[starts], self.buffer[stops - 1]
        is_text = ((first & 0xE0) == 0xA0) | ((first >= 0xD9) & (first <= 0xDB))  # how msgpack begins text
        texts = starts + _HEADER_BYTES[first]
        if not is_text.all() or ((last == 0) & (stops > texts)).any():  # numpy's text loses a NUL at its end
            return None
        begins_character = np.append((self.buffer & 0xC0) != 0x80, False)  # of UTF-8
        counts = np.add.reduceat(begins_character, np.stack([texts, stops], 1).ravel(), dtype=np.int64)[::2]
        return np.dtype(f"<U{max(int(counts[stops > texts].max(initial=1)), 1)}")

    def list(self, rows: slice | np.ndarray) -> list[Any]:
        """Return the decoded values that the info dicts `rows` have under this key, with None
        for dicts that lack the key."""
        bounds = zip(self.starts[rows].tolist(), self.ends[rows].tolist(), strict=True)
        return [msgpack_codec.decode(self.buffer[a:b].tobytes()) if b > a else None for a, b in bounds]

    def value(self, row: int) -> Any:
        return msgpack_codec.decode(self.buffer[self.starts[row] : self.ends[row]].tobytes())

    def take(self, rows: slice | np.ndarray) -> PackedColumn:
        return PackedColumn(self.buffer, self.starts[rows], self.ends[rows])

    def joined(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the encoded values as one contiguous byte array, uint8 [bytes], and the bounds of each
        value in it, int64 [n + 1]."""
        sizes = self.ends - self.starts
        bounds = offsets_of(sizes)
        in_a_row = (self.starts[1:] == self.ends[:-1]).all()
        first = int(self.starts[0]) if len(sizes) else 0
        whole = self.buffer[first : first + int(bounds[-1])] if in_a_row else self.buffer[ranges(self.starts, sizes)]
        return np.ascontiguousarray(whole), bounds


_HEADER_BYTES = np.ones(256, np.int64)  # of a msgpack text, by its first byte
_HEADER_BYTES[0xD9:0xDC] = 2, 3, 5

Column = TypedColumn | PackedColumn


def copy_mutable(value: object) -> Any:
    """Return a deep copy of a list, dict, set, tuple or array. Return any other value itself."""
    if isinstance(value, _IMMUTABLE):
        return value
    return copied(value) if isinstance(value, (list, dict, tuple, set, np.ndarray)) else value


def as_documents(path: str, column: Column) -> PackedColumn:
    """Return the column of the info key `path` with each value encoded as msgpack.

    Raises:
        WrongType: names the key of a value that msgpack cannot encode.
    """
    if isinstance(column, PackedColumn):
        return column
    rows = column.present.nonzero()[0]
    values = column.values[rows]
    items = values.tolist() if column.plain or column.holds_objects else list(values)
    encoded = [msgpack_codec.encode(item, _named(path)) for item in items]
    sizes = np.zeros(column.num, np.int64)
    sizes[rows] = [len(document) for document in encoded]
    ends = np.cumsum(sizes)
    return PackedColumn(np.frombuffer(b"".join(encoded), np.uint8), ends - sizes, ends)


def _named(path: str) -> str:
    return "infos" + "".join(f"[{nested.unescape(part)!r}]" for part in path.split("/") if path != WHOLE)

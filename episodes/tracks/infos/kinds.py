"""Infos of finished episodes: immutable sequences of dicts, kept as they came and made into dicts when read.

While an episode grows its infos are a list. Finished, they are an `Infos`: nothing at all where every info is
empty, the dicts themselves, the vector environment's own dicts of arrays, or typed columns (how infos travel).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, overload

import numpy as np

from episodes.errors import StepOutOfRange


class Infos(Sequence[dict[str, Any]]):
    """One info dict per observation. A slice is a view."""

    __slots__ = ()

    @abstractmethod
    def item(self, row: int) -> dict[str, Any]:
        """The info of a row in [0, len)."""

    @abstractmethod
    def view(self, start: int, stop: int) -> Infos:
        """The infos of rows [start, stop), 0 <= start <= stop <= len; no copy."""

    @abstractmethod
    def take(self, rows: np.ndarray) -> Infos:
        """The infos of the rows [k]."""

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

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self.item(row) for row in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (Infos, list)):
            return NotImplemented
        return len(self) == len(other) and all(map(same_info, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)})"

    @staticmethod
    def concat(parts: Sequence[Infos]) -> Infos:
        """The parts one after another."""
        if len(parts) == 1:
            return parts[0]
        if all(isinstance(part, EmptyInfos) for part in parts):
            return EmptyInfos(sum(map(len, parts)))
        if all(isinstance(part, ListInfos) for part in parts):
            return ListInfos(list(chain.from_iterable(part.items[part.start : part.stop] for part in parts)))  # type: ignore[attr-defined]
        return ChainInfos.of(parts)


def same_info(a: Any, b: Any) -> bool:
    """True when two infos (or values of infos) are equal, arrays item for item."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same_info(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same_info, a, b))
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        x, y = np.asarray(a), np.asarray(b)
        inexact = x.dtype.kind in "fc" and y.dtype.kind in "fc"
        return x.shape == y.shape and bool(np.array_equal(x, y, equal_nan=inexact))
    return bool(a == b) or (a != a and b != b)


class EmptyInfos(Infos):
    """`num` empty infos, which take no room."""

    __slots__ = ("num",)

    def __init__(self, num: int) -> None:
        self.num = num

    def __len__(self) -> int:
        return self.num

    def item(self, row: int) -> dict[str, Any]:
        return {}

    def view(self, start: int, stop: int) -> EmptyInfos:
        return EmptyInfos(stop - start)

    def take(self, rows: np.ndarray) -> EmptyInfos:
        return EmptyInfos(len(rows))


class ListInfos(Infos):
    """Infos held as the dicts that they came as."""

    __slots__ = ("items", "start", "stop")

    def __init__(self, items: list[dict[str, Any]], start: int = 0, stop: int | None = None) -> None:
        self.items = items
        self.start = start
        self.stop = len(items) if stop is None else stop

    @staticmethod
    def of(items: Sequence[dict[str, Any]]) -> Infos:
        """The dicts, or `EmptyInfos` when all are empty."""
        return ListInfos(list(items)) if any(items) else EmptyInfos(len(items))

    def __reduce__(self) -> Any:
        return ListInfos, (self.items[self.start : self.stop],)

    def __len__(self) -> int:
        return self.stop - self.start

    def item(self, row: int) -> dict[str, Any]:
        return self.items[self.start + row]

    def view(self, start: int, stop: int) -> ListInfos:
        return ListInfos(self.items, self.start + start, self.start + stop)

    def take(self, rows: np.ndarray) -> ListInfos:
        return ListInfos([self.items[self.start + row] for row in rows.tolist()])


class ChainInfos(Infos):
    """Several infos, one after another, none of them copied."""

    __slots__ = ("bounds", "parts")

    def __init__(self, parts: list[Infos]) -> None:
        self.parts = parts
        self.bounds = np.concatenate([[0], np.cumsum([len(part) for part in parts])])

    @staticmethod
    def of(parts: Sequence[Infos]) -> ChainInfos:
        """A chain of the parts; a chain among them gives its own parts."""
        flat = [p for part in parts for p in (part.parts if isinstance(part, ChainInfos) else (part,)) if len(p)]
        return ChainInfos(flat)

    def __reduce__(self) -> Any:
        return ChainInfos, (self.parts,)

    def __len__(self) -> int:
        return int(self.bounds[-1])

    def item(self, row: int) -> dict[str, Any]:
        at = int(np.searchsorted(self.bounds, row, side="right")) - 1
        return self.parts[at].item(row - int(self.bounds[at]))

    def view(self, start: int, stop: int) -> Infos:
        first = int(np.searchsorted(self.bounds, start, side="right")) - 1
        last = int(np.searchsorted(self.bounds, stop, side="left"))
        bounds = self.bounds.tolist()
        parts = [
            self.parts[i].view(max(start - bounds[i], 0), min(stop, bounds[i + 1]) - bounds[i])
            for i in range(first, min(last, len(self.parts)))
        ]
        return parts[0] if len(parts) == 1 else ChainInfos.of(parts)

    def take(self, rows: np.ndarray) -> ListInfos:
        return ListInfos([self.item(row) for row in rows.tolist()])


class VectorInfos(Infos):
    """Infos of a vector environment, still its own dicts of arrays with `_key` masks; made into dicts when read.

    Args:
        rows: the vector environment's info dicts, one for each recorded row.
        row_index: which of `rows` each info comes from, [n].
        env_index: which environment of that row, [n].
    """

    __slots__ = ("env_index", "row_index", "rows")

    def __init__(self, rows: Sequence[dict[str, Any]], row_index: np.ndarray, env_index: np.ndarray) -> None:
        self.rows = rows
        self.row_index = row_index
        self.env_index = env_index

    def __reduce__(self) -> Any:
        return ListInfos, (list(self),)

    def __len__(self) -> int:
        return len(self.row_index)

    def item(self, row: int) -> dict[str, Any]:
        return info_of(self.rows[self.row_index[row]], int(self.env_index[row]))

    def view(self, start: int, stop: int) -> VectorInfos:
        return VectorInfos(self.rows, self.row_index[start:stop], self.env_index[start:stop])

    def take(self, rows: np.ndarray) -> VectorInfos:
        return VectorInfos(self.rows, self.row_index[rows], self.env_index[rows])


_FINAL = frozenset(("final_obs", "final_info"))


def info_of(vector_info: dict[str, Any], env: int) -> dict[str, Any]:
    """One environment's info out of a vector environment's; keys that it does not have are left out."""
    info = {}
    for key, value in vector_info.items():
        if key in _FINAL or (key[:1] == "_" and key[1:] in vector_info):
            continue
        mask = vector_info.get("_" + key)
        if mask is None or mask[env]:
            info[key] = info_of(value, env) if isinstance(value, dict) else value[env]
    return info

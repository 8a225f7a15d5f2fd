"""Immutable sequences of the info dicts of a finished episode: the base class, and sequences of empty dicts.

The infos of a growing episode are a list. Those of a finished episode are an `Infos`: a count if all infos are empty,
else columns (`episodes.tracks.infos.column_infos`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np

from episodes.errors import StepOutOfRange
from episodes.tracks.nested import equal_arrays


class Infos(Sequence[dict[str, Any]]):
    """Base class of immutable sequences with one info dict per observation. Slices share memory with the sequence."""

    __slots__ = ()

    num: int  # number of infos

    @abstractmethod
    def item(self, row: int) -> dict[str, Any]:
        """Return the info dict at the non-negative index `row`."""

    @property
    def holds_objects(self) -> bool:
        """Whether some values may be Python objects, such as lists, instead of numbers, strings and arrays."""
        return False

    def copied(self) -> Infos:
        """Return these infos with copies of all stored arrays."""
        return self

    def arrays(self) -> list[np.ndarray]:
        """Return the list of all arrays in which the infos are stored. By default the list is empty."""
        return []

    @abstractmethod
    def view(self, start: int, stop: int) -> Infos:
        """Return the infos at the indices [start, stop), without a copy."""

    @abstractmethod
    def take(self, rows: np.ndarray) -> Infos:
        """Return the infos at the indices `rows` [k]."""

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


def same_info(a: object, b: object) -> bool:
    """Return True if two infos, or two info values, are equal. NaN equals NaN."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same_info(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same_info, a, b))
    if _is_array(a) or _is_array(b):
        return equal_arrays(a, b)
    return bool(a == b) or (a != a and b != b)


def _is_array(value: object) -> bool:
    """Return True if the value is an array of numpy or another library, not a numpy scalar."""
    return isinstance(value, np.ndarray) or (hasattr(value, "__array__") and not isinstance(value, np.generic))


class EmptyInfos(Infos):
    """Immutable sequence of empty info dicts. Only their number is stored."""

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

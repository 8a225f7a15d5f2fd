"""`JoinedColumn`: the values of columns one after another, made one array when somebody reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from episodes.tracks.infos.info_columns import TypedColumn
from episodes.tracks.retained_memory import is_immutable, retained_nbytes

_LEAST = 16384  # bytes of a part: copying fewer costs little more than keeping them
_MOST_HELD = 1.25  # times the bytes of the values


class JoinedColumn(TypedColumn):
    """A column that still lies in the arrays of the columns that it is made of.

    Four numbers of infos are as many bytes as all else of a small step, and who joins packs to learn from them seldom
    reads one. So the values are joined when they are asked for: by a reader, `select`, a pickle, a file, a message.
    They are kept from then on, and the parts are not. Threads that ask at once may each join, and get the same values.
    """

    __slots__ = ("_parts",)

    def __init__(self, parts: Sequence[np.ndarray], mask: np.ndarray | None, plain: bool) -> None:
        self._parts = tuple(parts)
        self.mask = mask
        self.plain = plain

    def __getattr__(self, name: str) -> Any:
        if name != "values":  # the slot that is empty until now
            raise AttributeError(f"a column has no attribute {name!r}")
        parts = self._parts
        if len(parts) > 1:
            values = np.concatenate(parts)
            values.flags.writeable = False  # as its parts are
            self._parts = (values,)
        self.values = self._parts[0]
        return self.values

    @property
    def num(self) -> int:
        return sum(map(len, self._parts))

    @property
    def parts(self) -> tuple[np.ndarray, ...]:
        return self._parts

    @property
    def holds_objects(self) -> bool:
        return False


def joined_column(parts: Sequence[np.ndarray], mask: np.ndarray | None, plain: bool) -> TypedColumn:
    """The column of the values in the arrays, of one kind and item shape, one after another; joined late where it may.

    It waits where its parts are large, cannot change, and do not keep much more memory than it needs from being freed,
    as a few rows of a long column or of a message would.
    """
    if _may_wait(parts):
        return JoinedColumn(parts, mask, plain)
    return TypedColumn(np.concatenate(parts), mask, plain)


def _may_wait(parts: Sequence[np.ndarray]) -> bool:
    nbytes, dtype = sum([part.nbytes for part in parts]), parts[0].dtype
    if nbytes < _LEAST * len(parts) or any(part.dtype != dtype for part in parts):
        return False
    if not all(map(is_immutable, parts)):
        return False
    are_views = any(part.base is not None for part in parts)
    return not are_views or retained_nbytes(parts) <= _MOST_HELD * nbytes

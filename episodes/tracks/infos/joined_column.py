"""Column of the values that several concatenated episodes have under one info key.
The arrays are joined when first read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from episodes.tracks.infos.info_column import TypedColumn
from episodes.tracks.retained_memory import is_immutable, retained_nbytes

_LEAST = 16384  # mean bytes of a part; copying smaller parts costs little more than keeping them
_MOST_HELD = 1.25  # retained memory, as a multiple of the bytes of the values


class JoinedColumn(TypedColumn):
    """Column of the values that several episodes have under one info key. The episodes' arrays are concatenated
    when a value is first read.

    Four numeric infos have as many bytes as all else of a small step, and learners that join packs seldom read them. So
    the values are joined when they are first needed: by a reader, `select`, a pickle, a file or a message. The joined
    array is kept and the parts are released. If several threads read at once, each may join, with equal results.
    """

    __slots__ = ("_parts",)

    def __init__(self, parts: Sequence[np.ndarray], mask: np.ndarray | None, plain: bool) -> None:
        self._parts = tuple(parts)
        self.mask = mask
        self.plain = plain

    def __getattr__(self, name: str) -> Any:
        if name != "values":  # Python calls this method because the slot `values` is empty
            raise AttributeError(f"a column has no attribute {name!r}")
        parts = self._parts
        if len(parts) > 1:
            values = np.concatenate(parts)
            values.flags.writeable = False
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
    """Concatenate the values of one info key of several episodes to a column.
    Large arrays are concatenated only when first read.

    The arrays are joined later if they are large, immutable, and retain little more memory than their own. A few rows
    of a long column, or of a message, are copied at once, since they would keep all of it from being freed.
    """
    if _can_join_later(parts):
        return JoinedColumn(parts, mask, plain)
    return TypedColumn(np.concatenate(parts), mask, plain)


def _can_join_later(parts: Sequence[np.ndarray]) -> bool:
    """Return True if the parts may be concatenated later: they are large, immutable, of one dtype, and keep little
    other memory alive.
    """
    nbytes, dtype = sum([part.nbytes for part in parts]), parts[0].dtype
    if nbytes < _LEAST * len(parts) or any(part.dtype != dtype for part in parts):
        return False
    if not all(map(is_immutable, parts)):
        return False
    are_views = any(part.base is not None for part in parts)
    return not are_views or retained_nbytes(parts) <= _MOST_HELD * nbytes

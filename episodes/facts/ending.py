"""How a chunk of an episode stops, and what that means for a part of it. The one home of this question."""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np

from episodes.errors import WrongType


class Ending(Enum):
    """How a chunk stops. `code` is what arrays and files hold: bit 0 terminated, bit 1 truncated.

    >>> Ending.of(True, False), Ending.TERMINATED.in_window(reaches_end=False)
    (Ending.TERMINATED, Ending.OPEN)
    """

    OPEN = 0  # it goes on: still growing, or cut here
    TERMINATED = 1
    TRUNCATED = 2
    BOTH = 3  # Gymnasium's TimeLimit says both when an episode terminates at its last step

    def __init__(self, code: int) -> None:
        self.code = code
        self.is_terminated = bool(code & 1)
        self.is_truncated = bool(code & 2)
        self.is_done = bool(code)

    @staticmethod
    def of(terminated: Any, truncated: Any) -> Ending:
        """The ending of two flags; `WrongType` for a text, say, whatever it says."""
        if terminated is False and truncated is False:
            return ENDINGS[0]
        return ENDINGS[_flag(terminated) + 2 * _flag(truncated)]

    def in_window(self, reaches_end: bool) -> Ending:
        """The ending of a part of the chunk: its own where the part reaches the last step, else none."""
        return self if reaches_end else ENDINGS[0]

    def __repr__(self) -> str:
        return f"Ending.{self.name}"


def _flag(value: Any) -> bool:
    if value is True or value is False:
        return value
    try:
        is_flag = not getattr(value, "ndim", 0) and (value == 0 or value == 1)  # so are numpy's and torch's
    except (TypeError, ValueError, RuntimeError):
        is_flag = False
    if not is_flag or isinstance(value, np.ma.MaskedArray):
        raise WrongType(f"{value!r} is no flag of an ending; give True or False")
    return bool(value)


ENDINGS = tuple(Ending)
"""All endings by code."""


def codes_of(terminated: Any, truncated: Any) -> np.ndarray:
    """`Ending.of` for arrays of flags [n]: codes uint8 [n]."""
    return _flags(terminated) | _flags(truncated).astype(np.uint8) << 1


def flags_of(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The flags of codes, which are uint8: terminated and truncated, bool of the same shape."""
    return (codes & 1).view(bool), (codes >> 1).view(bool)


def _flags(values: Any) -> np.ndarray:
    if isinstance(values, np.ma.MaskedArray):
        raise WrongType("flags are a masked array, whose mask would be lost; give True or False for each episode")
    array = np.asarray(values)
    if array.dtype == bool:
        return array
    return np.array([_flag(value) for value in array.ravel().tolist()], bool).reshape(array.shape)

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
        if not (terminated or truncated):
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
    if isinstance(value, (str, bytes, list, tuple, dict, set)) or getattr(value, "ndim", 0):
        raise WrongType(f"{value!r} is no flag of an ending; give True or False")
    return bool(value)


ENDINGS = tuple(Ending)
"""All endings by code."""


def codes_of(terminated: Any, truncated: Any) -> np.ndarray:
    """`Ending.of` for arrays of flags [n]: codes uint8 [n]."""
    return np.asarray(terminated, bool) | np.asarray(truncated, bool).astype(np.uint8) << 1

"""`Ending`: whether an episode terminated, was truncated, both, or has not ended."""

from __future__ import annotations

from enum import Enum

import numpy as np

from episodes.errors import WrongType
from episodes.tracks.validation import shown


class Ending(Enum):
    """Ending of an episode: open, terminated, truncated or both. `code` has bit 0 for terminated, 1 for truncated.

    >>> Ending.of(True, False), Ending.TERMINATED.in_window(reaches_end=False)
    (Ending.TERMINATED, Ending.OPEN)
    """

    OPEN = 0  # the episode continues: it grows, or was cut here
    TERMINATED = 1
    TRUNCATED = 2
    BOTH = 3  # Gymnasium's TimeLimit sets both flags if an episode terminates at its last step

    def __init__(self, code: int) -> None:
        self.code = code
        self.is_terminated = bool(code & 1)
        self.is_truncated = bool(code & 2)
        self.is_done = bool(code)

    @staticmethod
    def of(terminated: object, truncated: object) -> Ending:
        """Return the ending for the flags terminated and truncated. Raise `WrongType` unless both are bools, 0 or 1."""
        if terminated is False and truncated is False:
            return ENDINGS[0]
        return ENDINGS[_flag("terminated", terminated) + 2 * _flag("truncated", truncated)]

    def in_window(self, reaches_end: bool) -> Ending:
        """Return the ending of a part of the episode: this ending if the part reaches the last step, else OPEN."""
        return self if reaches_end else ENDINGS[0]

    def __repr__(self) -> str:
        return f"Ending.{self.name}"


def _flag(name: str, value: object) -> bool:
    """Return a flag as a bool. 0 and 1 are accepted, also as scalars of numpy or torch.

    Raises:
        WrongType: the value is neither True nor False.
    """
    if value is True or value is False:
        return value
    try:
        is_flag = not getattr(value, "ndim", 0) and (value == 0 or value == 1)  # also numpy's and torch's scalars
    except (TypeError, ValueError, RuntimeError):
        is_flag = False
    if not is_flag or isinstance(value, np.ma.MaskedArray):
        raise WrongType(f"{name}: {shown(value)} is not a flag of an ending; give True or False")
    return bool(value)


ENDINGS = tuple(Ending)
"""All endings, indexed by code."""


def codes_of(terminated: np.ndarray, truncated: np.ndarray) -> np.ndarray:
    """Convert the flags terminated and truncated, bool [n] each, to ending codes, uint8 [n]."""
    return terminated | truncated.astype(np.uint8) << 1


def flags_of(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Convert ending codes, uint8 [n], to the flags terminated and truncated, bool [n] each."""
    return (codes & 1).view(bool), (codes >> 1).view(bool)


def checked_flags(values: object) -> np.ndarray:
    """Return flags of several episodes as a bool array of the same shape.

    Raises:
        WrongType: the array is masked, or a value is neither True nor False.
    """
    if isinstance(values, np.ma.MaskedArray):
        raise WrongType("flags are a masked array, whose mask would be lost; give True or False for each episode")
    array = np.asarray(values)
    if array.dtype == bool:
        return array
    return np.array([_flag("flags", value) for value in array.ravel().tolist()], bool).reshape(array.shape)

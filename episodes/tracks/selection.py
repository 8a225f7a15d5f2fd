"""Positions of the episodes or games that a user's index, mask or slice selects."""

from __future__ import annotations

import numpy as np

from episodes.data_types import Indices
from episodes.errors import StepOutOfRange, WrongType

__all__ = ["position_of", "positions_of"]


def position_of(index: object, size: int, name: str, takes_arrays: str, things: str = "episodes") -> int:
    """Return the position of the episode that an index selects, from 0 to `size` - 1. The index -1 selects the last.

    Args:
        index: the user's index.
        size: number of episodes.
        name: what is indexed, for errors, such as "pack".
        takes_arrays: which methods take arrays, for errors.
        things: what the episodes are, for errors.

    Raises:
        WrongType: the index is not an int.
        StepOutOfRange: there is no such episode.
    """
    if not isinstance(index, (int, np.integer)):
        raise WrongType(f"{name}[{index!r}]: give an int or a slice; {takes_arrays}")
    position = int(index) + size if index < 0 else int(index)
    if not 0 <= position < size:
        raise StepOutOfRange(f"{name}[{index}]: {_listed(size, things)}")
    return position


def positions_of(indices: Indices, size: int, name: str, things: str = "episodes") -> np.ndarray:
    """Return the positions, int64 [k], of the episodes that ints, a mask of bools [size] or a slice select.

    Args:
        indices: the user's indices or mask.
        size: number of episodes.
        name: what is indexed, for errors, such as "pack.select".
        things: what the episodes are, for errors.

    Raises:
        WrongType: `indices` are neither ints nor bools, or not one-dimensional.
        StepOutOfRange: there is no such episode, or the mask has another length.
    """
    if isinstance(indices, slice):
        return np.arange(size)[indices]
    try:
        picked = np.asarray(indices)
    except ValueError:
        raise WrongType(f"{name}: give integers or a mask of bools [{size}], not a ragged list") from None
    if picked.ndim != 1 or (picked.dtype.kind not in "bui" and picked.size):
        description = f"an array {list(picked.shape)} of {picked.dtype}"
        raise WrongType(f"{name}: give integers or a mask of bools [{size}], not {description}")
    try:
        return np.arange(size)[picked if picked.size else np.zeros(0, np.int64)]
    except IndexError as error:
        raise StepOutOfRange(f"{name}: {error}; {_listed(size, things)}") from None


def _listed(size: int, things: str) -> str:
    return f"there are {things} 0..{size - 1}" if size else "there are none"

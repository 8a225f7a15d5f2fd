"""What memory views hold: an array of a few rows keeps all of the memory that it is a view of from being freed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np


def retained_nbytes(arrays: Iterable[np.ndarray]) -> int:
    """The bytes of the memory that arrays are views of, each piece of memory counted once."""
    owners = {id(owner): nbytes for owner, nbytes in map(_owner, arrays)}
    return sum(owners.values())


def _owner(array: np.ndarray) -> tuple[Any, int]:
    """What an array's memory belongs to, and its bytes."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    if array.base is None:
        return array, array.nbytes
    owner = array.base
    while isinstance(owner, memoryview) and owner.obj is not None:
        owner = owner.obj
    try:
        return owner, memoryview(owner).nbytes
    except TypeError:  # a tensor, say: what it has beside this array is not known
        return owner, array.nbytes


def is_immutable(array: np.ndarray) -> bool:
    """Whether an array and all that it is a view of are read-only, and memory that nobody else writes to."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        if owner.flags.writeable:
            return False
        owner = owner.base
    while isinstance(owner, memoryview):
        owner = owner.obj
    return owner is None or type(owner) is bytes

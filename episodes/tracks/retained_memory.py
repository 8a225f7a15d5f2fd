"""Size of the memory that array views keep alive: a view of a few rows prevents its whole
base array from being freed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from episodes.tracks.ragged import Ragged


def retained_nbytes(arrays: Iterable[np.ndarray]) -> int:
    """Return the number of bytes that arrays keep in memory: of views, the size of their base arrays.
    Shared memory counts once."""
    parts = [part for a in arrays for part in ((a.values, a.offsets) if type(a) is Ragged else (a,))]
    owners = {id(owner): nbytes for owner, nbytes in map(_owner, parts)}
    return sum(owners.values())


def _owner(array: np.ndarray) -> tuple[Any, int]:
    """Return the base object that owns the memory of an array, and its size in bytes. If that is unknown, it is the
    array's size."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    if array.base is None:
        return array, array.nbytes
    owner = array.base
    while isinstance(owner, memoryview) and owner.obj is not None:
        owner = owner.obj
    try:
        return owner, memoryview(owner).nbytes
    except TypeError:  # e.g. a tensor, whose full size is not known here
        return owner, array.nbytes


def is_immutable(array: np.ndarray) -> bool:
    """Return True if the array and all base arrays of which it is a view are read-only."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        if owner.flags.writeable:
            return False
        owner = owner.base
    while isinstance(owner, memoryview):
        owner = owner.obj
    return owner is None or type(owner) is bytes

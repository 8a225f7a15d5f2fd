"""`copied`: copies of values that an episode stores, because environments and policies may reuse their arrays."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np

from episodes.tracks.casting import REAL_TYPES

IMMUTABLE = REAL_TYPES | frozenset((str, bytes, type(None), complex, np.complex64, np.complex128, np.str_, np.bytes_))
"""Types whose values never change, so that an episode can store them without a copy."""
_CONTAINERS = (list, dict, tuple, set, np.ndarray)


def copied(value: Any) -> Any:
    """Return a copy of an item: of its arrays, torch tensors, dicts, lists, tuples and sets. Other parts are shared.

    >>> buffer = np.zeros(2)
    >>> item = copied({"position": buffer})
    >>> buffer[:] = 1
    >>> item
    {'position': array([0., 0.])}
    """
    kind = type(value)
    if kind in IMMUTABLE:
        return value
    if kind is np.ndarray and value.dtype != object:
        return value.copy()
    if kind is np.ndarray:
        return np.fromiter(map(copied, value.reshape(-1)), object, value.size).reshape(value.shape)
    if kind is dict:
        return {key: copied(part) for key, part in value.items()}
    if kind is list:
        return list(value) if IMMUTABLE.issuperset(map(type, value)) else [copied(part) for part in value]
    if kind is tuple:
        return tuple([copied(part) for part in value])
    if isinstance(value, _CONTAINERS):
        return deepcopy(value)
    if hasattr(value, "untyped_storage"):  # a torch tensor
        return value.clone()
    return value

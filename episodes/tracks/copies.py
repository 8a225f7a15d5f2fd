"""`copied`: copies of values that an episode stores, because environments and policies may reuse their arrays."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np

from episodes.tracks.casting import REAL_TYPES
from episodes.tracks.levels import DEEPEST, check_levels

IMMUTABLE = REAL_TYPES | frozenset((str, bytes, type(None), complex, np.complex64, np.complex128, np.str_, np.bytes_))
"""Types whose values never change, so that an episode can store them without a copy."""
_CONTAINERS = (list, dict, tuple, set, np.ndarray)
_ARRAY = np.ndarray


def copied(item: Any, levels: int = DEEPEST) -> Any:
    """Return a deep copy of an item. Mappings that are no dicts become dicts, and buffers such as `memoryview` arrays.

    Only objects that Python cannot copy, such as locks and open files, are shared.

    Raises:
        ShapeMismatch: dicts, lists and tuples are nested deeper than `levels`.

    >>> buffer = np.zeros(2)
    >>> copy = copied({"position": buffer})
    >>> buffer[:] = 1
    >>> copy
    {'position': array([0., 0.])}
    """
    kind = type(item)
    if kind is _ARRAY:
        if item.dtype.kind != "O":
            return item.copy()
        return np.fromiter([copied(part, levels - 1) for part in item.reshape(-1)], object, item.size).reshape(
            item.shape
        )
    if kind in IMMUTABLE:
        return item
    if levels <= 0:  # no container may follow
        check_levels(item, 0)
    if kind is dict:
        result = item.copy()
        for key, part in item.items():
            if type(part) not in IMMUTABLE:
                result[key] = copied(part, levels - 1)
        return result
    if kind is list:
        return list(item) if IMMUTABLE.issuperset(map(type, item)) else [copied(part, levels - 1) for part in item]
    if kind is tuple:
        return tuple([copied(part, levels - 1) for part in item])
    if isinstance(item, _CONTAINERS):
        check_levels(item, levels)
        return deepcopy(item)
    if hasattr(item, "untyped_storage"):  # a torch tensor
        return item.clone()
    if isinstance(item, Mapping):
        return {key: copied(part, levels - 1) for key, part in item.items()}
    if isinstance(item, (memoryview, array)):
        return np.array(item)
    try:
        return deepcopy(item)
    except Exception:  # what `__deepcopy__` and `__reduce__` of any class raise
        return item

"""`check_levels`: the limit of how deeply dicts, lists and tuples are nested."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from episodes.errors import ShapeMismatch

DEEPEST = 64
"""Limit of the levels of nested values, well within what Python, Arrow and msgpack can follow."""
_LEAVES = frozenset((bool, int, float, str, bytes, type(None), np.ndarray, np.float32, np.float64))
_CONTAINERS = (dict, list, tuple, Mapping)


def check_levels(
    value: object, levels: int = DEEPEST, kinds: tuple[type, ...] = _CONTAINERS, what: str = "a value"
) -> None:
    """Raise `ShapeMismatch` if more than `levels` dicts, lists and tuples of a value are nested in each other.

    Args:
        value: what a user gave.
        levels: how many are allowed.
        kinds: the types that count as containers.
        what: the value's name, for the error message.
    """
    layer: list[Any] = [value]
    for _ in range(levels):  # each time one level further inside; a part that occurs several times is followed once
        parts: dict[int, Any] = {}
        for container in layer:
            if isinstance(container, kinds):
                is_mapping = type(container) is dict or isinstance(container, Mapping)
                items = container.values() if is_mapping else container
                parts |= {id(part): part for part in items if type(part) not in _LEAVES}
        if not parts:
            return
        layer = list(parts.values())
    if any(isinstance(part, kinds) for part in layer):
        raise too_deep(what)


def too_deep(what: str = "a value") -> ShapeMismatch:
    """Return the error for a value that is nested too deeply."""
    return ShapeMismatch(
        f"{what} is nested deeper than {DEEPEST} levels of dicts, lists and tuples; give one with fewer levels, such "
        "as a flat dict of arrays"
    )

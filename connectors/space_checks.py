"""Description, for error messages, of how a batch of observations or actions differs from its space."""

from __future__ import annotations

from collections.abc import Mapping

import gymnasium as gym
import numpy as np

from episodes.tracks import nested
from episodes.tracks.space_kinds import SpaceKind, kind_of, parts_of


def describe_mismatch(rows: object, space: gym.Space | None, num_rows: int) -> str | None:
    """Return text, for an error message, that describes how a batch of N items differs from a space in structure, shape
    or dtype.

    Args:
        rows: nested arrays [N, ...].
        space: the space of the items.
        num_rows: the expected number N of items.

    Returns:
        text, or None if the batch fits the space or the space cannot be checked.
    """
    kind, spaces = kind_of(space), parts_of(space)
    if kind is SpaceKind.DICT and isinstance(rows, Mapping):
        parts = (describe_mismatch(rows.get(key), part, num_rows) for key, part in spaces.items())
    elif kind is SpaceKind.TUPLE and isinstance(rows, tuple) and len(rows) == len(spaces):
        parts = (describe_mismatch(row, part, num_rows) for row, part in zip(rows, spaces.values(), strict=True))
    elif kind.is_nested and not isinstance(rows, list):
        return f"are {nested.describe(rows)}"
    elif space is None or not kind.is_array:
        return None
    elif not nested.is_leaf(rows):
        return f"are {nested.describe(rows)}"
    else:
        array = np.asarray(rows)
        if array.shape != (num_rows, *(space.shape or ())):
            return f"have shape {list(array.shape)}"
        return f"are {array.dtype}" if array.dtype.kind == "f" and kind is not SpaceKind.BOX else None
    return next((part for part in parts if part), None)

"""Description, for error messages, of how a batch of observations or actions differs from its space."""

from __future__ import annotations

from collections.abc import Mapping

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from episodes.tracks import nested


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
    if isinstance(space, spaces.Dict) and isinstance(rows, Mapping):
        parts = (describe_mismatch(rows.get(key), part, num_rows) for key, part in space.spaces.items())
    elif isinstance(space, spaces.Tuple) and isinstance(rows, tuple) and len(rows) == len(space.spaces):
        pairs = zip(rows, space.spaces, strict=True)
        parts = (describe_mismatch(part, part_space, num_rows) for part, part_space in pairs)
    elif isinstance(space, (spaces.Dict, spaces.Tuple)) and not isinstance(rows, list):
        return f"are {nested.describe(rows)}"
    elif not isinstance(space, _ARRAYS):
        return None
    elif not nested.is_leaf(rows):
        return f"are {nested.describe(rows)}"
    else:
        array = np.asarray(rows)
        if array.shape != (num_rows, *(space.shape or ())):
            return f"have shape {list(array.shape)}"
        return f"are {array.dtype}" if array.dtype.kind == "f" and not isinstance(space, spaces.Box) else None
    return next((part for part in parts if part), None)


_ARRAYS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)

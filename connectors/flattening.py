"""`gymnasium.spaces.flatten` for many items at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


def flatten_rows(space: gym.Space, rows: Any, dtype: Any = None) -> Any:
    """The items, nested arrays [N, ...], as vectors [N, D] of a dtype, Gymnasium's own when None.

    Of a space without a flat form, what Gymnasium makes of its items, in its dtypes.
    """
    if not space.is_np_flattenable:
        return _flatten_parts(space, rows)
    dtype = spaces.flatten_space(space).dtype if dtype is None else dtype
    out = np.zeros((_num_rows(space, rows), spaces.flatdim(space)), dtype)
    _flatten_into(out, space, rows)
    return out


def _flatten_into(out: np.ndarray, space: gym.Space, rows: Any) -> None:
    """Write the flattened rows into `out` [N, D], which is zero."""
    match space:
        case spaces.Dict() | spaces.Tuple():
            start = 0
            for part, part_rows in _parts(space, rows):
                end = start + spaces.flatdim(part)
                _flatten_into(out[:, start:end], part, part_rows)
                start = end
        case spaces.Box() | spaces.MultiBinary():
            out[...] = np.asarray(rows).reshape(out.shape)
        case spaces.Discrete():
            out[np.arange(len(out)), np.asarray(rows, np.int64) - space.start] = 1
        case spaces.MultiDiscrete():
            choices = (np.asarray(rows, np.int64) - space.start).reshape(len(out), -1)
            firsts = np.cumsum(space.nvec.ravel()) - space.nvec.ravel()
            out[np.arange(len(out))[:, None], firsts + choices] = 1
        case _:
            for row, item in zip(out, rows, strict=True):
                row[...] = spaces.flatten(space, item)


def _flatten_parts(space: gym.Space, rows: Any) -> Any:
    """The rows of a space without a flat form, flattened as far as Gymnasium does."""
    match space:
        case spaces.Dict():
            return {key: _flatten_parts(part, rows[key]) for key, part in space.spaces.items()}
        case spaces.Tuple():
            return tuple(_flatten_parts(part, rows[i]) for i, part in enumerate(space.spaces))
        case spaces.Graph() | spaces.Sequence():
            return tuple(spaces.flatten(space, item) for item in rows)
    return flatten_rows(space, rows)


def _parts(space: spaces.Dict | spaces.Tuple, rows: Any) -> Sequence[tuple[gym.Space, Any]]:
    if isinstance(space, spaces.Dict):
        return [(part, rows[key]) for key, part in space.spaces.items()]
    return list(zip(space.spaces, rows, strict=True))


def _num_rows(space: gym.Space, rows: Any) -> int:
    while isinstance(space, (spaces.Dict, spaces.Tuple)):
        space, rows = _parts(space, rows)[0]
    return len(rows)

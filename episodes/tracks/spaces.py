"""What a Gymnasium space tells of its items: their dtypes, and their one-hot form."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from episodes.errors import InvalidArgument
from episodes.tracks import nested

_ONE_ARRAY = frozenset((spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary))


def dtypes_of(space: spaces.Space | None) -> Any:
    """The nested dtypes of a space's items; None where the space has none (or there is no space)."""
    if space is None:
        return None
    if type(space) in _ONE_ARRAY:  # spared two questions to abstract classes, 1 us each
        return space.dtype
    if isinstance(space, spaces.Dict):
        return _all_or_none({key: dtypes_of(sub) for key, sub in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return _all_or_none(tuple(dtypes_of(sub) for sub in space.spaces))
    dtype = getattr(space, "dtype", None)
    return np.dtype(dtype) if dtype is not None and not isinstance(space, spaces.Text) else None


def _all_or_none(dtypes: Any) -> Any:
    return None if any(leaf is None for leaf in nested.leaves(dtypes)) else dtypes


def empty_items(space: spaces.Space | None, num_items: int = 0) -> Any:
    """Zeros [num_items, ...] of a space's items, nested as the space is; `[num_items]` float32 without a space."""
    if isinstance(space, spaces.Dict):
        return {key: empty_items(sub, num_items) for key, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(empty_items(sub, num_items) for sub in space.spaces)
    if space is None or space.shape is None or dtypes_of(space) is None:
        return np.zeros(num_items, np.float32)
    return np.zeros((num_items, *space.shape), space.dtype)


def one_hot(values: Any, space: spaces.Space | None) -> Any:
    """The values [..., *item] with `Discrete` and `MultiDiscrete` parts as float32 one-hot vectors on a last axis.

    A `MultiDiscrete` part becomes its sub-spaces' one-hot vectors, concatenated. Other parts stay as they are.
    """
    if space is None:
        raise InvalidArgument(
            "one_hot_discrete=True needs the episode's space; give observation_space and action_space"
        )
    if isinstance(space, spaces.Dict):
        return {key: one_hot(values[key], sub) for key, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(one_hot(value, sub) for value, sub in zip(values, space.spaces, strict=True))
    if isinstance(space, spaces.Discrete):
        return _one_hot(np.asarray(values) - space.start, int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return _multi_one_hot(np.asarray(values), space)
    return values


def _one_hot(indices: np.ndarray, size: int) -> np.ndarray:
    if indices.size and (indices.min() < 0 or indices.max() >= size):
        raise InvalidArgument(
            f"one-hot of values outside the space: {indices.min()}..{indices.max()} of {size} (start taken off)"
        )
    out = np.zeros((*indices.shape, size), np.float32)
    np.put_along_axis(out, indices[..., None].astype(np.int64), 1.0, axis=-1)
    return out


def _multi_one_hot(values: np.ndarray, space: spaces.MultiDiscrete) -> np.ndarray:
    sizes = space.nvec.reshape(-1)
    batch = values.shape[: values.ndim - space.nvec.ndim]
    indices = (values - space.start).reshape(*batch, len(sizes))
    return np.concatenate([_one_hot(indices[..., i], int(size)) for i, size in enumerate(sizes)], axis=-1)

"""Of what kind the rows of a vector step are: looked at once, then only compared."""

from __future__ import annotations

from typing import Any

import numpy as np

from episodes.errors import TrackMismatch


def are_of(kinds: Any, observations: Any, tracks: dict[str, Any]) -> bool:
    """True when `kinds_of` of these rows is `kinds`, and not None."""
    if kinds is None or len(tracks) != len(kinds[0]):
        return False
    of_tracks, dtype, shape = kinds
    for name, items in tracks.items():
        kind = of_tracks.get(name)
        if kind is None or type(items) is not np.ndarray or items.dtype is not kind[0] or items.shape != kind[1]:
            return False
    return type(observations) is np.ndarray and observations.dtype is dtype and observations.shape == shape


def kinds_of(observations: Any, tracks: dict[str, Any]) -> Any:
    """Names, dtypes and shapes of the rows; None when some are nested or no arrays."""
    kinds: dict[str, Any] = {}
    for name, items in tracks.items():
        if type(items) is not np.ndarray:
            return None
        kinds[name] = items.dtype, items.shape
    if type(observations) is not np.ndarray:
        return None
    return kinds, observations.dtype, observations.shape


def cast(name: str, leaf: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The rows of a leaf with the dtype of their space; `TrackMismatch` where that would lose what they are."""
    if leaf.dtype == dtype:
        return leaf
    if not np.can_cast(leaf.dtype, dtype, "same_kind"):
        raise TrackMismatch(f"{name}: rows of {leaf.dtype} in a space of {dtype}; convert them first")
    return leaf.astype(dtype)

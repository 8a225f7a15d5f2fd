"""Lossless casts between dtypes: a cast to integers keeps every value, and a cast to floats may only round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from episodes.errors import ShapeMismatch, WrongType
from episodes.tracks.field import REWARDS, Field

_NUMBERS = frozenset("biufc")
REAL_TYPES = frozenset((bool, int, float, np.bool_, *(np.dtype(code).type for code in "bBhHiIlLqQefdg")))
"""Types of real numbers."""
BOUNDED_TYPES = REAL_TYPES - {int}
"""Types of real numbers that an array can hold, which are rewards without a further check."""
_LOWEST, _HIGHEST = -(2**63), 2**64 - 1  # integers that an array can hold


def try_cast(values: np.ndarray, dtype: np.dtype) -> np.ndarray | None:
    """Return the array `values` cast to `dtype`, or None if `dtype` cannot represent every value.

    A cast to floats may round to the precision of `dtype`. A cast to integers or bools keeps each value. A finite
    number never becomes infinite, a complex number never real. A string is never cut, and numbers and strings never
    become each other.
    """
    if values.dtype == dtype:
        return values
    numbers = values.dtype.kind in _NUMBERS, dtype.kind in _NUMBERS
    if numbers != (True, True):
        return None if any(numbers) or values.dtype.kind != dtype.kind else _unchanged(values, dtype)
    if np.can_cast(values.dtype, dtype):
        return values.astype(dtype)
    if dtype.kind in "fc":
        return None if values.dtype.kind == "c" != dtype.kind else _rounded(values, dtype)
    return _unchanged(values, dtype)


def _rounded(values: np.ndarray, dtype: np.dtype) -> np.ndarray | None:
    """Return the values as `dtype`, rounded. Return None if a finite value becomes infinite."""
    try:
        with np.errstate(over="raise", invalid="ignore"):
            return values.astype(dtype)
    except FloatingPointError:
        return None


def _unchanged(values: np.ndarray, dtype: np.dtype) -> np.ndarray | None:
    """Return the values as `dtype`, or None if any would change. Complex values return None."""
    if values.dtype.kind == "c":
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        changed = values.astype(dtype)
    return changed if bool((changed == values).all()) else None


def widened_dtype(dtype: np.dtype, values: np.ndarray) -> Any:
    """Return a dtype that can represent all numbers of type `dtype` and also the array
    `values`, or None if no dtype can."""
    both = dtype.kind + values.dtype.kind
    if both[0] != both[1] and not _NUMBERS.issuperset(both):
        return None
    dtype_of_both = np.result_type(dtype, values.dtype)
    return dtype_of_both if dtype_of_both.kind != "O" and try_cast(values, dtype_of_both) is not None else None


MOST_DIMENSIONS = 32
"""Of an item. A numpy array has at most 64, of which batches, sequences and stacks need some."""


def checked_reward(reward: object, label: Callable[[], str]) -> Any:
    """Return a reward as one immutable real number, in its own type or dtype. An array of shape () becomes a number.

    Args:
        label: function that returns the first words of the message.

    Raises:
        ShapeMismatch: the reward is an array, also if it holds a single number.
        WrongType: the reward is not a number, or an integer of more than 64 bits.
    """
    if type(reward) in BOUNDED_TYPES:
        return reward
    if type(reward) is int:
        if not _LOWEST <= reward <= _HIGHEST:
            raise WrongType(f"{label()}: the reward is an integer of more than 64 bits; give a float")
        return reward
    try:
        number = np.asarray(reward)
    except (ValueError, TypeError, RuntimeError):  # a ragged list, or a tensor with gradients or on a device
        raise WrongType(f"{label()}: the reward is a {type(reward).__name__}; give one real number") from None
    if number.ndim:
        advice = (
            "give one number, as .item() does"
            if number.size == 1
            else "give one number, such as their sum, and the vector as an info or an extra model output"
        )
        raise ShapeMismatch(f"{label()}: the reward has shape {number.shape}; {advice}")
    if number.dtype.kind not in "biuf" or isinstance(reward, np.ma.MaskedArray):
        raise WrongType(f"{label()}: the reward is a {type(reward).__name__}; give one real number")
    return number[()]


def checked_rewards(rewards: Sequence[Any], label: str, first: int = 0) -> Sequence[Any]:
    """Return rewards of which each is one immutable number. `first` is the index of the first one in messages.

    Raises:
        ShapeMismatch, WrongType: as `checked_reward`.
    """
    if type(rewards) is not np.ndarray and not BOUNDED_TYPES.issuperset(map(type, rewards)):
        return [checked_reward(reward, lambda i=i: f"{label}: rewards[{i}]") for i, reward in enumerate(rewards, first)]
    return rewards


def is_kind_of(field: Field, array: np.ndarray) -> bool:
    """Return True if the dtype of `array` is valid for the time series `field`:
    real numbers for rewards, numbers or strings for all others."""
    kind = array.dtype.kind
    return kind in "biuf" or (kind not in "OT" and field is not REWARDS)


def check_kinds(field: Field, arrays: Mapping[str, np.ndarray]) -> None:
    """Check that the dtypes of all arrays are valid for the time series `field`: real numbers for rewards, numbers or
    strings of a fixed width for all others.

    Raises:
        WrongType: a dtype is not valid.
        ShapeMismatch: an item has more than `MOST_DIMENSIONS` dimensions.
    """
    for path, array in arrays.items():
        if len(array.shape) > MOST_DIMENSIONS + 1:
            raise ShapeMismatch(
                f"track {path!r} has items of {len(array.shape) - 1} dimensions; give at most {MOST_DIMENSIONS}: "
                "reshape them"
            )
        if not is_kind_of(field, array):
            allowed = "real numbers" if field is REWARDS else "numbers or strings"
            if array.dtype.kind == "T" and field is not REWARDS:
                allowed = "strings of a fixed width: array.astype(str)"
            raise WrongType(f"track {path!r} has dtype {array.dtype}; give {allowed}")

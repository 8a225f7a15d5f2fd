"""The one rule of which dtype can hold which values: nothing wraps around, overflows or is cut; floats are rounded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from episodes.errors import ShapeMismatch, WrongType
from episodes.tracks.field import REWARDS, Field

_NUMBERS = frozenset("biufc")
REAL_TYPES = frozenset((bool, int, float, np.bool_, *(np.dtype(code).type for code in "bBhHiIlLqQefdg")))
"""The types of most rewards."""


def cast(values: np.ndarray, dtype: np.dtype) -> np.ndarray | None:
    """The values in the dtype (themselves where it is theirs); None where it cannot hold them all.

    A float is rounded to the precision of the dtype, a whole number that it cannot hold is not; a finite number never
    becomes infinite, a complex one never real, a string is never cut, and numbers and strings never become each other.
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
    try:
        with np.errstate(over="raise", invalid="ignore"):
            return values.astype(dtype)
    except FloatingPointError:
        return None


def _unchanged(values: np.ndarray, dtype: np.dtype) -> np.ndarray | None:
    if values.dtype.kind == "c":
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        changed = values.astype(dtype)
    return changed if bool((changed == values).all()) else None


def widened_dtype(dtype: np.dtype, values: np.ndarray) -> Any:
    """The dtype that holds items of the dtype and these values; None where there is none."""
    both = dtype.kind + values.dtype.kind
    if both[0] != both[1] and not _NUMBERS.issuperset(both):
        return None
    found = np.result_type(dtype, values.dtype)
    return found if found.kind != "O" and cast(values, found) is not None else None


def check_reward(reward: Any, whose: Callable[[], str]) -> None:
    """Raise unless a reward is one real number.

    Args:
        whose: gives the first words of the message.

    Raises:
        ShapeMismatch: it is an array, also one of a single number.
        WrongType: it is no number.
    """
    if type(reward) in REAL_TYPES:
        return
    try:
        number = np.asarray(reward)
    except (ValueError, TypeError, RuntimeError):  # ragged, or a tensor with gradients or elsewhere
        raise WrongType(f"{whose()}: the reward is a {type(reward).__name__}; give one real number") from None
    if number.ndim:
        raise ShapeMismatch(f"{whose()}: the reward has shape {number.shape}; give one number, as .item() does")
    if number.dtype.kind not in "biuf":
        raise WrongType(f"{whose()}: the reward is a {type(reward).__name__}; give one real number")


def is_kind_of(field: Field, array: np.ndarray) -> bool:
    """Whether the array is of numbers or strings, and one of rewards of real numbers."""
    kind = array.dtype.kind
    return kind in "biuf" or (kind != "O" and field is not REWARDS)


def check_kinds(field: Field, arrays: Mapping[str, np.ndarray]) -> None:
    """Raise `WrongType` unless the arrays, by path, are of numbers or strings, and those of rewards of real numbers."""
    for path, array in arrays.items():
        if not is_kind_of(field, array):
            what = "real numbers" if field is REWARDS else "numbers or strings"
            raise WrongType(f"track {path!r} has dtype {array.dtype}; give {what}")

"""What arguments of constructors must be: checked where they come in, named where they are not."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
from gymnasium import Space

from episodes.errors import InvalidArgument, WrongType


def checked_count(name: str, value: Any, at_least: float = 1) -> int:
    """The value as an int; `InvalidArgument` unless it is one, no bool, of at least so much (-inf: of any sign)."""
    try:
        count = None if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:
        count = None
    if count is None or count < at_least:
        bound = "" if at_least == -math.inf else f" of at least {at_least}"
        raise InvalidArgument(f"{name}={value!r}: give an int{bound}")
    return count


def checked_number(name: str, value: Any, low: float = -math.inf, high: float = math.inf) -> float:
    """The value as Python's float, which leaves float32 alone; `InvalidArgument` unless it is one in [low, high]."""
    try:
        number = math.nan if isinstance(value, (bool, np.bool_, str, bytes)) or np.ndim(value) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not low <= number <= high:
        bounds = {(-math.inf, math.inf): "be a number", (0, math.inf): "be a number of at least 0"}
        wanted = bounds.get((low, high), f"lie in [{low:g}, {high:g}]")
        raise InvalidArgument(f"{name}={value!r}: it must {wanted}")
    return number


def checked_flag(name: str, value: Any) -> bool:
    """The value as a bool; `WrongType` for what is none, such as "False"."""
    if not isinstance(value, (bool, np.bool_)):
        raise WrongType(f"{name}={value!r}: give True or False")
    return bool(value)


def checked_items(name: str, value: Any, what: str) -> list[Any]:
    """The value as a list; `WrongType` for what has no items, or is text."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise WrongType(f"{name}={value!r}: give {what} in a list; none is []")
    return list(value)


def checked_mapping(name: str, value: Any, what: str) -> dict[Any, Any]:
    """The value as a dict; `WrongType` for what is no mapping."""
    if not isinstance(value, Mapping):
        raise WrongType(f"{name}={value!r}: give a dict {what}")
    return dict(value)


def checked_choice(name: str, value: Any, choices: Collection[str]) -> Any:
    """The value; `InvalidArgument` unless it is one of the choices."""
    if not isinstance(value, str) or value not in choices:
        raise InvalidArgument(f"{name}={value!r}: give " + " or ".join(f'"{choice}"' for choice in choices))
    return value


def checked_key(name: str, value: Any) -> str:
    """The value; `WrongType` unless it is text."""
    if not isinstance(value, str):
        raise WrongType(f"{name}={value!r}: give the key, a str")
    return value


def checked_space(name: str, value: Any, *, or_none: bool = True) -> Any:
    """The value; `WrongType` unless it is a space, or None where it need not be known."""
    if not (isinstance(value, Space) or (or_none and value is None)):
        raise WrongType(f"{name}={value!r}: give a space of gymnasium.spaces{', or None' if or_none else ''}")
    return value


def checked_seed(seed: Any) -> int | None:
    """The seed as a Python int, which Gymnasium asks for; `InvalidArgument` unless it is one of 0 or more, or None."""
    return None if seed is None else checked_count("seed", seed, 0)


def checked_generator(seed: Any) -> np.random.Generator:
    """A generator of the seed; `InvalidArgument` for what is none."""
    try:
        if isinstance(seed, (bool, str)):
            raise TypeError
        return np.random.default_rng(seed)
    except (TypeError, ValueError):
        raise InvalidArgument(f"seed={seed!r}: give an int of at least 0, or None for random draws") from None


def checked_number_dtype(name: str, dtype: Any) -> np.dtype:
    """The dtype; `WrongType` unless it is one of numbers."""
    try:
        found = None if dtype is None else np.dtype(dtype)
    except (TypeError, ValueError):
        found = None
    if found is None or found.kind not in "iuf":
        raise WrongType(f"{name}={dtype!r}: give a dtype of numbers, such as np.float32")
    return found


def checked_path(path: Any) -> Any:
    """The path, or None; `WrongType` for what is no path."""
    if path is not None and not isinstance(path, (str, os.PathLike)):
        raise WrongType(f"path={path!r}: give the path of a directory, or None for memory")
    return path


def checked_place(name: str, value: Any) -> Any:
    """The value, or None; `WrongType` for what is no path, such as the number of an open file."""
    if value is not None and not isinstance(value, (str, os.PathLike)):
        raise WrongType(f"{name}={value!r}: give a path, or None")
    return value

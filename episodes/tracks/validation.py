"""Validation of function arguments, with error messages that name the argument."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space

from episodes.errors import EpisodeError, InvalidArgument, StateMismatch, WrongType

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


def checked_count(name: str, value: Any, at_least: float = 1) -> int:
    """Return an argument as an int. Raise `InvalidArgument` unless it is an integer of at least `at_least`.

    Raises:
        InvalidArgument: the value is not an int (bools do not count), or is less than `at_least`.
    """
    try:
        count = None if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:
        count = None
    if count is None or count < at_least:
        bound = "" if at_least == -math.inf else f" of at least {at_least}"
        raise InvalidArgument(f"{name}={shown(value)}: give an int{bound}")
    return count


def checked_number(name: str, value: Any, low: float = -math.inf, high: float = math.inf) -> float:
    """Return an argument as a float. Raise `InvalidArgument` unless it is a number in [low, high].

    Raises:
        InvalidArgument: the value is not a number in [low, high].
    """
    try:
        number = math.nan if isinstance(value, (bool, np.bool_, str, bytes)) or np.ndim(value) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not low <= number <= high:
        bounds = {(-math.inf, math.inf): "be a number", (0, math.inf): "be a number of at least 0"}
        requirement = bounds.get((low, high), f"lie in [{low:g}, {high:g}]")
        raise InvalidArgument(f"{name}={shown(value)}: it must {requirement}")
    return number


def shown(value: object) -> str:
    """Return a user's value as Python prints it, shortened, for an error message. Any depth of nesting is allowed."""
    try:
        text = repr(value)
    except RecursionError:
        return f"a {type(value).__name__} of very many levels"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


_MOST_SHOWN = 400
"""Limit of the characters of a value in an error message."""


@contextmanager
def reading_state(owner: type) -> Iterator[None]:
    """Return a context in which a state dict of `owner` is read, and a malformed one raises `StateMismatch`."""
    try:
        yield
    except _MALFORMED as error:
        if isinstance(error, EpisodeError):
            raise
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else repr(error)
        raise StateMismatch(f"no state of a {owner.__name__} ({reason}); give what get_state returned") from None


_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError)


def checked_flag(name: str, value: object) -> bool:
    """Return an argument, a Python or numpy bool, as a Python bool.

    Raises:
        WrongType: the value is not a bool, for example 1 or "False".
    """
    if not isinstance(value, (bool, np.bool_)):
        raise WrongType(f"{name}={shown(value)}: give True or False")
    return bool(value)


def checked_items(name: str, value: object, contents: str) -> list[Any]:
    """Return an iterable argument as a list.

    The error names the `contents` that it must have. Raise `WrongType` if it is a string or not iterable.

    Raises:
        WrongType: the value is not iterable, or is text.
    """
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise WrongType(f"{name}={shown(value)}: give {contents} in a list; none is []")
    return list(value)


def checked_mapping(name: str, value: object, contents: str) -> dict[Any, Any]:
    """Return a mapping argument as a dict.

    The error names the `contents` that it must have, such as "of a space for each module".

    Raises:
        WrongType: the value is not a mapping.
    """
    if not isinstance(value, Mapping):
        raise WrongType(f"{name}={shown(value)}: give a dict {contents}")
    return dict(value)


def checked_choice(name: str, value: object, choices: Collection[str]) -> Any:
    """Return an argument unchanged. Raise `InvalidArgument` unless it is one of the strings `choices`.

    Raises:
        InvalidArgument: the value is not one of the choices.
    """
    if not isinstance(value, str) or value not in choices:
        raise InvalidArgument(f"{name}={shown(value)}: give " + " or ".join(f'"{choice}"' for choice in choices))
    return value


def checked_key(name: str, value: object) -> str:
    """Return an argument unchanged. Raise `WrongType` unless it is a str."""
    if not isinstance(value, str):
        raise WrongType(f"{name}={shown(value)}: give the key, a str")
    return value


def checked_space(name: str, value: object, *, or_none: bool = True) -> Any:
    """Return an argument unchanged. Raise `WrongType` unless it is a Gymnasium space (or None, if `or_none` is True).

    Raises:
        WrongType: the value is not a space. None is allowed if `or_none` is True.
    """
    if not (isinstance(value, Space) or (or_none and value is None)):
        raise WrongType(f"{name}={shown(value)}: give a space of gymnasium.spaces{', or None' if or_none else ''}")
    return value


def checked_seed(seed: object) -> int | None:
    """Return a seed as a Python int, the type that Gymnasium requires, or None for None.
    Raise `InvalidArgument` for other values.

    Raises:
        InvalidArgument: the seed is not an int of at least 0.
    """
    return None if seed is None else checked_count("seed", seed, 0)


def checked_generator(seed: int | np.random.Generator | None) -> np.random.Generator:
    """Create a numpy random generator from a seed.

    For None the seed is random. A generator is returned itself.

    Raises:
        InvalidArgument: the seed is neither an int of at least 0 nor None.
    """
    try:
        if isinstance(seed, (bool, str)):
            raise TypeError
        return np.random.default_rng(seed)
    except (TypeError, ValueError):
        raise InvalidArgument(f"seed={shown(seed)}: give an int of at least 0, or None for random draws") from None


def checked_number_dtype(name: str, dtype: DTypeLike) -> np.dtype:
    """Return a dtype argument as a numpy dtype. Raise `WrongType` unless it is a dtype of real numbers."""
    try:
        checked = None if dtype is None else np.dtype(dtype)
    except (TypeError, ValueError):
        checked = None
    if checked is None or checked.kind not in "iuf":
        raise WrongType(f"{name}={shown(dtype)}: give a dtype of numbers, such as np.float32")
    return checked


def checked_path(path: object) -> Any:
    """Return the argument `path` after a check that it is the path of a directory, or None to store data in memory."""
    if path is not None and not isinstance(path, (str, os.PathLike)):
        raise WrongType(f"path={shown(path)}: give the path of a directory, or None for memory")
    return path


def checked_place(name: str, value: object) -> Any:
    """Return an argument after a check that it is a path or None. Raise `WrongType` for others, such as file
    descriptors.
    """
    if value is not None and not isinstance(value, (str, os.PathLike)):
        raise WrongType(f"{name}={shown(value)}: give a path, or None")
    return value

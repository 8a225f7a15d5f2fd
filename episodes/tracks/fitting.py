"""Checks that items fit their space in structure, shape and dtype. All paths into an episode use them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.errors import ShapeMismatch
from episodes.tracks import nested
from episodes.tracks.casting import try_cast
from episodes.tracks.policy_box import PolicyBox
from episodes.tracks.ragged import Ragged
from episodes.tracks.space_kinds import KIND_OF_CLASS, SpaceKind, kind_of, parts_of

if TYPE_CHECKING:
    from episodes.data_types import Space

# Attributes of an `Enum` take 100 ns more per step.
_DICT, _TUPLE, _DISCRETE = SpaceKind.DICT, SpaceKind.TUPLE, SpaceKind.DISCRETE


def check_fits(
    value: object, space: Space | None, label: Callable[[], str], name: str, leading: tuple[int, ...] = ()
) -> None:
    """Raise `ShapeMismatch` unless an item has the structure, shapes and dtypes of a space's items.

    A dtype fits if it can be cast to that of the space without loss; a cast to floats may round. Bounds are not
    checked, nor are parts whose space is not a `Box`, `Discrete`, `MultiDiscrete` or `MultiBinary`.

    Args:
        value: the item, or a batch of items.
        space: the space, or None to accept every item.
        label: function that returns the first words of an error message.
        name: name of the value in the message, such as "the observation".
        leading: leading axes of a batch, such as `(N,)`.

    Raises:
        ShapeMismatch: names the first part that does not fit.
    """
    if space is None or _fits_exactly(space, value, leading):
        return
    for mismatch in space_mismatches(space, value, name, leading):
        raise ShapeMismatch(f"{label()}: {mismatch}; give items of the space, or declare the space of these items")


def _fits_exactly(space: Any, value: Any, leading: tuple[int, ...]) -> bool:
    """Return True if the arrays of `value` have exactly the dtypes and shapes of the space: a fast check."""
    given = type(value)
    if given is np.ndarray:
        shape = space.shape  # None for spaces of dicts, tuples and items of any shape
        return shape is not None and value.dtype == space.dtype and value.shape == (*leading, *shape)
    kind = KIND_OF_CLASS.get(type(space))
    if kind is _DICT and given is dict:
        parts = space.spaces
        for key, part in parts.items():
            if key not in value or not _fits_exactly(part, value[key], leading):
                return False
        return len(parts) == len(value)
    if kind is _TUPLE and given is tuple:
        parts = space.spaces
        return len(parts) == len(value) and all(map(_fits_exactly, parts, value, repeat(leading)))
    return kind is _DISCRETE and (given is int or given is np.int64) and not leading


def space_mismatches(
    space: Any, value: object, name: str, leading: tuple[int, ...] = (), *, dtypes: bool = True
) -> Iterator[str]:
    """Yield a description of each part of `value` whose structure, shape or dtype does not fit `space`.

    The arguments are those of `check_fits`. With `dtypes=False`, only structure and shapes are compared.
    """
    if isinstance(space, PolicyBox) and space.mapping == "recorded":
        return  # a connector maps the policy's actions, which may be of any kind
    kind = kind_of(space)
    if kind is _DICT:
        parts = parts_of(space)
        if not isinstance(value, Mapping):
            yield f"{name} are {brief(value)}; the space is a Dict with {list(parts)}"
            return
        for key, part in parts.items():
            if key not in value:
                yield f"{name} have no {key!r}: there are {list(value)}, the space has {list(parts)}"
            else:
                yield from space_mismatches(part, value[key], f"{name}[{key!r}]", leading, dtypes=dtypes)
    elif kind.is_nested:
        parts = parts_of(space)
        if not isinstance(value, (tuple, list)) or len(value) != len(parts):
            yield f"{name} are {brief(value)}; the space is a Tuple of {len(parts)}"
            return
        for at, part in parts.items():
            yield from space_mismatches(part, value[at], f"{name}[{at}]", leading, dtypes=dtypes)
    elif kind.is_array and not isinstance(value, Ragged):
        array, shape, dtype = numeric_array(value), (*leading, *space.shape), np.dtype(space.dtype)
        if array is None or array.shape != shape:
            yield f"{name} {describe_shape(array, value)}; the space has {list(shape)}"
        elif dtypes and array.dtype != dtype and try_cast(array, dtype) is None:
            yield f"{name} are {array.dtype}; the space has {dtype}, which {_first_change(array, dtype)}"


def _first_change(array: np.ndarray, dtype: np.dtype) -> str:
    """Return the words of an error for the first value of `array` that `dtype` cannot represent."""
    values = array.reshape(-1)
    value = next(values[i].item() for i in range(len(values)) if try_cast(values[i : i + 1], dtype) is None)
    return f"cannot hold {value!r}"


def numeric_array(value: object) -> np.ndarray | None:
    """Return the value as an array of numbers, or None if it is none. Tensors are moved to the CPU."""
    try:
        array = nested.host_array(value)
    except (ValueError, TypeError, RuntimeError):
        return None
    return array if array.dtype.kind in "biufc" else None


def describe_shape(array: np.ndarray | None, value: object) -> str:
    """Describe a value for an error, given its `numeric_array`: its shape, or what it is if it is no array."""
    return f"are {brief(value)}" if array is None else f"have shape {list(array.shape)}"


def brief(value: object) -> str:
    """Describe a value for an error: its length or type."""
    if isinstance(value, (tuple, list)):
        return f"{len(value)} items"
    return "None" if value is None else f"a {type(value).__name__}"

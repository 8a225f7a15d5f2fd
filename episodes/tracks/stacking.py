"""From a list of items to one array: how a growing track becomes a finished one."""

from __future__ import annotations

import operator
import struct
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from episodes.errors import ShapeMismatch, WrongType
from episodes.tracks import nested
from episodes.tracks.casting import cast

_dtype_of = operator.attrgetter("dtype")


def _packing_codes() -> dict[type, tuple[str, np.dtype]]:
    """`struct` codes and dtypes of Python numbers; no float where numpy takes an array of shape (1,) for a number."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            float(np.zeros(1))
    except TypeError:
        return {float: ("d", np.dtype(np.float64)), int: ("q", np.dtype(np.int64))}
    return {int: ("q", np.dtype(np.int64))}


_CODES = _packing_codes()


def joined_bytes(items: Sequence[Any], uniform: bool = False) -> np.ndarray | None:
    """`np.array(items)` by joining bytes, which is faster and gives a read-only array.

    None unless all items are numbers of one type, or arrays of one dtype. Packing refuses what has no `__float__` (or
    `__index__`), so nothing else slips in.

    Args:
        uniform: True when the items are known to have one shape; arrays that are not are left.
    """
    kind, num = type(items[0]), len(items)
    try:
        if kind in _CODES:
            code, dtype = _CODES[kind]
            return np.frombuffer(struct.pack(f"{num}{code}", *items), dtype)
        if issubclass(kind, np.number) and kind is not np.timedelta64:  # its dtype has a unit, too
            return np.frombuffer(b"".join(items), kind) if list(map(type, items)).count(kind) == num else None
        if not uniform or kind is not np.ndarray:
            return None
        dtype = items[0].dtype
        if dtype.kind not in "iufb" or not dtype.isnative or list(map(_dtype_of, items)).count(dtype) < num:
            return None
        return np.frombuffer(b"".join(items), dtype).reshape(num, *items[0].shape)
    except (struct.error, OverflowError, AttributeError, BufferError, TypeError, ValueError):  # such as crops and lists
        return None


def stack_items(items: Sequence[Any], name: str, lookback: int = 0, dtypes: Any = None) -> Any:
    """The items as nested arrays [len(items), ...].

    Args:
        name: of the track, for errors.
        dtypes: a dtype, a nested value of dtypes of the items' structure, or None for numpy's promotion.

    Raises:
        ShapeMismatch: names the first item of another shape or without an array, or the space's dtype that loses
            something.
    """
    if not items:
        return nested.map_leaves(lambda dtype: np.zeros(0, dtype), dtypes)
    if nested.is_leaf(items[0]):
        return _stack(items, name, lookback, dtypes)
    columns = nested.transpose(items)
    if not nested.leaves(columns):
        raise ShapeMismatch(
            f"{name}: item {-lookback} is {items[0]!r}, which holds no array; give items with at least one"
        )
    if dtypes is None or not nested.same_structure(columns, dtypes):
        return nested.map_leaves(lambda column: _stack(column, name, lookback, None), columns)
    return nested.map_leaves(lambda column, dtype: _stack(column, name, lookback, dtype), columns, dtypes)


def _stack(column: Sequence[Any], name: str, lookback: int, dtype: Any) -> np.ndarray:
    array = joined_bytes(column)
    return fitted(_stacked(column, name, lookback) if array is None else array, name, dtype)


def refuse_masked(value: Any, name: str) -> None:
    """Raise `WrongType` for a masked array, or the masked constant, in a track of that name."""
    if isinstance(value, np.ma.MaskedArray):
        raise WrongType(f"{name}: a row is a masked array. {_NO_MASK}")


_MASKED = frozenset((np.ma.MaskedArray, type(np.ma.masked)))
_NO_MASK = "Its mask would be lost: give its data, and the mask as a part of its own where it matters"


def _stacked(column: Sequence[Any], name: str, lookback: int) -> np.ndarray:
    if not _MASKED.isdisjoint(map(type, column)):
        i = next(i for i, item in enumerate(column, -lookback) if type(item) in _MASKED)
        raise WrongType(f"{name}: item {i} is masked. {_NO_MASK}")
    try:
        array = np.array(column)
    except ValueError:
        raise _first_misfit(column, name, lookback, np.shape) from None
    except (TypeError, RuntimeError):  # torch's: of a gradient, of bfloat16, on a device
        if not any(hasattr(item, "detach") for item in column):
            raise
        return _stacked([_plain(item, i, name) for i, item in enumerate(column, -lookback)], name, lookback)
    if array.dtype.kind == "O":
        raise _first_misfit(column, name, lookback, lambda item: np.asarray(item).dtype.kind != "O")
    if array.dtype.kind in "US":
        check_strings(column, name, -lookback)
    return array


def _plain(item: Any, i: int, name: str) -> Any:
    """A tensor of any kind as an array, without its gradient; anything else as it is."""
    if not hasattr(item, "detach"):
        return item
    try:
        return nested.host_array(item)
    except (TypeError, RuntimeError) as error:
        raise ShapeMismatch(f"{name}: item {i} cannot be an array: {error}; give dense tensors of numbers") from error


def check_strings(items: Sequence[Any], name: str, first: int = 0) -> None:
    """Raise `ShapeMismatch` where an array of strings would change an item: a number, or a NUL at the end.

    Args:
        first: the index of the first item, for errors.
    """
    kinds = [np.asarray(item).dtype.kind for item in items]
    for i, (item, kind) in enumerate(zip(items, kinds, strict=True), first):
        if kind != kinds[0]:
            raise ShapeMismatch(f"{name}: item {i} is {item!r}, item {first} is {items[0]!r}; give items of one kind")
        if isinstance(item, (str, bytes)) and item[-1:] in ("\0", b"\0"):
            raise ShapeMismatch(f"{name}: item {i}, {item!r}, ends with a NUL, which arrays of strings lose; strip it")


def fitted(array: np.ndarray, name: str, dtype: Any) -> np.ndarray:
    """The array in the dtype, where it is one; `ShapeMismatch` when that loses something."""
    own = array.dtype
    if not isinstance(dtype, np.dtype):
        if own.isnative:
            return array
        dtype = own.newbyteorder("=")  # items of another byte order become numbers that torch takes
    if own == dtype:
        return array
    fitting = cast(array, dtype)
    if fitting is None:
        raise ShapeMismatch(
            f"{name}: items of dtype {array.dtype} do not fit the space's {dtype} without loss; give such items"
        )
    return fitting


def _first_misfit(column: Sequence[Any], name: str, lookback: int, kind: Callable[[Any], Any]) -> ShapeMismatch:
    kinds = [kind(item) for item in column]
    step = next((i for i, k in enumerate(kinds) if k != kinds[0] or k is False), 0)
    first, other = column[0], column[step]
    beside = f", item {-lookback} is {_kind_of(first)}" if step else ""
    return ShapeMismatch(
        f"{name}: item {step - lookback} is {_kind_of(other)}{beside}; "
        "all items of a track have one shape and are numbers, strings or arrays of them"
    )


def _kind_of(item: Any) -> str:
    try:
        array = np.asarray(item)
    except ValueError:
        return "ragged"
    if array.dtype.kind == "O":
        return "an integer of more than 64 bits" if type(item) is int else f"a {type(item).__name__}"
    return f"of shape {array.shape}"

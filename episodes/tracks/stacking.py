"""Fast stacking of a growing list of items to an array."""

from __future__ import annotations

import operator
import struct
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.errors import ShapeMismatch, WrongType
from episodes.tracks import nested
from episodes.tracks.casting import MOST_DIMENSIONS, try_cast

if TYPE_CHECKING:
    from episodes.data_types import NestedDtypes

_dtype_of = operator.attrgetter("dtype")


def _packing_codes() -> dict[type, tuple[str, np.dtype]]:
    """Return the Python number types that `struct` can pack quickly, with the format code and numpy dtype of each.

    Floats are left out if numpy accepts an array of shape (1,) as a float, since it would be packed as a number.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            float(np.zeros(1))
    except TypeError:
        return {float: ("d", np.dtype(np.float64)), int: ("q", np.dtype(np.int64))}
    return {int: ("q", np.dtype(np.int64))}


_CODES = _packing_codes()


def joined_bytes(items: Sequence[Any], uniform: bool = False) -> np.ndarray | None:
    """Stack numbers or arrays by joining their bytes, which is faster than `np.array`.
    Return None if that is not possible.

    The array is read-only. All items must be numbers of one type, or arrays of one dtype. `struct` rejects items
    without `__float__` or `__index__`, so other items cannot slip through.

    Args:
        uniform: True if all items are known to have one shape. Arrays are joined only then.
    """
    kind, num = type(items[0]), len(items)
    try:
        if kind in _CODES:
            code, dtype = _CODES[kind]
            return np.frombuffer(struct.pack(f"{num}{code}", *items), dtype)
        if issubclass(kind, np.number) and kind is not np.timedelta64:  # a timedelta's dtype also has a unit
            return np.frombuffer(b"".join(items), kind) if list(map(type, items)).count(kind) == num else None
        if not uniform or kind is not np.ndarray:
            return None
        dtype = items[0].dtype
        if (
            dtype.kind not in "iufb"
            or items[0].ndim > MOST_DIMENSIONS
            or not dtype.isnative
            or list(map(_dtype_of, items)).count(dtype) < num
        ):
            return None
        return np.frombuffer(b"".join(items), dtype).reshape(num, *items[0].shape)
    except (
        struct.error,
        OverflowError,
        AttributeError,
        BufferError,
        TypeError,
        ValueError,
    ):  # e.g. strided views, lists
        return None


def joined_encoded(items: Sequence[Any], dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray | None:
    """Stack arrays of one dtype and shape that are all given as bytes to a read-only array [len(items), ...].
    Return None if some items are not bytes."""
    num = len(items)
    if list(map(type, items)).count(bytes) < num:
        return None
    return np.frombuffer(b"".join(items), dtype).reshape(num, *shape)


def stack_items(items: Sequence[Any], name: str, lookback: int = 0, dtypes: NestedDtypes | None = None) -> Any:
    """Stack a list of (possibly nested) items to arrays [len(items), ...], and cast these to `dtypes` if given.

    Args:
        name: name of the track, for errors.
        lookback: number of items before step 0, for errors.
        dtypes: a dtype, a nested value of dtypes with the structure of an item, or None for numpy's promotion.

    Raises:
        ShapeMismatch: names the first item of another shape or without an array, or a space's dtype that would change
            an item.
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


def _stack(column: Sequence[Any], name: str, lookback: int, dtype: object) -> np.ndarray:
    """Stack items to an array of `dtype`. Raise `ShapeMismatch` if that would change an item."""
    array = joined_bytes(column)
    return cast_without_loss(_stacked(column, name, lookback) if array is None else array, name, dtype)


def object_array(values: Collection[Any]) -> np.ndarray:
    """Return the values as an array of objects [len(values)], without converting lists or arrays among them."""
    return np.fromiter(values, object, len(values))


def refuse_masked(value: object, name: str) -> None:
    """Raise `WrongType` if `value`, an item of the time series `name`, is a masked array,
    since the mask would be lost."""
    if isinstance(value, np.ma.MaskedArray):
        raise WrongType(f"{name}: a row is a masked array. {_NO_MASK}")


_MASKED = frozenset((np.ma.MaskedArray, type(np.ma.masked)))
_NO_MASK = "Its mask would be lost: give its data, and the mask as a part of its own where it matters"


def _stacked(column: Sequence[Any], name: str, lookback: int) -> np.ndarray:
    """Stack items to an array. Tensors are detached and moved to the CPU.

    Args:
        name: name of the time series, for errors.
        lookback: number of lookback items, so that errors count from step 0.

    Raises:
        WrongType: an item is masked.
        ShapeMismatch: the items differ in shape, or are neither numbers nor strings.
    """
    if not _MASKED.isdisjoint(map(type, column)):
        i = next(i for i, item in enumerate(column, -lookback) if type(item) in _MASKED)
        raise WrongType(f"{name}: item {i} is masked. {_NO_MASK}")
    if np.ndim(column[0]) > MOST_DIMENSIONS:
        raise ShapeMismatch(
            f"{name}: item {-lookback} has {np.ndim(column[0])} dimensions; give at most {MOST_DIMENSIONS}: reshape it"
        )
    try:
        array = np.array(column)
    except ValueError:
        raise _first_misfit(column, name, lookback, np.shape) from None
    except (TypeError, RuntimeError):  # from torch: a tensor with gradients, of bfloat16, or on a device
        if not any(hasattr(item, "detach") for item in column):
            raise
        return _stacked([_tensor_to_array(item, i, name) for i, item in enumerate(column, -lookback)], name, lookback)
    if any(isinstance(item, Mapping) for item in column[:1]):
        raise WrongType(f"{name}: item {-lookback} is a {type(column[0]).__name__}; give dicts, not other mappings")
    if array.dtype.kind == "O":
        raise _first_misfit(column, name, lookback, lambda item: np.asarray(item).dtype.kind != "O")
    if array.dtype.kind == "T":
        raise WrongType(
            f"{name}: item {-lookback} has dtype {array.dtype}; give strings of a fixed width: item.astype(str)"
        )
    if array.dtype.kind in "US":
        check_strings(column, name, -lookback)
    return array


def _tensor_to_array(item: object, i: int, name: str) -> Any:
    """Convert a torch tensor to an array, and return any other item unchanged.

    Raises:
        ShapeMismatch: numpy cannot represent the tensor, for example a sparse one.
    """
    if not hasattr(item, "detach"):
        return item
    try:
        return nested.host_array(item)
    except (TypeError, RuntimeError) as error:
        raise ShapeMismatch(f"{name}: item {i} cannot be an array: {error}; give dense tensors of numbers") from error


def check_strings(items: Sequence[Any], name: str, first: int = 0) -> None:
    """Raise `ShapeMismatch` if an array of strings would not store all items exactly, for example if some are numbers.

    Args:
        first: index of the first item, for errors.
    """
    kinds = [np.asarray(item).dtype.kind for item in items]
    for i, (item, kind) in enumerate(zip(items, kinds, strict=True), first):
        if kind != kinds[0]:
            raise ShapeMismatch(f"{name}: item {i} is {item!r}, item {first} is {items[0]!r}; give items of one kind")
        if isinstance(item, (str, bytes)) and item[-1:] in ("\0", b"\0"):
            raise ShapeMismatch(f"{name}: item {i}, {item!r}, ends with a NUL, which arrays of strings lose; strip it")


def cast_without_loss(array: np.ndarray, name: str, dtype: object) -> np.ndarray:
    """Cast an array to the dtype `dtype`. Raise `ShapeMismatch` if that changes a value.

    If `dtype` is not a `np.dtype`, the array is cast to native byte order.

    A cast to floats may round.

    Raises:
        ShapeMismatch: `dtype` cannot represent the values; see `try_cast`.
    """
    array_dtype = array.dtype
    if not isinstance(dtype, np.dtype):
        if array_dtype.isnative:
            return array
        dtype = array_dtype.newbyteorder("=")  # torch accepts native byte order only
    if array_dtype == dtype:
        return array
    fitting = try_cast(array, dtype)
    if fitting is None:
        raise ShapeMismatch(
            f"{name}: items of dtype {array.dtype} do not fit the space's {dtype} without loss; give such items"
        )
    return fitting


def _first_misfit(column: Sequence[Any], name: str, lookback: int, kind: Callable[[Any], Any]) -> ShapeMismatch:
    """Return the error for the first item whose `kind(item)` differs from the first item's, or is False."""
    kinds = [kind(item) for item in column]
    step = next((i for i, k in enumerate(kinds) if k != kinds[0] or k is False), 0)
    first, misfit = column[0], column[step]
    beside = f", item {-lookback} is {_kind_of(first)}" if step else ""
    return ShapeMismatch(
        f"{name}: item {step - lookback} is {_kind_of(misfit)}{beside}; "
        "all items of a track have one shape and are numbers, strings or arrays of them"
    )


def _kind_of(item: object) -> str:
    """Describe an item for an error: its shape, or its type if it is an object."""
    try:
        array = np.asarray(item)
    except ValueError:
        return "ragged"
    if array.dtype.kind == "O":
        return "an integer of more than 64 bits" if type(item) is int else f"a {type(item).__name__}"
    return f"of shape {array.shape}"

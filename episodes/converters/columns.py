"""Conversion of numpy arrays to Arrow columns (numbers, text, fixed-size lists) and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.errors import UnreadableData
from episodes.storage.arrow import pyarrow
from episodes.tracks.indexing import offsets_of

if TYPE_CHECKING:
    import pyarrow as pa

NUMBERS = "biufMm"  # numpy kinds that become columns of numbers


def has_column(array: np.ndarray) -> bool:
    """Return True if the array's items can be stored in an Arrow column: numbers up to 64 bits, times or text."""
    return array.dtype.kind in "UT" or (array.dtype.kind in NUMBERS and array.dtype.itemsize <= 8)


def column_of(array: np.ndarray, present: np.ndarray | None = None) -> Any:
    """Convert an array [n, ...] to an Arrow column with null where `present` is False. Shaped items become lists.

    Args:
        array: the items.
        present: bool [n]: False for rows that become null. None: all are present.
    """
    pa, size = pyarrow(), int(np.prod(array.shape[1:], dtype=np.int64))
    if not size:
        return pa.nulls(len(array), pa.int8())
    mask = None if present is None or present.all() else ~present
    native = array.astype(array.dtype.newbyteorder("="), copy=False) if array.dtype.kind != "T" else array
    flat = np.ascontiguousarray(native).reshape(-1)
    column_values = flat.astype(object) if array.dtype.kind in "UT" else flat
    kind = pa.string() if array.dtype.kind in "UT" else None
    if array.ndim == 1:
        return pa.array(column_values, kind, mask=mask)
    values = pa.array(column_values, kind)
    return pa.FixedSizeListArray.from_arrays(values, size, mask=None if mask is None else pa.array(mask))


def nested_column(array: np.ndarray) -> Any:
    """Convert an array [n, ...] to an Arrow column of nested lists of variable size, one level per axis."""
    pa = pyarrow()
    if array.ndim < 3:
        return column_of(array.reshape(-1) if array.shape[1:] == (1,) else array)
    values = column_of(array.reshape(-1))
    for size in array.shape[:0:-1]:
        values = pa.ListArray.from_arrays(pa.array(np.arange(0, len(values) + 1, size, dtype=np.int32)), values)
    return values


def spread(column: pa.Array | pa.ChunkedArray, rows: np.ndarray, num_rows: int) -> Any:
    """Return an Arrow column of `num_rows` values: the items of a column [k] at the indices `rows` [k], else null."""
    at = np.full(num_rows, -1)
    at[rows] = np.arange(len(rows))
    return column.take(pyarrow().array(at, mask=at < 0))


def rare_column(array: np.ndarray, rows: np.ndarray, num_rows: int) -> Any:
    """Return an Arrow column of `num_rows` values: items of the array [k, ...] at the indices `rows` [k], else null."""
    pa, size = pyarrow(), int(np.prod(array.shape[1:], dtype=np.int64))
    if not size:
        return pa.nulls(num_rows, pa.int8())
    values = column_of(array.reshape(-1))
    if array.ndim == 1:
        return spread(values, rows, num_rows)
    present = np.zeros(num_rows, bool)
    present[rows] = True
    offsets = offsets_of(present * size)
    return pa.LargeListArray.from_arrays(pa.array(offsets), values, mask=pa.array(~present))


def array_of(
    column: pa.Array | pa.ChunkedArray, dtype: np.dtype | None = None, shape: tuple[int, ...] | None = None
) -> np.ndarray:
    """Convert an Arrow column without its nulls to an array. Lists become axes, so they must have equal lengths.

    Args:
        column: the column.
        dtype: dtype of the items; the column's if None.
        shape: shape of the items; the column's if None.

    Raises:
        UnreadableData: lists of several lengths, or a column of another type.
    """
    pa = pyarrow()
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    column = column.storage if isinstance(column, pa.ExtensionArray) else column
    if shape is not None and 0 in shape:
        return np.zeros((len(column), *shape), dtype)
    column = column.drop_null() if column.null_count else column
    axes = [len(column)]
    while pa.types.is_nested(column.type):
        if not hasattr(column, "flatten") or pa.types.is_struct(column.type):
            raise UnreadableData(f"a column of {column.type}: columns are numbers, text and lists of them here")
        values = column.flatten()
        size, remainder = divmod(len(values), max(len(column), 1))
        if remainder or _is_ragged(column):
            raise UnreadableData(
                f"a column of {column.type} has lists of several lengths; items of one shape are needed"
            )
        axes.append(size)
        column = values
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        flat = np.array(column.to_pylist(), np.str_) if len(column) else np.zeros(0, np.str_)
    else:
        flat = column.to_numpy(zero_copy_only=False)
    if flat.dtype == object:
        raise UnreadableData(f"a column of {column.type}: columns are numbers, text and lists of them here")
    array = flat.reshape(axes if shape is None else (axes[0], *shape))
    return array if dtype is None or dtype.kind == "U" else array.astype(dtype, copy=False)


def _is_ragged(column: pa.Array) -> bool:
    """Return True if a column has lists of different lengths."""
    types = pyarrow().types
    if not (types.is_list(column.type) or types.is_large_list(column.type)):
        return False
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    return len(lengths) > 0 and bool((lengths != lengths[0]).any())

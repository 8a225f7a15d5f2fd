"""pyarrow, imported when first used; list columns whose values are a numpy array's own bytes, and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from episodes.errors import EpisodeError, UnreadableData, needing

_MOST_BYTES = 2**31 - 1  # of a column of strings, whose bounds are int32


@cache
def pyarrow() -> Any:
    """The module `pyarrow`, with `pyarrow.ipc`; `MissingExtra` where it is not installed."""
    with needing("arrow", "episodes on disk need pyarrow"):
        import pyarrow
        import pyarrow.ipc
    return pyarrow


@contextmanager
def reading(source: str) -> Iterator[None]:
    """Whatever goes wrong in here is damage of the source: an `UnreadableData` that names it."""
    damages = (EpisodeError, ValueError, KeyError, TypeError, IndexError, OverflowError, OSError)
    damages = (*damages, MemoryError, RecursionError, AttributeError)
    try:
        yield
    except (*damages, pyarrow().ArrowException) as error:
        told = str(error) if isinstance(error, EpisodeError) else repr(error)
        raise UnreadableData(f"{source}: {told}") from None


@cache
def value_type(dtype: np.dtype) -> Any:
    """The Arrow type that values of a dtype are written as: numbers as such, all else as bytes (uint8)."""
    arrow = pyarrow()
    natural = dtype.kind in "iuf" and dtype.itemsize <= 8 and dtype.isnative
    return arrow.from_numpy_dtype(dtype) if natural else arrow.uint8()


@cache
def values_per_item(dtype: np.dtype, shape: tuple[int, ...]) -> int:
    """How many Arrow values an item of a track is written as."""
    count = int(np.prod(shape, dtype=np.int64))
    return count * (1 if value_type(dtype) != pyarrow().uint8() or dtype == np.uint8 else dtype.itemsize)


def list_column(array: np.ndarray, offsets: np.ndarray, own: bool) -> Any:
    """A list column: rows `offsets[i]` to `offsets[i + 1]` of the array [rows, ...], flat, for episode i.

    The column's values are the array's memory; a copy of it with `own`, or where it is not contiguous.
    """
    arrow = pyarrow()
    type_, count = value_type(array.dtype), values_per_item(array.dtype, array.shape[1:])
    flat = np.array(array, order="C", copy=True if own else None).reshape(-1)
    if type_ == arrow.uint8():
        flat = flat.view(np.uint8)
    values = arrow.Array.from_buffers(type_, flat.size, [None, arrow.py_buffer(flat)])
    return _listed(arrow.large_list(type_), offsets * count, values)


def text_column(texts: Any) -> Any:
    """A column of strings, or None; ASCII of one length, as ids mostly are, in a tenth of the time that Arrow takes."""
    arrow = pyarrow()
    if isinstance(texts, np.ndarray) and texts.dtype.kind == "U" and texts.dtype.isnative and texts.dtype.itemsize:
        codes = np.ascontiguousarray(texts).view(np.uint32)
        if 0 < codes.size <= _MOST_BYTES and codes.min() > 0 and codes.max() < 128:
            bounds = np.arange(len(texts) + 1, dtype=np.int32) * np.int32(codes.size // len(texts))
            buffers = [None, arrow.py_buffer(bounds), arrow.py_buffer(codes.astype(np.uint8))]
            return arrow.Array.from_buffers(arrow.string(), len(texts), buffers)
    # of numpy's own strings, Arrow would take what is before a NUL
    return arrow.array(texts.tolist() if isinstance(texts, np.ndarray) else texts, arrow.string())


def documents_column(data: bytes | np.ndarray, bounds: np.ndarray, offsets: np.ndarray) -> Any:
    """A column of lists of bytes: `data[bounds[k]:bounds[k + 1]]` for k from `offsets[i]` to `offsets[i + 1]`."""
    arrow = pyarrow()
    type_ = arrow.large_binary()
    buffers = [None, arrow.py_buffer(bounds), arrow.py_buffer(data)]
    return _listed(arrow.large_list(type_), offsets, arrow.Array.from_buffers(type_, len(bounds) - 1, buffers))


def _listed(type_: Any, offsets: np.ndarray, values: Any) -> Any:
    arrow = pyarrow()
    starts = arrow.py_buffer(np.ascontiguousarray(offsets, np.int64))
    return arrow.Array.from_buffers(type_, len(offsets) - 1, [None, starts], children=[values])


def array_of(column: Any, dtype: np.dtype, shape: tuple[int, ...], num_rows: int, name: str) -> np.ndarray:
    """The array [num_rows, *shape] of a list column: a view of its memory. `UnreadableData` where bytes are missing."""
    count = num_rows * int(np.prod(shape, dtype=np.int64))
    if not count or not dtype.itemsize:
        return np.empty((num_rows, *shape), dtype)
    return _numbers(column.buffers()[3], dtype, count, name).reshape(num_rows, *shape)


def documents_of(column: Any, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The bytes (uint8), the bounds of the documents in them, and the offsets of the lists, of a `documents_column`."""
    _, lists, _, bounds, data = column.buffers()
    num_lists, num_documents = len(column), len(column.values)
    found = np.zeros(0, np.uint8) if data is None or not data.size else np.frombuffer(data, np.uint8)
    edges = _numbers(bounds, np.dtype(np.int64), num_documents + 1, name)
    if edges[0] < 0 or edges[-1] > len(found) or (np.diff(edges) < 0).any():
        raise UnreadableData(f"column {name!r}: documents that are not in its {len(found)} bytes")
    return found, edges, _numbers(lists, np.dtype(np.int64), num_lists + 1, name)


def check_offsets(column: Any, wanted: np.ndarray, name: str) -> None:
    """Raise `UnreadableData` unless the lists of a column begin and end at these offsets [n + 1]."""
    found = _numbers(column.buffers()[1], np.dtype(np.int64), len(wanted), name)
    if len(column) != len(wanted) - 1 or not np.array_equal(found, wanted):
        raise UnreadableData(f"column {name!r}: its lists are not as long as the episodes")


def _numbers(buffer: Any, dtype: np.dtype, count: int, name: str) -> np.ndarray:
    if buffer is None or buffer.size < count * dtype.itemsize:
        there = 0 if buffer is None else buffer.size
        raise UnreadableData(f"column {name!r}: {there} bytes where there should be {count * dtype.itemsize}")
    return np.frombuffer(buffer, dtype, count)

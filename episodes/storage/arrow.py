"""Lazy import of pyarrow, and conversion between numpy arrays and Arrow list columns."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from episodes.errors import EpisodeError, UnreadableData, needing

if TYPE_CHECKING:
    import pyarrow as pa

_BYTE, _INT64 = np.dtype(np.uint8), np.dtype(np.int64)
_MOST_BYTES = 2**31 - 1  # limit of a column of strings, which has int32 offsets


@cache
def pyarrow() -> Any:
    """Return the module `pyarrow`, with `pyarrow.ipc` imported. Raise `MissingExtra` if it is not installed."""
    with needing("arrow", "episodes on disk need pyarrow"):
        import pyarrow
        import pyarrow.ipc
    return pyarrow


@contextmanager
def as_unreadable_data(source: str) -> Iterator[None]:
    """Return a context manager that converts errors of reading damaged files to `UnreadableData`, with a message that
    names `source`. These are Arrow's errors, and builtin ones such as `ValueError`, `KeyError` and `OSError`.
    """
    damages = (EpisodeError, ValueError, KeyError, TypeError, IndexError, OverflowError, OSError)
    damages = (*damages, MemoryError, RecursionError, AttributeError, SyntaxError, EOFError, zlib.error)
    try:
        yield
    except (*damages, pyarrow().ArrowException) as error:
        message = str(error) if isinstance(error, EpisodeError) else repr(error)
        raise UnreadableData(f"{source}: {message}") from None


@cache
def value_type(dtype: np.dtype) -> Any:
    """Return the Arrow type that stores values of a numpy dtype: the same number type, or uint8
    (raw bytes) for other dtypes."""
    arrow = pyarrow()
    natural = dtype.kind in "iuf" and dtype.itemsize <= 8 and dtype.isnative
    return arrow.from_numpy_dtype(dtype) if natural else arrow.uint8()


@cache
def values_per_item(dtype: np.dtype, shape: tuple[int, ...]) -> int:
    """Return the number of Arrow values that store one numpy array of this dtype and shape."""
    count = int(np.prod(shape, dtype=np.int64))
    return count * (1 if value_type(dtype) != pyarrow().uint8() or dtype == np.uint8 else dtype.itemsize)


def list_column(array: np.ndarray, offsets: np.ndarray, copies: bool) -> Any:
    """Return an Arrow list column with one list per episode: list i contains the values of
    `array[offsets[i]:offsets[i + 1]]`.

    The column shares the array's memory. It has a copy if `copies` is True or the array is not contiguous.
    """
    arrow = pyarrow()
    type_, count = value_type(array.dtype), values_per_item(array.dtype, array.shape[1:])
    flat = np.array(array, order="C", copy=True if copies else None).reshape(-1)
    if type_ == arrow.uint8():
        flat = flat.view(np.uint8)
    values = arrow.Array.from_buffers(type_, flat.size, [None, arrow.py_buffer(flat)])
    return _to_lists(arrow.large_list(type_), offsets * count, values)


def text_column(texts: np.ndarray | Sequence[str | None]) -> Any:
    """Return an Arrow column of strings, with null where `texts` has None.

    ASCII strings of one length, such as ids, take a tenth of Arrow's time.
    """
    arrow = pyarrow()
    if isinstance(texts, np.ndarray) and texts.dtype.kind == "U" and texts.dtype.isnative and texts.dtype.itemsize:
        codes = np.ascontiguousarray(texts).view(np.uint32)
        if 0 < codes.size <= _MOST_BYTES and codes.min() > 0 and codes.max() < 128:
            bounds = np.arange(len(texts) + 1, dtype=np.int32) * np.int32(codes.size // len(texts))
            buffers = [None, arrow.py_buffer(bounds), arrow.py_buffer(codes.astype(np.uint8))]
            return arrow.Array.from_buffers(arrow.string(), len(texts), buffers)
    # not numpy's strings: Arrow would stop at a NUL
    return arrow.array(texts.tolist() if isinstance(texts, np.ndarray) else texts, arrow.string())


def documents_column(data: bytes | np.ndarray, bounds: np.ndarray, offsets: np.ndarray) -> Any:
    """Return an Arrow column of lists of byte strings: list i contains the strings with the indices
    `offsets[i]` to `offsets[i + 1]`.

    Document k is `data[bounds[k]:bounds[k + 1]]`.
    """
    arrow = pyarrow()
    type_ = arrow.large_binary()
    buffers = [None, arrow.py_buffer(bounds), arrow.py_buffer(data)]
    return _to_lists(arrow.large_list(type_), offsets, arrow.Array.from_buffers(type_, len(bounds) - 1, buffers))


def _to_lists(type_: pa.DataType, offsets: np.ndarray, values: pa.Array) -> Any:
    """Return an Arrow array of the list type `type_`, whose list i is `values[offsets[i]:offsets[i + 1]]`. Values are
    shared.
    """
    arrow = pyarrow()
    starts = arrow.py_buffer(np.ascontiguousarray(offsets, np.int64))
    return arrow.Array.from_buffers(type_, len(offsets) - 1, [None, starts], children=[values])


class ListColumn(NamedTuple):
    """Place and form of an Arrow list column in the record batches of a file: lists of arrays [*shape]."""

    name: str
    place: int  # index of the column
    dtype: np.dtype
    shape: tuple[int, ...]
    num_values: int  # in Arrow, per item
    num_bytes: int  # per item

    @staticmethod
    def of(name: str, place: int, dtype: np.dtype, shape: tuple[int, ...]) -> ListColumn:
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return ListColumn(name, place, dtype, shape, values_per_item(dtype, shape), size)

    def read(self, batch: pa.RecordBatch, offsets: np.ndarray) -> np.ndarray:
        """Return the items of all lists as one array [num_rows, *shape], without a copy.

        Args:
            batch: the Arrow record batch.
            offsets: bounds of the lists in the items, int64 [n + 1].

        Raises:
            UnreadableData: the lists have other bounds, or bytes are missing.
        """
        column = batch.column(self.place)
        buffers, num_rows = column.buffers(), offsets.item(-1)
        _check_bounds(column, buffers[1], offsets if self.num_values == 1 else offsets * self.num_values, self.name)
        if not num_rows or not self.num_bytes:
            return np.empty((num_rows, *self.shape), self.dtype)
        data = buffers[3]
        if data is None or data.size < num_rows * self.num_bytes:
            raise _missing_bytes(data, num_rows * self.num_bytes, self.name)
        return np.ndarray((num_rows, *self.shape), self.dtype, data)


def documents_of(column: pa.Array, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the byte strings ("documents") in an Arrow column of lists: all bytes (uint8), the bounds of each byte
    string, and the bounds of each list.

    Raises:
        UnreadableData: the bounds do not lie in the column's bytes.
    """
    _, lists, _, bounds, data = column.buffers()
    num_lists, num_documents = len(column), len(column.values)
    content = np.zeros(0, np.uint8) if data is None or not data.size else np.frombuffer(data, np.uint8)
    edges = _numbers(bounds, np.dtype(np.int64), num_documents + 1, name)
    if edges[0] < 0 or edges[-1] > len(content) or (np.diff(edges) < 0).any():
        raise UnreadableData(f"column {name!r}: documents that are not in its {len(content)} bytes")
    return content, edges, _numbers(lists, np.dtype(np.int64), num_lists + 1, name)


def check_offsets(column: pa.Array, expected: np.ndarray, name: str) -> None:
    """Raise `UnreadableData` unless the list bounds of an Arrow column are `expected`, int [n + 1]."""
    _check_bounds(column, column.buffers()[1], expected, name)


def _check_bounds(column: pa.Array, buffer: pa.Buffer | None, expected: np.ndarray, name: str) -> None:
    """Raise `UnreadableData` unless the list bounds of an Arrow column, in `buffer`, are `expected`, int [n + 1]."""
    offsets = _numbers(buffer, _INT64, len(expected), name)
    if len(column) != len(expected) - 1 or np.count_nonzero(offsets != expected):
        raise UnreadableData(f"column {name!r}: its lists are not as long as the episodes")


def numbers_of(column: pa.Array, dtype: np.dtype, num: int, name: str) -> np.ndarray:
    """Return the `num` numbers of an Arrow array without nulls, without a copy.

    Raises:
        UnreadableData: bytes are missing.
    """
    return (
        _numbers(column.buffers()[1], dtype, column.offset + num, name)[column.offset :] if num else np.empty(0, dtype)
    )


def flags_of(column: pa.Array, num: int, name: str) -> np.ndarray:
    """Return the `num` flags of an Arrow array without nulls, bool [num].

    Raises:
        UnreadableData: bytes are missing.
    """
    if not num:
        return np.empty(0, bool)
    stop = column.offset + num
    bits = _numbers(column.buffers()[1], _BYTE, -(-stop // 8), name)
    return np.unpackbits(bits, count=stop, bitorder="little").view(bool)[column.offset :]


def _numbers(buffer: pa.Buffer | None, dtype: np.dtype, count: int, name: str) -> np.ndarray:
    """Return the first `count` numbers of an Arrow buffer, without a copy.

    Args:
        name: name of the column, for errors.

    Raises:
        UnreadableData: the buffer is missing or too short.
    """
    if buffer is None or buffer.size < count * dtype.itemsize:
        raise _missing_bytes(buffer, count * dtype.itemsize, name)
    return np.frombuffer(buffer, dtype, count)


def _missing_bytes(buffer: pa.Buffer | None, expected: int, name: str) -> UnreadableData:
    """Return the error for an Arrow buffer that has fewer than `expected` bytes, or is missing."""
    num_bytes = 0 if buffer is None else buffer.size
    return UnreadableData(f"column {name!r}: {num_bytes} bytes where there should be {expected}")

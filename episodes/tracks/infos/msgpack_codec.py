"""Msgpack encoding of infos and custom data, extended to arrays, numpy scalars and tuples. Nothing is pickled.

Tensors are encoded as the arrays of their numbers.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgpack
import numpy as np

from episodes.errors import UnreadableData, WrongType
from episodes.format_versions import checked_shape
from episodes.tracks.nested import host_array

_ARRAY, _SCALAR, _TUPLE, _STRING, _INTEGER = 1, 2, 3, 4, 5
_DEEPEST = 64  # nested tuples; msgpack reads each level by a call that takes 32 KiB of the stack


def encode(value: object, name: str) -> bytes:
    """Return a value as msgpack bytes. It may contain arrays, numpy scalars and tuples.

    Args:
        name: name of the value, for errors.

    Raises:
        WrongType: names the key of a value that msgpack cannot encode.
    """
    try:
        return _packed(value)
    except _UNFIT as error:
        raise WrongType(f"{_first_bad_key(value, name)} cannot be written as msgpack: {error}") from None


def decode(data: bytes) -> Any:
    """Decode the msgpack bytes that `encode` returned. Raise `UnreadableData` for bytes that are not msgpack."""
    try:
        return _unpacked(data)
    except (*_UNFIT, SyntaxError, msgpack.UnpackException) as error:  # numpy parses dtype strings, hence SyntaxError
        raise UnreadableData(f"{len(data)} bytes that are no msgpack document: {error!r}") from None


def is_json(value: object) -> bool:
    """Return True if writing the value as JSON and reading it back gives an equal value.

    >>> is_json({"a": [1, None]}), is_json({"a": (1, None)}), is_json({1: "a"})
    (True, False, False)
    """
    if type(value) is dict:
        return all(type(key) is str and is_json(part) for key, part in value.items())
    if type(value) is list:
        return all(map(is_json, value))
    return value is None or type(value) in (str, bool, int, float)


def _packed(value: object, depth: int = 0) -> bytes:
    return bytes(msgpack.packb(value, default=_TO_EXT[depth], strict_types=True) or b"")


def _unpacked(data: bytes, depth: int = 0) -> Any:
    return msgpack.unpackb(data, ext_hook=_FROM_EXT[depth], strict_map_key=False)


def _inside(depth: int) -> int:
    """Return `depth + 1`, the nesting depth of items inside a tuple. Raise `ValueError` beyond the limit."""
    if depth == _DEEPEST:
        raise ValueError(f"more than {_DEEPEST} tuples in one another")
    return depth + 1


def _to_ext(depth: int, value: object) -> msgpack.ExtType:
    """Return the msgpack extension for a value that msgpack itself cannot encode. A tensor becomes an array.

    Args:
        depth: how deep the value is nested.

    Raises:
        TypeError: the value is of another type, or a masked array.
    """
    if isinstance(value, tuple):
        return msgpack.ExtType(_TUPLE, _packed(list(value), _inside(depth)))
    if isinstance(value, np.str_):  # an array would lose trailing NULs
        return msgpack.ExtType(_STRING, value.encode())
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError("a masked array would lose its mask; give its data and its mask")
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind not in "OV":
        array = np.ascontiguousarray(value)
        body = msgpack.packb([value.dtype.str, list(value.shape), array.tobytes()])
        return msgpack.ExtType(_ARRAY if isinstance(value, np.ndarray) else _SCALAR, body)
    if type(value) is int:  # more than 64 bits
        return msgpack.ExtType(_INTEGER, hex(value).encode())
    if isinstance(value, dict):
        return dict(value)  # type: ignore[return-value]
    if hasattr(value, "detach"):  # a tensor
        return _to_ext(depth, host_array(value))
    raise TypeError(f"a {type(value).__name__} is not a number, string, array, list, tuple or dict")


def _from_ext(depth: int, code: int, data: bytes) -> Any:
    """Return the value of a msgpack extension. An array is a copy.

    Raises:
        UnreadableData: the extension is unknown.
    """
    if code == _TUPLE:
        return tuple(_unpacked(data, _inside(depth)))
    if code == _STRING:
        return np.str_(data.decode())
    if code == _INTEGER:
        return int(data, 16)
    if code in (_ARRAY, _SCALAR):
        dtype, shape, body = msgpack.unpackb(data)
        array = np.frombuffer(body, np.dtype(dtype)).reshape(checked_shape(shape, "the shape of an array"))
        return array.copy() if code == _ARRAY else array[()]
    raise UnreadableData(f"msgpack extension {code} is unknown here; the data was written by something else")


def _first_bad_key(value: object, name: str) -> str:
    """Return the path of the first value inside `value` that msgpack cannot encode, such as `infos['a'][0]`.

    Args:
        name: path of `value`.
    """
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    for key, item in items:
        try:
            _packed(item)
        except _UNFIT:
            return _first_bad_key(item, f"{name}[{key!r}]")
    return name


_UNFIT = (TypeError, ValueError, OverflowError, RecursionError)
_TO_EXT, _FROM_EXT = ([partial(convert, depth) for depth in range(_DEEPEST + 1)] for convert in (_to_ext, _from_ext))
"""Functions that convert a value to and from a msgpack extension type, by the number of tuples around the value."""

"""Msgpack encoding of values that contain numpy arrays, as the package msgpack-numpy does it for RLlib's files."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np

from episodes.errors import UnreadableData

_OBJECTS = np.dtype(object)
_REFUSED = "OV"  # kinds of arrays: objects would be pickles, and records are none of ours


def encode(value: object) -> bytes:
    """Encode a value that may contain numpy arrays as msgpack bytes.

    Raises:
        TypeError, ValueError, OverflowError: msgpack cannot hold the value.
    """
    return bytes(msgpack.packb(value, default=_to_dict) or b"")


def decode(data: bytes) -> Any:
    """Decode msgpack bytes to the value with its numpy arrays. Tuples come back as lists.

    Raises:
        UnreadableData: the bytes have another format.
    """
    try:
        return msgpack.unpackb(data, object_hook=_from_dict, strict_map_key=False)
    except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
        raise UnreadableData(f"{len(data)} bytes that are not a msgpack document: {error!r}") from None


def holds(value: object) -> bool:
    """Return True if `encode` can store `value` in a form that RLlib reads. Dict keys must be strings."""
    try:
        msgpack.unpackb(encode(value), object_hook=_from_dict)
        return True
    except (TypeError, ValueError, OverflowError, UnreadableData):
        return False


def _to_dict(value: object) -> Any:
    """Return a numpy array or scalar as a dict that msgpack can encode, with dtype, shape and bytes.

    Raises:
        TypeError: the value is something else, or has a dtype such as object.
    """
    if isinstance(value, np.ndarray) and value.dtype.kind not in _REFUSED:
        document = {b"nd": True, b"type": value.dtype.str, b"kind": b"", b"shape": value.shape}
        return document | {b"data": value.tobytes()}
    if isinstance(value, np.generic) and value.dtype.kind not in _REFUSED:
        return {b"nd": False, b"type": value.dtype.str, b"data": value.tobytes()}
    raise TypeError(f"a {type(value).__name__} cannot be written as msgpack")


def _from_dict(document: dict[Any, Any]) -> Any:
    """Return the array, numpy scalar or complex number that a decoded dict describes, or else the dict itself.

    Raises:
        UnreadableData: the array has Python objects, which would have to be unpickled.
    """
    if b"nd" not in document:
        return complex(document[b"data"]) if b"complex" in document else document
    name = document[b"type"].decode("ascii") if isinstance(document[b"type"], bytes) else document[b"type"]
    dtype = np.dtype(name) if isinstance(name, str) else _OBJECTS
    if dtype.kind in _REFUSED:
        raise UnreadableData("an array of Python objects, which is a pickle; such are not read")
    array = np.frombuffer(document[b"data"], dtype)
    return array.reshape(document[b"shape"]).copy() if document[b"nd"] else array[0]

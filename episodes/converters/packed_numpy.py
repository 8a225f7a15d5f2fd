"""msgpack with numpy's arrays as the package msgpack-numpy writes them, which RLlib's files use. Never a pickle."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np

from episodes.errors import UnreadableData

_OBJECTS = np.dtype(object)
_REFUSED = "OV"  # kinds of arrays: objects would be pickles, and records are none of ours


def encode(value: Any) -> bytes:
    """The value as bytes. `TypeError`, `ValueError` or `OverflowError` for what msgpack cannot hold."""
    return bytes(msgpack.packb(value, default=_to_dict) or b"")


def decode(data: bytes) -> Any:
    """The value of `encode`d bytes, with lists in the place of tuples; `UnreadableData` for others."""
    try:
        return msgpack.unpackb(data, object_hook=_from_dict, strict_map_key=False)
    except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
        raise UnreadableData(f"{len(data)} bytes that are no msgpack document: {error!r}") from None


def holds(value: Any) -> bool:
    """Whether a value can be encoded, and read by who takes no keys but text, as RLlib."""
    try:
        msgpack.unpackb(encode(value), object_hook=_from_dict)
        return True
    except (TypeError, ValueError, OverflowError, UnreadableData):
        return False


def _to_dict(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind not in _REFUSED:
        told = {b"nd": True, b"type": value.dtype.str, b"kind": b"", b"shape": value.shape}
        return told | {b"data": value.tobytes()}
    if isinstance(value, np.generic) and value.dtype.kind not in _REFUSED:
        return {b"nd": False, b"type": value.dtype.str, b"data": value.tobytes()}
    raise TypeError(f"a {type(value).__name__} cannot be written as msgpack")


def _from_dict(told: dict[Any, Any]) -> Any:
    if b"nd" not in told:
        return complex(told[b"data"]) if b"complex" in told else told
    name = told[b"type"].decode("ascii") if isinstance(told[b"type"], bytes) else told[b"type"]
    dtype = np.dtype(name) if isinstance(name, str) else _OBJECTS
    if dtype.kind in _REFUSED:
        raise UnreadableData("an array of Python objects, which is a pickle; such are not read")
    array = np.frombuffer(told[b"data"], dtype)
    return array.reshape(told[b"shape"]).copy() if told[b"nd"] else array[0]

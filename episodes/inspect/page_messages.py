"""Binary messages from Python to a web page: JSON, and arrays in the smallest dtype without loss.

A message is the length of the JSON as uint32, the JSON, and the numbers. `{"$": i}` in the JSON stands for array i. The
numbers of all arrays of a dtype are stored together, and their bytes are shuffled (all first bytes, then all second
bytes), which compresses better.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from typing import Any

import numpy as np

TYPES = ("u1", "i1", "u2", "i2", "i4", "f4", "f8")  # the order of the numbers in a message


def encode(meta: object) -> bytes:
    """Encode nested dicts, lists, texts, numbers and numeric arrays [n] as one binary message.

    >>> encode({"x": np.arange(3)})[4:]
    b'{"meta":{"x":{"$":0}},"arrays":[["u1",3]]}\\x00\\x01\\x02'
    """
    arrays: list[np.ndarray] = []

    def replaced(value: object) -> Any:
        """Return a value with each array appended to `arrays` and replaced by `{"$": index}`. Lists of text are not
        searched.
        """
        if isinstance(value, np.ndarray):
            arrays.append(_smallest(value))
            return {"$": len(arrays) - 1}
        if isinstance(value, dict):
            return {name: replaced(part) for name, part in value.items()}
        if isinstance(value, (list, tuple)) and not (value and isinstance(value[0], str)):
            return [replaced(part) for part in value]
        return value  # also a list of texts

    head = {"meta": replaced(meta), "arrays": [[array.dtype.str[1:], len(array)] for array in arrays]}
    text = json.dumps(head, separators=(",", ":"), allow_nan=False).encode()
    by_type = {name: [array for array in arrays if array.dtype.str[1:] == name] for name in TYPES}
    return struct.pack("<I", len(text)) + text + b"".join(map(_shuffled, filter(None, by_type.values())))


def _smallest(array: np.ndarray) -> np.ndarray:
    """Cast an array to the smallest dtype that represents all its numbers exactly."""
    if array.dtype == bool:
        return array.view(np.uint8)
    has_minus_zero = array.dtype.kind == "f" and bool(np.signbit(array[array == 0]).any())
    for name in TYPES[:-1]:
        dtype = np.dtype(f"<{name}")
        if dtype == array.dtype:
            return array
        if dtype.kind != "f" and (has_minus_zero or not _is_within(array, dtype)):
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            cast = array.astype(dtype)
            if np.array_equal(cast, array, equal_nan=array.dtype.kind == "f"):
                return cast
    return array.astype("<f8")


def _is_within(array: np.ndarray, dtype: np.dtype) -> bool:
    """Return True if an integer dtype can represent the range of the array. NaN returns False."""
    bounds = np.iinfo(dtype)
    return array.size == 0 or bool(array.min() >= bounds.min and array.max() <= bounds.max)  # False with NaN


def _shuffled(arrays: list[np.ndarray]) -> bytes:
    """Return the bytes of arrays of one dtype: first the first byte of each number, then the second, which compresses
    better.
    """
    whole = np.concatenate(arrays)
    plain = whole.view(np.uint8).reshape(len(whole), whole.dtype.itemsize)
    return np.ascontiguousarray(plain.T).tobytes()


def compressed_text(message: bytes) -> str:
    """Compress a message (zlib) and encode it as base 85 text, to embed it in an HTML page.

    "," stands in place of "<", which begins markup.
    """
    return base64.b85encode(zlib.compress(message, 6)).replace(b"<", b",").decode()

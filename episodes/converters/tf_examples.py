"""Reading of TFRecord files and of `tf.train.Example` messages without TensorFlow.

A TFRecord is its length (uint64), 4 bytes of a checksum, the data, and 4 bytes of a checksum, all little-endian. An
Example is a protobuf message: field 1 has the features, a map from a name (1) to a feature (2). A feature has one of
the lists bytes (1), floats (2) and int64 (3), with the values in the field 1 of the list. Checksums are not verified.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from episodes.errors import UnreadableData

_BYTES, _FLOATS, _INTS = 1, 2, 3
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5


def records_of(file: Path) -> Iterator[bytes]:
    """Yield the records of a TFRecord file.

    Raises:
        UnreadableData: the file is truncated, or is no TFRecord file.
    """
    size = file.stat().st_size
    with file.open("rb") as opened:
        while head := opened.read(12):
            length = struct.unpack("<Q", head[:8])[0] if len(head) == 12 else size
            if opened.tell() + length + 4 > size:
                raise UnreadableData(
                    f"{file}: truncated or not TFRecord: a record ends after the file, which has {size} bytes; "
                    "write or download it again"
                )
            yield opened.read(length)
            opened.read(4)


def features_of(record: bytes) -> dict[str, np.ndarray | list[bytes]]:
    """Return the features of an Example: float32 [n], int64 [n] or a list of bytes by name.

    Raises:
        UnreadableData: the record is no Example.
    """
    try:
        features: dict[str, np.ndarray | list[bytes]] = {}
        for number, message in _fields(memoryview(record)):
            if number == 1:
                for _, entry in _fields(message):
                    parts = dict(_fields(entry))
                    features[bytes(parts[1]).decode()] = _values(parts.get(2, memoryview(b"")))
        return features
    except (IndexError, KeyError, ValueError, TypeError, struct.error) as error:
        raise UnreadableData(f"a record of {len(record)} bytes that is no Example: {error!r}") from None


def _values(feature: memoryview) -> np.ndarray | list[bytes]:
    """Return the list of a feature."""
    kind, message = next(_fields(feature), (_BYTES, memoryview(b"")))
    parts: list[Any] = [value for _, value in _fields(message)]
    if kind == _BYTES:
        return [bytes(part) for part in parts]
    if kind == _FLOATS:
        return np.frombuffer(b"".join(parts), "<f4")
    arrays = [np.array([part]) if isinstance(part, int) else _varints(part) for part in parts]
    return np.concatenate([np.zeros(0, np.uint64), *arrays]).astype(np.uint64).view(np.int64)


def _varint(data: memoryview, start: int) -> tuple[int, int]:
    """Return the varint at `start`, and the position after it."""
    value = shift = 0
    while True:
        byte = data[start]
        value |= (byte & 127) << shift
        start, shift = start + 1, shift + 7
        if byte < 128:
            return value & (2**64 - 1), start


def _varints(data: memoryview) -> np.ndarray:
    """Return packed varints, uint64 [n]."""
    values = np.frombuffer(data, np.uint8)
    is_last = values < 128
    if len(values) and not is_last[-1]:
        raise ValueError("a number is truncated")
    stops = np.flatnonzero(is_last) + 1
    starts = np.concatenate([[0], stops])[:-1].astype(np.int64)
    shifts = 7 * (np.arange(len(values)) - np.repeat(starts, stops - starts))
    parts = (values & 127).astype(np.uint64) << shifts.astype(np.uint64)
    return np.add.reduceat(parts, starts) if len(starts) else np.zeros(0, np.uint64)


def _fields(data: memoryview) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each field of a protobuf message: bytes, or an int."""
    start = 0
    while start < len(data):
        tag, start = _varint(data, start)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, start = _varint(data, start)
            yield number, value
            continue
        if kind == _DELIMITED:
            length, start = _varint(data, start)
        elif kind in (_FIXED32, _FIXED64):
            length = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"a field of wire type {kind}")
        if start + length > len(data):
            raise ValueError("a field is truncated")
        yield number, data[start : start + length]
        start += length

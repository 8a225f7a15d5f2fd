"""Writing of arrays into the parts of a multipart ZeroMQ message, and reading without copies."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgpack
import numpy as np

from episodes.errors import UnreadableData
from episodes.tracks import nested

SMALL = 64 * 1024
ALL = float("inf")  # size in bytes: no array is large
_SIZE = struct.Struct("<I")
_PADDING = [bytes(-size % 8) for size in range(8)]  # by the size modulo 8

Buffer = Any  # bytes, a memoryview or an array: what zmq sends
Item = tuple[np.dtype, tuple[int, ...], int, bool]  # of a track: dtype, shape, bytes, one row more per episode


class PartsWriter:
    """Writer of arrays into a multipart message. Small arrays share the first part, and each large
    array is a separate part.

    Args:
        small: size in bytes from which an array is large.
    """

    def __init__(self, small: float = SMALL) -> None:
        self.small: list[Buffer] = []
        self.large: list[Buffer] = []
        self._limit = small
        self._small_nbytes = 0
        self.nbytes = 0  # bytes of all parts, once there is a body

    def put(self, *arrays: np.ndarray) -> None:
        """Add arrays to the message: small ones to its first part, each large one as a separate part."""
        for array in arrays:
            nbytes = array.nbytes
            if nbytes >= self._limit:
                self.large.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
            else:
                self.small += (array, _PADDING[nbytes & 7])
                self._small_nbytes += nbytes + 7 & ~7

    def put_as_one(self, arrays: Sequence[np.ndarray]) -> None:
        """Add several small arrays to the message, which the reader gets as a single, concatenated array.

        The arrays are copied when the parts are created.
        """
        nbytes = sum([array.nbytes for array in arrays])
        self.small += (*arrays, _PADDING[nbytes & 7])
        self._small_nbytes += nbytes + 7 & ~7

    def body(self, facts: object) -> list[Buffer]:
        """Return the first part of the message as a list of buffers: the metadata `facts` as
        msgpack, and all small arrays."""
        head: Any = msgpack.packb(facts)
        size = _SIZE.size + len(head)
        self.nbytes = (size + 7 & ~7) + self._small_nbytes + sum(map(len, self.large))
        return [_SIZE.pack(len(head)), head, _PADDING[size & 7], *self.small]


class PartsReader:
    """Reader of the arrays in a multipart message, in the order in which they were written.
    Most are views of the message.

    Args:
        parts: the parts of a message.
        start: offset of the body in the first part.
    """

    __slots__ = ("at", "body", "facts", "limit", "part", "parts")

    def __init__(self, parts: Sequence[Buffer], start: int = 0) -> None:
        body = parts[0]
        if type(body) is not bytes:
            is_aligned = np.frombuffer(body, np.int64, 1).flags.aligned
            body = memoryview(body).toreadonly() if is_aligned else bytes(body)
        (size,) = _SIZE.unpack_from(body, start)
        facts = start + _SIZE.size
        self.facts: Any = msgpack.unpackb(body[facts : facts + size])
        self.at = facts + size + (-_SIZE.size - size & 7)
        self.body = body
        self.parts = parts
        self.part = 1
        self.limit = SMALL if len(parts) > 1 else ALL

    def arrays(self, items: Sequence[Item], num_steps: int, num_observed: int) -> list[np.ndarray]:
        """Return the next arrays of the message, one for each (dtype, item shape, item size in bytes, is_observed) in
        `items`.

        Arrays with `is_observed` have `num_observed` items, and others have `num_steps`.

        Raises:
            UnreadableData: the message has too few bytes.
        """
        body, limit, result = self.body, self.limit, []
        for dtype, shape, size, is_observed in items:
            rows = num_observed if is_observed else num_steps
            nbytes = rows * size
            if 0 < nbytes < limit:
                result.append(np.ndarray((rows, *shape), dtype, body, self.at))
                self.at += nbytes + 7 & ~7
            else:
                result.append(self.array(dtype, (rows, *shape), nbytes))
        return result

    def array(self, dtype: np.dtype, shape: tuple[int, ...], nbytes: int) -> np.ndarray:
        """Return the next array of the message, with the given dtype, shape and size in bytes.

        Raises:
            UnreadableData: the next part does not have `nbytes` bytes.
        """
        if nbytes < self.limit:
            at = self.at
            self.at = at + (nbytes + 7 & ~7)
            return np.ndarray(shape, dtype, self.body if nbytes else b"", at if nbytes else 0)
        part = memoryview(self.parts[self.part]).toreadonly()
        self.part += 1
        if len(part) != nbytes:
            raise UnreadableData(f"{len(part)} bytes for an array of {nbytes}")
        array = np.ndarray(shape, dtype, part)
        return array if array.flags.aligned else nested.frozen(array.copy())

    def end(self) -> None:
        """Raise `UnreadableData` if the message contains more parts or bytes than were read."""
        if self.part != len(self.parts) or self.at != len(self.body):
            raise UnreadableData(f"{len(self.parts) - self.part} parts and {len(self.body) - self.at} bytes too many")

"""The head of every message between senders and receivers, and what kinds of messages there are.

It is the beginning of the message's first part: a part of its own would cost what a message costs.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any, NamedTuple

from episodes.facts.policy_versions import UNKNOWN

MAGIC, PROTOCOL = b"REps", 1
_OURS = MAGIC, PROTOCOL
_HEAD = struct.Struct("<4sBBH8sQQdqq8x")
SIZE = _HEAD.size  # a multiple of 8, so that arrays after it are aligned
_new: Any = tuple.__new__  # half the price of the class call


class Kind(IntEnum):
    """What a message is. All but the last four go from senders to receivers."""

    HELLO = 0  # number: the first message that may still come; schema: the sender's connections up to this one
    SCHEMA = 1  # and its document
    DATA = 2  # packs; number: its place in the sender's row
    MULTI_AGENT = 3  # likewise, packs of multi-agent episodes
    GOT = 4  # the weights of a version have come
    TAKEN = 5  # number: all up to this one were taken
    WHO = 6  # say hello and send again what was not taken
    REFUSED = 7  # a schema; and words on why
    WEIGHTS = 8  # their version, and arrays


class Head(NamedTuple):
    """The first part of a message."""

    kind: int
    num_parts: int  # all of them
    sender: bytes = bytes(8)  # whose row of messages it is in
    number: int = 0  # in that row
    schema: int = 0  # its id
    time: float = 0.0  # when it was sent
    lowest: int = UNKNOWN  # policy versions of its steps
    highest: int = UNKNOWN

    def packed(self) -> bytes:
        return _HEAD.pack(*_OURS, *self)


def read_head(data: bytes | memoryview) -> Head | str:
    """The head at the beginning of these bytes, or words on why there is none."""
    if len(data) < SIZE:
        return "no header"
    told = _HEAD.unpack_from(data)
    if told[:2] != _OURS:
        return f"protocol {told[1]}" if told[0] == MAGIC else "no header"
    return _new(Head, told[2:])

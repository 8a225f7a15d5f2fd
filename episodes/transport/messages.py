"""Header and kinds of the messages that senders and receivers of episodes exchange.

    offset   size  field
    0        4     b"REps"
    4        1     version of the protocol
    5        1     kind
    6        2     number of parts of the message
    8        8     sender
    16       8     number of the message among those of its sender
    24       8     id of the schema
    32       8     time of sending, seconds since 1970
    40       8     lowest policy version of the steps, -1 if unknown
    48       8     highest policy version
    56       8     zeros

The head is the beginning of the message's first part: a part of its own would cost as much as a message.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from episodes.facts.policy_versions import UNKNOWN
from episodes.format_versions import MESSAGE

MAGIC, PROTOCOL = b"REps", MESSAGE
_OURS = MAGIC, PROTOCOL
_HEAD = struct.Struct("<4sBBH8sQQdqq8x")
SIZE = _HEAD.size  # a multiple of 8, so that arrays after it are aligned


class MessageKind(IntEnum):
    """Kind of a message between a sender and a receiver of episodes. Senders send the first five
    kinds, receivers the last four."""

    HELLO = 0  # number: the sender's first unacknowledged message; schema: its number of connections so far
    SCHEMA = 1  # schema: its id; the document follows the head
    DATA = 2  # packs; number: counts the messages of the sender
    MULTI_AGENT = 3  # as DATA, packs of multi-agent episodes
    GOT = 4  # number: these weights have arrived
    TAKEN = 5  # number: all messages up to this one are acknowledged
    WHO = 6  # asks for HELLO and all unacknowledged messages
    REFUSED = 7  # schema: rejected; the reason follows the head
    WEIGHTS = 8  # number: counts the published weights; lowest: their policy version; arrays follow


class Head(NamedTuple):
    """Header of a message: kind, sender id, message number, schema id, time of sending and policy versions."""

    kind: int
    num_parts: int
    sender: bytes = bytes(8)
    number: int = 0
    schema: int = 0
    time: float = 0.0
    lowest: int = UNKNOWN
    highest: int = UNKNOWN

    def packed(self) -> bytes:
        """Return the header encoded as 64 bytes."""
        return _HEAD.pack(*_OURS, *self)


def read_head(data: bytes | memoryview) -> Head | str:
    """Decode the header at the beginning of a message. Return a text with the reason if it is invalid."""
    if len(data) < SIZE:
        return "no header"
    values = _HEAD.unpack_from(data)
    if values[:2] != _OURS:
        return f"protocol {values[1]}, not {PROTOCOL}" if values[0] == MAGIC else "no header"
    return Head(*values[2:])

"""`SendWindow`: messages of a sender that the receiver has not acknowledged."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from episodes.pack import EpisodePack
from episodes.transport.messages import MessageKind

__all__ = ["Outgoing", "SendWindow"]


class Outgoing(NamedTuple):
    """Message that is sent until it is acknowledged. Its packs are kept, so that it can be sent again.

    It is encoded again if it has to be sent again. To keep its bytes would make each message use new memory, which
    costs as much as all other work for a small message.
    """

    kind: MessageKind
    packs: Sequence[EpisodePack]
    as_one: bool  # they arrive as one pack
    time: float
    nbytes: int


class SendWindow(OrderedDict[int, Outgoing]):
    """Dict by number of the messages that the receiver has not acknowledged, with limits of their count and bytes.

    A message is sent once it is in the window: an interrupt at any instruction leaves it in or out, and `mend` derives
    the rest from that.

    Args:
        size: largest number of messages.
        most: largest number of bytes. A message of more bytes is only added to an empty window.
    """

    def __init__(self, size: int, most: int) -> None:
        super().__init__()
        self._size, self._most = size, most
        self.nbytes = 0  # of all messages
        self.next = 0  # number of the next message
        self.first_unput = 0  # the first number that no socket was given yet

    @property
    def first(self) -> int:
        """Number of the oldest message, or of the next one if all are acknowledged."""
        return next(iter(self), self.next)

    @property
    def is_full(self) -> bool:
        """Whether no further message fits, however small it is."""
        return len(self) >= self._size

    def add(self, outgoing: Outgoing) -> int | None:
        """Add a message, and return its number. Return None if it does not fit."""
        nbytes, number = outgoing.nbytes, self.next
        if self and (len(self) >= self._size or self.nbytes + nbytes > self._most):
            return None
        self[number] = outgoing  # from this instruction on it is sent
        self.next = number + 1
        self.nbytes += nbytes
        return number

    def acknowledge(self, number: int) -> None:
        """Remove all messages up to `number`."""
        while self and next(iter(self)) <= number:
            _, sent = self.popitem(last=False)
            self.nbytes -= sent.nbytes

    def mend(self) -> None:
        """Recover from an interrupted call: derive the next number and the bytes from the messages."""
        if self:
            self.next = max(self.next, next(reversed(self)) + 1)
        self.nbytes = sum(sent.nbytes for sent in self.values())

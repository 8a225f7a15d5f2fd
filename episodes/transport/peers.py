"""Whom a receiver knows: where each sender is, how far its row of messages has come, and what came of it."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from episodes.facts.policy_versions import UNKNOWN
from episodes.transport.connections import Connection
from episodes.transport.messages import Head
from episodes.transport.parts import Buffer

_MOST_PEERS = 4096
_MOST_PLACES = 1 << 16


@dataclass(slots=True)
class Peer:
    """A sender: where it is, and how far its row of messages has come."""

    address: bytes
    next: int  # the number of the message that is to come
    connection: int = 0  # how many it has had
    num_unacknowledged: int = 0  # messages that were taken, and not acknowledged
    in_hand: int = 0  # messages whose users did not come back yet
    num_waiting: int = 0  # messages that came, and were not taken
    has_dropped: bool = False  # later messages were dropped, because these have too many bytes
    floor: int = UNKNOWN  # the lowest policy version that what it will send can have
    asked: bytes = b""  # the address at which it was asked to say hello
    weights: int = -1  # the number of the weights that were sent to it last
    is_reading: bool = False  # and whether it has not said that it has them


class Incoming(NamedTuple):
    """A message as it was received."""

    address: bytes
    parts: list[Buffer]
    nbytes: int  # of all parts
    connection: Connection


class Arrived(NamedTuple):
    """A message of packs that is the next of its sender."""

    peer: Peer
    head: Head
    parts: list[Buffer]
    nbytes: int  # of all parts
    connection: Connection


class Peers(OrderedDict[bytes, Peer]):
    """Senders by their ids; who was silent longest comes first.

    Of those beyond 4,096 only the place in their row is kept, of those beyond 65,536 more not even that: what such a
    sender had sent, and does not know to be taken, may then be taken once more.
    """

    def __init__(self) -> None:
        super().__init__()
        self._places: OrderedDict[bytes, int] = OrderedDict()  # of senders before these: which message is to come

    def place(self, sender: bytes, first: int) -> int:
        """The number of the message that is to come of a sender which is not here; `first` where nothing is known."""
        return self._places.pop(sender, first)

    def oldest_idle(self) -> bytes | None:
        """Who is to be put aside, if there are too many: the first of whose messages nobody has one."""
        if len(self) <= _MOST_PEERS:
            return None
        return next((sender for sender, peer in self.items() if not (peer.num_waiting or peer.in_hand)), None)

    def archive(self, sender: bytes) -> None:
        """Keep but the place of a sender."""
        self._places[sender] = self[sender].next
        del self[sender]
        if len(self._places) > _MOST_PLACES:
            self._places.popitem(last=False)

"""State that a receiver stores for each sender, such as its address and the number of its next message."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from episodes.facts.policy_versions import UNKNOWN
from episodes.multi_agent import MultiAgentEpisode
from episodes.pack import EpisodePack
from episodes.transport.connections import PART_BYTES, Connection
from episodes.transport.messages import Head
from episodes.transport.parts import Buffer

Received = EpisodePack | list[MultiAgentEpisode]

_MOST_PEERS = 4096
_MOST_PLACES = 1 << 16
_ACKNOWLEDGE_S = 0.02


@dataclass(slots=True)
class Peer:
    """State that a receiver stores for one sender: address, number of the next message, and counts of its messages."""

    address: bytes
    next: int  # number of the next message to be taken
    connection: int = 0  # number of connections so far
    num_unacknowledged: int = 0  # messages that were taken, and not acknowledged
    num_in_use: int = 0  # messages that were returned to threads that have not called again
    num_waiting: int = 0  # messages that came, and were not taken
    has_dropped: bool = False  # later messages were dropped, because these have too many bytes
    lowest_version: int = UNKNOWN  # lowest policy version that later messages can have
    who_address: bytes = b""  # the address to which WHO was sent
    weights: int = -1  # number of the weights that were sent last
    has_unconfirmed_weights: bool = False  # whether these weights are not confirmed yet


class Incoming(NamedTuple):
    """Message as it was read from the socket, with its size, the sender's address and the TCP connection."""

    address: bytes
    parts: list[Buffer]
    nbytes: int  # of all parts
    connection: Connection

    def count_bytes(self) -> None:
        """Count the bytes of the message as processed."""
        self.connection.done += self.nbytes + PART_BYTES * len(self.parts)


class Arrived(NamedTuple):
    """Queued message with packs of episodes that is not decoded yet, with the state of its sender."""

    peer: Peer
    head: Head
    parts: list[Buffer]
    nbytes: int  # of all parts
    connection: Connection


class Taken(NamedTuple):
    """Message that was taken, until the caller of `recv` or `sample` calls again."""

    peer: Peer
    sender: bytes
    number: int
    result: Received


class Peers(OrderedDict[bytes, Peer]):
    """Dict of a receiver's senders by id. The sender that has sent nothing for the longest time comes first.

    Of senders beyond 4,096 only the progress is kept, and of 65,536 more not even that: messages of these that were
    taken, and whose acknowledgement did not arrive, may be received twice.
    """

    def __init__(self) -> None:
        super().__init__()
        self._archived: OrderedDict[bytes, int] = OrderedDict()  # next message numbers of archived senders

    def next_number(self, sender: bytes, first: int) -> int:
        """Return the number of the message that an archived sender must send next, or `first` if it is not archived.

        It stays in the archive until the sender is archived again, in case that the caller is interrupted.
        """
        return self._archived.get(sender, first)

    def oldest_idle(self) -> bytes | None:
        """Return the id of the longest silent sender without pending messages, whose state can be archived,
        if there are too many senders.

        Return None if there are fewer senders, or if all of them have messages that wait or are in use.
        """
        if len(self) <= _MOST_PEERS:
            return None
        return next((sender for sender, peer in self.items() if not (peer.num_waiting or peer.num_in_use)), None)

    def archive(self, sender: bytes) -> None:
        """Discard the state of a sender, except for the number of its next message."""
        self._archived[sender] = self[sender].next
        self._archived.move_to_end(sender)
        del self[sender]
        if len(self._archived) > _MOST_PLACES:
            self._archived.popitem(last=False)


class Unacknowledged(dict[bytes, Peer]):
    """Dict by id of the senders whose messages were taken but not acknowledged.

    Attributes:
        since: Time in `time.monotonic()` at which the first of these messages was taken.
    """

    def __init__(self) -> None:
        super().__init__()
        self.since = 0.0

    def schedule(self, sender: bytes, peer: Peer) -> None:
        """Note that one more message of `sender` must be acknowledged soon."""
        if not self:
            self.since = time.monotonic()
        peer.num_unacknowledged += 1
        self[sender] = peer

    def is_late(self) -> bool:
        """Return True if the first of these messages has waited for its acknowledgement long enough."""
        return time.monotonic() - self.since > _ACKNOWLEDGE_S

"""`TakenMessages`: messages that a receiver has taken and its caller has not finished with."""

from __future__ import annotations

import threading
from collections import Counter, deque

from episodes.pack import EpisodePack
from episodes.transport.peers import Received, Taken

__all__ = ["TakenMessages", "steps_of"]


class TakenMessages:
    """Messages that a receiver has taken and not returned yet, and the messages that each thread received last.

    A message is taken once it is in `waiting` or `batch`: an interrupt at any instruction leaves it in or out, and
    `mend` derives the rest from that.

    Attributes:
        waiting: Messages that `recv` returns next.
        batch: Messages of an incomplete sample.
        num_steps: Steps of `batch`.
        in_use: The messages that `recv` or `sample` returned last, by thread.
    """

    __slots__ = ("_returned", "batch", "in_use", "num_steps", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Taken] = deque()
        self.batch: list[Taken] = []
        self.num_steps = 0
        self.in_use: dict[int, list[Taken]] = {}
        self._returned: list[Taken] | None = None  # what the current call returns, unless it is interrupted

    def return_first(self) -> Received:
        """Return the result of the first waiting message, for the current call. After an interrupt, the next call
        returns it.
        """
        messages = [self.waiting[0]]
        self.in_use[threading.get_ident()] = messages.copy()
        self._returned = messages
        return messages[0].result

    def return_batch(self) -> list[Received]:
        """Return the results of the batch, for the current call. After an interrupt, the next call returns them."""
        self.in_use[threading.get_ident()] = self.batch.copy()
        self._returned = self.batch
        return [message.result for message in self.batch]

    def settle(self) -> None:
        """Remove the messages that the last call has returned. An interrupted call of this is repeated."""
        returned = self._returned
        if returned is None:
            return
        if returned is self.batch:
            self.num_steps = 0
            self.batch = []
        elif self.waiting and self.waiting[0] is returned[0]:
            self.waiting.popleft()
        self._returned = None

    def mend(self) -> None:
        """Recover from an interrupted call. Messages that it did not return are not in use. The senders' next numbers
        and the steps of the batch are derived from the messages.
        """
        self._returned = None
        kept = [*self.waiting, *self.batch]
        for peer, _, number, _ in kept:
            peer.next = max(peer.next, number + 1)
        self.num_steps = sum(steps_of(message.result) for message in self.batch)
        identities = set(map(id, kept))
        for messages in self.in_use.values():
            messages[:] = [message for message in messages if id(message) not in identities]

    def count_by_sender(self) -> Counter[bytes]:
        """Return the number of messages of each sender that are taken or in use."""
        lists = (self.waiting, self.batch, *self.in_use.values())
        return Counter(message.sender for messages in lists for message in messages)


def steps_of(result: Received) -> int:
    """Return the number of steps in a received result: a pack, or a list of multi-agent episodes (env steps)."""
    return result.num_steps if isinstance(result, EpisodePack) else sum(map(len, result))

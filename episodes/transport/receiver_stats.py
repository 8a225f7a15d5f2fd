"""`ReceiverStats`: statistics of a receiver, and `ReceivedCounts`, in which it counts messages."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from episodes.facts.policy_versions import UNKNOWN
from episodes.pack import EpisodePack
from episodes.transport.messages import Head

__all__ = ["ReceivedCounts", "ReceiverStats"]


@dataclass(frozen=True, slots=True)
class ReceiverStats:
    """Statistics of an `EpisodeReceiver`: counts of messages received, rejected and lost since it was created.

    Attributes:
        received: messages that `recv` and `sample` have returned.
        episodes: episodes in these messages.
        steps: steps of these episodes.
        bytes: size of these messages.
        refused: number of rejected messages and handshakes by reason.
        duplicates: messages that were received again, and not returned again.
        lost: messages that cannot be received any more, and messages that a process with the same journal had returned
            before it died without another call.
        senders: senders that are known now.
        lag: seconds from `send` to `recv` of the newest message, by the clocks of both machines.
        age: number of versions published since the oldest policy version of the newest message; None without versions.
    """

    received: int = 0
    episodes: int = 0
    steps: int = 0
    bytes: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    duplicates: int = 0
    lost: int = 0
    senders: int = 0
    lag: float | None = None
    age: int | None = None


class ReceivedCounts:
    """Counts of the messages that a receiver has received, rejected and lost.

    Attributes:
        refused: Number of rejected messages by reason.
        num_duplicates: Messages that were received again.
        num_lost: Messages that cannot be received any more.
    """

    __slots__ = ("_counts", "_lag", "_last", "num_duplicates", "num_lost", "refused")

    def __init__(self) -> None:
        self._counts = Counter[str]()
        self._last: Head | None = None  # of the newest message
        self._lag: float | None = None
        self.refused = Counter[str]()
        self.num_duplicates = self.num_lost = 0

    def refuse(self, reason: str) -> None:
        """Count a rejected message by the reason of its rejection."""
        self.refused[reason] += 1

    def add(self, head: Head, packs: list[EpisodePack], nbytes: int) -> None:
        """Count a received message of `nbytes` bytes, with its steps and episodes."""
        self._last, self._lag = head, time.time() - head.time
        counts = self._counts
        counts["received"] += 1
        counts["bytes"] += nbytes
        for pack in packs:
            lengths = pack.lengths.tolist()  # most packs have few episodes, for which numpy's sum is slower
            counts["episodes"] += len(lengths)
            counts["steps"] += sum(lengths)

    def stats(self, *, num_senders: int, num_failed_handshakes: int, newest_version: int | None) -> ReceiverStats:
        """Return the statistics so far.

        Args:
            num_senders: senders that are known now.
            num_failed_handshakes: rejected handshakes.
            newest_version: the newest published version, or None.
        """
        last, age = self._last, None
        if last is not None and last.lowest != UNKNOWN and newest_version is not None:
            age = newest_version - last.lowest
        refused = dict(self.refused)
        if num_failed_handshakes:
            refused["handshake"] = num_failed_handshakes
        return ReceiverStats(
            **self._counts,
            refused=refused,
            duplicates=self.num_duplicates,
            lost=self.num_lost,
            senders=num_senders,
            lag=self._lag,
            age=age,
        )

"""`ReceiverLink`: state of a sender's connection to its receiver."""

from __future__ import annotations

import math
import time
from typing import Any

__all__ = ["ReceiverLink"]

_EVENTS, _POLLIN = 15, 1  # ZeroMQ's numbers of `zmq.EVENTS` and `zmq.POLLIN`
_POLL_S = 0.0002  # poll interval of `send`: each poll is a system call, which costs as much as encoding a small pack
_RETRY_S = 0.02, 0.5  # shortest and longest time between two attempts to connect


class ReceiverLink:
    """State of a sender's connection to its receiver, and the time of the next attempt to connect after it has ended.

    Attributes:
        is_up: Whether there is a connection.
        num_connections: Connections so far.
        num_failed: Connections that have ended, and attempts that have failed.
        retry_at: Time of the next attempt in `time.monotonic()`; infinite unless the last one has ended.
        schemas: Ids of the schemas that were sent on this connection.
    """

    __slots__ = ("_monitor", "_next_poll", "_retry_s", "is_up", "num_connections", "num_failed", "retry_at", "schemas")

    def __init__(self) -> None:
        self._monitor: Any = None
        self._retry_s = _RETRY_S[0]  # time to the next attempt to connect, after one has failed
        self._next_poll = 0.0
        self.is_up = False
        self.num_connections = self.num_failed = 0
        self.retry_at = math.inf
        self.schemas: set[int] = set()

    def begin(self, monitor: Any) -> None:
        """Begin an attempt to connect.

        Args:
            monitor: socket of the connection events.
        """
        self._monitor = monitor
        self.schemas.clear()
        self.is_up, self.retry_at = False, math.inf

    def has_event(self) -> bool:
        """Return True if the connection has changed."""
        return bool(self._monitor.getsockopt(_EVENTS) & _POLLIN)

    def next_event(self) -> int:
        """Return ZeroMQ's number of the next connection event."""
        return int.from_bytes(self._monitor.recv_multipart()[0][:2], "little")

    def note_connected(self) -> None:
        """Note that there is a connection."""
        self.is_up = True
        self._retry_s = _RETRY_S[0]
        self.num_connections += 1

    def note_ended(self, is_failure: bool) -> None:
        """Note that the connection or an attempt has ended: set when to connect again.

        Args:
            is_failure: whether it counts in `num_failed`.
        """
        self.is_up = False
        self.num_failed += is_failure
        if self.retry_at == math.inf:  # the first event of this end
            self.retry_at = time.monotonic() + self._retry_s
            self._retry_s = min(2 * self._retry_s, _RETRY_S[1])

    def is_poll_due(self) -> bool:
        """Return True if there is no connection, or the poll interval has passed, and begin the next interval."""
        now = time.monotonic()
        if self.is_up and now < self._next_poll:
            return False
        self._next_poll = now + _POLL_S
        return True

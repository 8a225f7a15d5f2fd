"""ZeroMQ sockets of our kinds: nothing lingers, nobody waits for ever, and handshakes that fail are seen."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from episodes.errors import EpisodeStateError, MissingExtra, TransportTimeout

MOST_BYTES = 256 << 20  # of one part: what a socket takes at a peer's word
_SLICE_S = 0.1  # a lock is held so long while nothing comes
_COPIED = 1 << 14  # bytes of a part that are copied on arrival: dearer are a view and the buffer that it would keep
_COPIED_OUT = 1 << 16  # likewise of one that is sent: dearer is an object that tells when the socket has done with it
_NOBLOCK, _MORE, _POLLIN, _EVENTS = 1, 2, 1, 15
"""ZeroMQ's numbers of flags: pyzmq has them as enums, of which two joined take longer than a message of a socket."""
_numbers = itertools.count()  # of monitors


def zeromq() -> Any:
    """The module `zmq`; `MissingExtra` where it is not installed."""
    try:
        import zmq
    except ImportError as error:
        raise MissingExtra(
            "senders and receivers need pyzmq; install the extra: pip install 'rl-episodes[zmq]'"
        ) from error
    return zmq


class Endpoint:
    """A socket with what belongs to it: a context, a monitor of handshakes, and a lock, so that threads share it."""

    def __init__(self) -> None:
        self.zmq = zeromq()
        self.context: Any = self.zmq.Context()
        self.socket: Any = None
        self.is_closed = False
        self._monitor: Any = None
        self._poller: Any = None
        self._lock = threading.Lock()
        self._turn = threading.Lock()  # held by whoever waits for the lock, and gets it next
        self._releasing = _Releasing(self._lock)

    def open(self, kind: int, max_message_bytes: int) -> Any:
        """A socket of this kind, in the place of the one before."""
        zmq = self.zmq
        socket = self.socket = self.context.socket(kind)
        socket.linger = 0
        socket.setsockopt(zmq.MAXMSGSIZE, max_message_bytes)
        socket.setsockopt(zmq.HEARTBEAT_IVL, 2000)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 30_000)  # a process that computes answers through its io thread
        socket.setsockopt(zmq.HANDSHAKE_IVL, 10_000)
        return socket

    def watch(self) -> None:
        """Begin to see handshakes. The monitor takes any number of events: one that is full stops its socket."""
        zmq, address = self.zmq, f"inproc://monitor-{next(_numbers)}"
        failed = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        failed |= zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        self.socket.monitor(address, failed | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self._monitor = self.context.socket(zmq.PAIR)
        self._monitor.rcvhwm = 0
        self._monitor.linger = 0
        self._monitor.connect(address)
        self._poller = zmq.Poller()
        self._poller.register(self.socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)

    def events(self) -> Iterator[int]:
        """What happened to connections since the last call."""
        while self._monitor.getsockopt(_EVENTS) & _POLLIN:
            event, _ = self._monitor.recv_multipart()
            yield int.from_bytes(event[:2], "little")

    def has_message(self) -> bool:
        """Whether there is a message to receive."""
        return bool(self.socket.getsockopt(_EVENTS) & _POLLIN)

    def wait(self, seconds: float) -> None:
        """Until something may have happened, at most so long."""
        self._poller.poll(max(0, min(seconds, _SLICE_S)) * 1000)

    def put(self, address: bytes | None, frames: Sequence[Any]) -> None:
        """Send a message, large parts without a copy; `zmq.Again` where nobody is there, or takes it."""
        send, last = self.socket.send, len(frames) - 1
        if address is not None:
            send(address, _NOBLOCK | _MORE)
        for i, frame in enumerate(frames):
            send(frame, _NOBLOCK | (_MORE if i < last else 0), copy=len(frame) < _COPIED_OUT)

    def got_from(self) -> tuple[bytes, list[Any]]:
        """The address of who sent the message that is there to a socket of many, and its parts."""
        return self.socket.recv(_NOBLOCK), self.got()

    def got(self) -> list[Any]:
        """The parts of the message that is there: bytes where they are small, else views."""
        recv, parts = self.socket.recv, []
        while True:
            frame = recv(_NOBLOCK, copy=False)
            parts.append(frame.bytes if len(frame) < _COPIED else frame.buffer)
            if not frame.more:
                return parts

    def held(self, deadline: float) -> _Releasing:
        """The lock, which nobody holds for long; a context that gives it back."""
        if self._turn.locked() or not self._lock.acquire(blocking=False):
            self._queue(deadline)
        if self.is_closed:
            self._lock.release()
            raise EpisodeStateError(f"this {type(self).__name__} is closed; make another one")
        return self._releasing

    def _queue(self, deadline: float) -> None:
        """Wait for the lock. Who has just given it back, as a loop does all the time, does not get it before us."""
        until = max(deadline, time.monotonic()) + 2 * _SLICE_S
        if self._turn.acquire(timeout=_left(until)):
            try:
                if self._lock.acquire(timeout=_left(until)):
                    return
            finally:
                self._turn.release()
        raise TransportTimeout(f"other threads use this {type(self).__name__} all the time")

    def close_socket(self) -> None:
        """The socket and its monitor, not the context."""
        if self._monitor is not None:
            self.socket.disable_monitor()
            self._monitor.close(0)
            self._monitor = None
        if self.socket is not None:
            self.socket.close()

    def release(self) -> None:
        """Close everything; what is still queued is dropped."""
        self.is_closed = True
        self.close_socket()
        self.context.term()


class _Releasing:
    """The end of a stretch in which the lock is held; one object an endpoint, for each message has such a stretch."""

    __slots__ = ("_lock",)

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exception: object) -> None:
        self._lock.release()


def _left(deadline: float) -> float:
    """Seconds until then, as a lock takes them."""
    return min(max(deadline - time.monotonic(), 0.0), threading.TIMEOUT_MAX)


def deadline_of(timeout: float | None) -> float:
    """When to give up, in `time.monotonic()`; never for None."""
    return float("inf") if timeout is None else time.monotonic() + timeout

"""ZeroMQ sockets that several threads can share, and that stay usable after a call was interrupted (Ctrl-C)."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.errors import EpisodeError, EpisodeStateError, WrongType, needing
from episodes.tracks.validation import checked_number

if TYPE_CHECKING:
    import zmq

MOST_BYTES = 256 << 20  # default limit of the bytes of one message, and of all unacknowledged messages of a sender
_SLICE_S = 0.1  # longest time that a waiting call holds the lock
_PAUSE_S = 0.0005  # time between two slices in which other threads can take the lock
_COPIED = 1 << 14  # received parts below this size are copied, which is cheaper than a view and the buffer it keeps
_COPIED_OUT = 3 << 17  # sent parts below this size are copied, which is cheaper than a callback when they were sent
_KEPT = (32 << 20) - (64 << 10)  # bytes: the largest freed block from which glibc adapts its thresholds
_NOBLOCK, _NOT_LAST, _POLLIN, _EVENTS = 1, 1 | 2, 1, 15
"""ZeroMQ's flags as numbers: joining two of pyzmq's enums takes longer than receiving a message."""
_PYTHONS, _ALL_TIME = (float, int), 1e9  # types of timeouts that need no further check, and a limit in seconds
_numbers = itertools.count()  # of monitors


def zeromq() -> Any:
    """Return the module `zmq`. Raise `MissingExtra` if pyzmq is not installed."""
    with needing("zmq", "senders and receivers need pyzmq"):
        import zmq
    return zmq


@functools.cache
def socket_class() -> Any:
    """Return the class of ZeroMQ sockets that are closed without a warning when an interrupt has dropped them.

    pyzmq's class warns first. Where warnings are errors it does not close the socket then, for which the context waits.
    """

    class DroppableSocket(zeromq().Socket):
        def __del__(self) -> None:
            if not self.closed:
                self.close(0)

    return DroppableSocket


def keep_freed_memory() -> None:
    """Make the C library (glibc) keep up to 64 MiB of freed memory for new messages, which is faster.

    Each message of many packs is one block of memory, which the socket frees when it was sent. glibc returns such
    blocks to the system and requests them again page by page, which takes longer than writing the message. It stops
    doing so once the process has freed a block of almost 32 MiB, which is what this function does; it takes 30 us.
    Joined packs then need three quarters of the CPU time. Other allocators are not affected.
    """
    np.empty(_KEPT, np.uint8)


class OpenSockets:
    """ZeroMQ sockets and other resources of one sender or receiver, which are closed together.

    It does not refer to the endpoint, so that they can be released after the endpoint was garbage-collected.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.context = context
        self.socket: Any = None
        self.monitor: Any = None
        self.poller: Any = None  # of the sockets for which a call waits
        self.closers: list[Callable[[], object]] = []
        """Functions that close other resources. Each may be called twice."""
        self.process = os.getpid()  # a process that is forked from it must not close the sockets
        self.is_released = False

    def close_socket(self) -> None:
        """Close the socket and its event monitor, but not the ZeroMQ context."""
        if self.socket is not None and not self.socket.closed:
            self.socket.disable_monitor()
            self.socket.close()
        if self.monitor is not None:
            self.monitor.close(0)
            self.monitor = None

    def release(self) -> None:
        """Close the sockets, call the functions in `closers` (last first), and terminate the ZeroMQ context. If a call
        is interrupted, the next call continues, and may call the interrupted closer again.
        """
        self.close_socket()
        while self.closers:
            self.closers[-1]()
            self.closers.pop()
        self.context.term()
        self.is_released = True


def _release_dropped(sockets: OpenSockets, name: str) -> None:
    """Close the sockets of a sender or receiver that was garbage-collected without `close`,
    and issue a `ResourceWarning`."""
    if sockets.is_released or sockets.process != os.getpid():
        return
    if sockets.socket is not None:
        sockets.socket.linger = 0
    sockets.release()
    warnings.warn(f"a {name} was dropped without close(); it is closed now", ResourceWarning, stacklevel=2)


class Endpoint:
    """Base class of senders and receivers: a ZeroMQ socket with locks, so that several threads can use it.

    Each call works in `with self.lock(), self.busy(), self.section():`. The first two are locks of C, which no
    interrupt leaves taken. A call that is interrupted, for example by Ctrl-C, may leave a message half sent or half
    received: the next section then calls `mend` first.
    """

    def __init__(self) -> None:
        self.zmq = zeromq()
        keep_freed_memory()
        self.socket: Any = None
        self.is_closed = False
        self.is_interrupted = False  # the last section was interrupted
        self.is_waiting = False  # the current section only waits for events
        self._lock = threading.RLock()  # of threads
        self._turn = _Turn()
        self._sockets = OpenSockets(self.zmq.Context())
        weakref.finalize(self, _release_dropped, self._sockets, type(self).__name__)

    # --- locking ---------------------------------------------------------------------------------------------------

    def lock(self) -> threading.RLock:
        """Return the lock that lets only one thread at a time use the socket. Raise an error if this thread is using it
        already, or the process was forked.

        Raises:
            EpisodeStateError: this thread is in a section already, because a signal handler interrupted it; or this
                process was forked from the endpoint's process.
        """
        if self._sockets.process != os.getpid():
            raise EpisodeStateError(
                f"this {type(self).__name__} is of the process that this one was forked from; make another one here"
            )
        if self._turn.busy.locked() and self._turn.thread == threading.get_ident():
            raise EpisodeStateError(f"this {type(self).__name__} is called while it works, as by a signal handler")
        return self._lock

    def busy(self) -> threading.Lock:
        """Return the lock that is held while a call works, by which nested calls are detected.
        Take it only while holding `lock()`."""
        turn = self._turn
        turn.thread = threading.get_ident()
        return turn.busy

    def section(self) -> _Section:
        """Return the context manager in which a call uses the socket. On entry it repairs what an
        interrupted call has left."""
        return _Section(self)

    def mend(self) -> None:
        """Repair the connection after an interrupted call, which may have sent or received only part of a message."""
        raise NotImplementedError

    def settle(self) -> None:
        """Discard what a call has returned. An interrupt may prevent this: the next section does it then."""

    def closed_error(self) -> EpisodeStateError:
        """Return the `EpisodeStateError` for a call on a closed sender or receiver."""
        return EpisodeStateError(f"this {type(self).__name__} is closed; make another one")

    # --- sockets ---------------------------------------------------------------------------------------------------

    def open(self, kind: int, max_message_bytes: int) -> Any:
        """Create a ZeroMQ socket of type `kind`, store the socket as `self.socket`, and return this socket."""
        zmq = self.zmq
        socket = self.socket = self._sockets.socket = self._sockets.context.socket(kind, socket_class())
        socket.linger = 0
        socket.setsockopt(zmq.MAXMSGSIZE, min(max_message_bytes, 1 << 62))
        # The kernel notices within 30 s that a silent peer is gone. ZeroMQ's heartbeats would abort this process
        # ("!_io_error") when a connection breaks while its queue is full, and peers with full queues do not answer.
        for option, value in ((zmq.TCP_KEEPALIVE, 1), (zmq.TCP_KEEPALIVE_IDLE, 10), (zmq.TCP_KEEPALIVE_INTVL, 5)):
            socket.setsockopt(option, value)
        socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, 4)
        socket.setsockopt(zmq.HANDSHAKE_IVL, 10_000)
        return socket

    def monitor(self, events: int) -> Any:
        """Start to monitor the socket, and return a second socket from which its connection events can be read."""
        zmq, address = self.zmq, f"inproc://monitor-{next(_numbers)}"
        self.socket.monitor(address, events)
        monitor = self._sockets.monitor = self._sockets.context.socket(zmq.PAIR, socket_class())
        monitor.rcvhwm = 0  # a full monitor would stop its socket
        monitor.linger = 0
        monitor.connect(address)
        return monitor

    def set_polled(self, *sockets: zmq.Socket[bytes]) -> None:
        """Set the sockets that `wait` polls for messages."""
        poller = self._sockets.poller = self.zmq.Poller()
        for socket in sockets:
            poller.register(socket, _POLLIN)

    def has_message(self) -> bool:
        """Return True if a message can be received without waiting."""
        return bool(self.socket.getsockopt(_EVENTS) & _POLLIN)

    def wait(self, deadline: float) -> bool:
        """Wait for a message or a connection event, at most until `deadline` or for 0.1 s.
        Return True if there is one."""
        left = max(0.0, min(deadline - time.monotonic(), _SLICE_S))
        self.is_waiting = True
        events = self._sockets.poller.poll(left * 1000)
        self.is_waiting = False
        return bool(events)

    @staticmethod
    def pause() -> None:
        """Sleep for a moment, so that other threads can take the lock."""
        time.sleep(_PAUSE_S)

    def put(self, address: bytes | None, frames: Sequence[Any]) -> None:
        """Send a multipart message to a peer, large parts without a copy. Raise `zmq.Again` if
        no peer can receive it now."""
        send = self.socket.send
        if address is not None:
            send(address, _NOT_LAST)
        for frame in frames[:-1]:
            send(frame, _NOT_LAST, len(frame) < _COPIED_OUT)
        send(frames[-1], _NOBLOCK, len(frames[-1]) < _COPIED_OUT)

    def recv_frame(self, parts: list[Any]) -> Any:
        """Receive the next part of a message, append its data to `parts`, and return its ZeroMQ frame.

        Large parts are appended as views.
        """
        frame = self.socket.recv(_NOBLOCK, False)
        parts.append(frame.bytes if len(frame) < _COPIED else memoryview(frame))
        return frame

    def end_parts(self) -> None:
        """Complete a message that an interrupted call has sent only in part, and skip the rest of one
        that it has received in part."""
        while self.socket.getsockopt(self.zmq.RCVMORE):
            self.socket.recv(_NOBLOCK)
        with contextlib.suppress(self.zmq.ZMQError):
            self.socket.send(b"", _NOBLOCK)  # the last part of a message to a peer; without others, it has no receiver

    # --- closing ---------------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to close: all resources are closed, or this is a forked
        process, which does not own them."""
        return self._sockets.is_released or self._sockets.process != os.getpid()

    def release(self) -> None:
        """Close all sockets and other resources. If a call is interrupted, the next call continues."""
        self.is_closed = True
        self._sockets.release()


class _Turn:
    """Lock that is held while a call works, and the thread that took it last, by which a nested call is recognized."""

    __slots__ = ("busy", "thread")

    def __init__(self) -> None:
        self.busy, self.thread = threading.Lock(), 0


class _Section:
    """Context manager in which a call uses the socket. On entry it repairs what an interrupted call has left.

    Raises:
        EpisodeStateError: the endpoint is closed.
    """

    __slots__ = ("_endpoint",)

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def __enter__(self) -> None:
        endpoint = self._endpoint
        if endpoint.is_closed:
            raise endpoint.closed_error()
        if endpoint.is_interrupted:
            endpoint.mend()
        else:
            endpoint.settle()
        endpoint.is_interrupted = True

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        endpoint = self._endpoint
        is_expected = kind is None or issubclass(kind, EpisodeError) or endpoint.is_waiting
        endpoint.is_waiting = False
        endpoint.is_interrupted = not is_expected
        if is_expected:
            endpoint.settle()


def deadline_of(timeout: float | None) -> float:
    """Convert a timeout in seconds to a deadline in `time.monotonic()` seconds. For None the deadline is infinite.

    Raises:
        InvalidArgument: the timeout is not a number.
    """
    if timeout is None:
        return math.inf
    if type(timeout) not in _PYTHONS or not -_ALL_TIME < timeout < _ALL_TIME:
        timeout = checked_number("timeout", timeout)
    return time.monotonic() + timeout


def checked_address(address: object) -> str:
    """Return the address unchanged. Raise `WrongType` if it is not a str."""
    if not isinstance(address, str):
        raise WrongType(f"address={address!r}: give a text such as 'tcp://127.0.0.1:5555'")
    return address

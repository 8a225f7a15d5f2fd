"""ZeroMQ sockets of our kinds: nothing lingers, nobody waits for ever, and handshakes that fail are seen."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from episodes.errors import EpisodeError, EpisodeStateError, TransportTimeout, WrongType, needing
from episodes.tracks.validation import checked_number

MOST_BYTES = 256 << 20  # of one part: what a socket takes at a peer's word
_SLICE_S = 0.1  # a lock is held so long while nothing comes
_COPIED = 1 << 14  # bytes of a part that are copied on arrival: dearer are a view and the buffer that it would keep
_COPIED_OUT = 3 << 17  # likewise of one that is sent: dearer is a thread, which hears that the socket has done with it
_KEPT = (32 << 20) - (64 << 10)  # bytes: the most that glibc learns from
_NOBLOCK, _NOT_LAST, _POLLIN, _EVENTS = 1, 1 | 2, 1, 15
"""ZeroMQ's numbers of flags: pyzmq has them as enums, of which two joined take longer than a message of a socket."""
_PYTHONS, _ALL_TIME = (float, int), 1e9  # types of timeouts that need no further look, and seconds
_numbers = itertools.count()  # of monitors
_own_process = os.getpid()  # to ask the system each time takes as long as to take a lock


def _is_forked() -> None:
    global _own_process
    _own_process = os.getpid()


os.register_at_fork(after_in_child=_is_forked)


def zeromq() -> Any:
    """The module `zmq`; `MissingExtra` where it is not installed."""
    with needing("zmq", "senders and receivers need pyzmq"):
        import zmq
    return zmq


def keep_freed_memory() -> None:
    """Have this process use what messages freed for the next ones, up to 64 MiB of it.

    Each message of many packs is memory of its own, which the socket lets go when it was sent. glibc gives that back to
    the system at once and asks for it anew, page by page, which takes longer than writing the message. It keeps as much
    as the largest block that the process ever freed would need: one of 32 MiB, which nobody touches, takes 30 us.
    So the memory is nobody's but malloc's: there is no buffer that a socket or a view could still see. Joined packs
    then need three quarters of the CPU. Other allocators do not care.
    """
    np.empty(_KEPT, np.uint8)


class Endpoint:
    """A socket with what belongs to it: a context, a monitor of handshakes, and a lock, so that threads share it."""

    def __init__(self) -> None:
        self.zmq = zeromq()
        keep_freed_memory()
        self.context: Any = self.zmq.Context()
        self.socket: Any = None
        self.is_closed = False
        self._is_closing = self._is_released = False  # nobody waits any more; nothing is open any more
        self._process = _own_process
        self._monitor: Any = None
        self._poller: Any = None
        self._lock: Any = _Lock()
        self._turn: Any = _Lock()  # held by whoever waits for the lock, and gets it next
        self._is_wanted = False  # somebody holds the turn
        self.was_interrupted = False  # a stretch has begun, and not ended
        self.stretch = _LockedSection(self)

    def open(self, kind: int, max_message_bytes: int) -> Any:
        """A socket of this kind, in the place of the one before."""
        zmq = self.zmq
        socket = self.socket = self.context.socket(kind)
        socket.linger = 0
        socket.setsockopt(zmq.MAXMSGSIZE, min(max_message_bytes, 1 << 62))
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
        if self._is_closing:
            raise self._closed()
        self._poller.poll(max(0, min(seconds, _SLICE_S)) * 1000)

    def put(self, address: bytes | None, frames: Sequence[Any]) -> None:
        """Send a message, large parts without a copy; `zmq.Again` where nobody is there, or takes it."""
        send = self.socket.send
        if address is not None:
            send(address, _NOT_LAST)
        for frame in frames[:-1]:
            send(frame, _NOT_LAST, len(frame) < _COPIED_OUT)
        send(frames[-1], _NOBLOCK, len(frames[-1]) < _COPIED_OUT)

    def recv_from(self) -> tuple[bytes, list[Any]] | None:
        """The address of who sent the next message to a socket of many, and its parts; None where there is none.

        To ask before whether there is one would cost half as much as to be told that there is none.
        """
        try:
            address = self.socket.recv(_NOBLOCK)
        except self.zmq.Again:
            return None
        return address, self.got()

    def got(self) -> list[Any]:
        """The parts of the message that is there: bytes where they are small, else views."""
        recv, parts = self.socket.recv, []
        while True:
            frame = recv(_NOBLOCK, False)
            parts.append(frame.bytes if len(frame) < _COPIED else memoryview(frame))
            if not frame.more:
                return parts

    def end_parts(self) -> None:
        """Get to the beginning of the next message, of what comes and of what goes."""
        for socket in (self.socket, self._monitor):
            while socket.getsockopt(self.zmq.RCVMORE):
                socket.recv(_NOBLOCK)
        with contextlib.suppress(self.zmq.ZMQError):
            self.socket.send(b"", _NOBLOCK)  # the end of a message to a peer; by itself it goes to nobody

    def held(self, deadline: float, *, to_close: bool = False) -> Any:
        """The lock, which nobody holds for long; a context that gives it back."""
        lock = self._lock
        if self._process != _own_process:
            raise EpisodeStateError(
                f"this {type(self).__name__} is of the process that this one was forked from; make another one here"
            )
        if lock.is_ours():
            raise EpisodeStateError(f"this {type(self).__name__} is called while it works, as by a signal's handler")
        try:
            if self._is_wanted or not lock.acquire(False):
                self._queue(deadline)
            if self.is_closed and not to_close:
                raise self._closed()
        except BaseException:
            if lock.is_ours():
                lock.release()
            raise
        return lock

    def _queue(self, deadline: float) -> None:
        """Wait for the lock. Who has just given it back, as a loop does all the time, does not get it before us."""
        until = max(deadline, time.monotonic()) + 2 * _SLICE_S
        turn = self._turn
        try:
            if turn.acquire(timeout=_left(until)):
                self._is_wanted = True
                if self._lock.acquire(timeout=_left(until)):
                    return
        finally:
            if turn.is_ours():
                self._is_wanted = False
                turn.release()
        raise TransportTimeout(f"other threads use this {type(self).__name__} all the time")

    def _closed(self) -> EpisodeStateError:
        return EpisodeStateError(f"this {type(self).__name__} is closed; make another one")

    def mend(self) -> None:
        """Make whole what a call left that was broken off anywhere: a message that was sent or received in part."""
        raise NotImplementedError

    def close_socket(self) -> None:
        """The socket and its monitor, not the context."""
        if self._monitor is not None:
            self.socket.disable_monitor()
            self._monitor.close(0)
            self._monitor = None
        if self.socket is not None:
            self.socket.close()

    @property
    def is_over(self) -> bool:
        """Whether there is nothing to close: it is closed, or belongs to the process that this one was forked from."""
        return self._is_released or self._process != _own_process

    def release(self) -> None:
        """Close everything; what is still queued is dropped. Called again, it goes on where it was interrupted."""
        self.is_closed = True
        self.close_socket()
        self.context.term()
        self._is_released = True


class _LockedSection:
    """What is done while the lock is held. One that breaks off, as at Ctrl-C, is mended where the next one begins."""

    __slots__ = ("_endpoint",)

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def __enter__(self) -> None:
        if self._endpoint.was_interrupted:
            self._endpoint.mend()
        self._endpoint.was_interrupted = True

    def __exit__(self, kind: type[BaseException] | None, *more: object) -> None:
        self._endpoint.was_interrupted = kind is not None and not issubclass(kind, EpisodeError)


_RLock: Any = type(threading.RLock())


class _Lock(_RLock):
    """A lock that a `with` statement gives back, and does not take: `held` has taken it.

    Both ends of the statement are functions of C. Python ones begin with a look at signals, and Ctrl-C would leave the
    lock taken for ever.
    """

    __enter__ = bool

    def is_ours(self) -> bool:
        """Whether this thread has taken it."""
        return self._is_owned()


def _left(deadline: float) -> float:
    """Seconds until then, as a lock takes them."""
    return min(max(deadline - time.monotonic(), 0.0), threading.TIMEOUT_MAX)


def deadline_of(timeout: float | None) -> float:
    """When to give up, in `time.monotonic()`; never for None. `InvalidArgument` for what is no number of seconds."""
    if timeout is None:
        return math.inf
    if type(timeout) not in _PYTHONS or not -_ALL_TIME < timeout < _ALL_TIME:
        timeout = checked_number("timeout", timeout)
    return time.monotonic() + timeout


def checked_address(address: Any) -> str:
    """The address; `WrongType` for what is none."""
    if not isinstance(address, str):
        raise WrongType(f"address={address!r}: give a text such as 'tcp://127.0.0.1:5555'")
    return address

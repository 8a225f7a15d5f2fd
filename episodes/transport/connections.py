"""Limit on the bytes that ZeroMQ buffers for each TCP connection of a receiver. Connections that exceed it are closed.

ZeroMQ reads what arrives before anyone calls `recv`. Its limits count complete messages and bound single parts, so a
peer could fill the memory with the parts of a message that never ends. The kernel counts the bytes that a TCP
connection has received, and the receiver counts those that it has taken or refused. The difference is what it holds:

    received by the kernel ──► ZeroMQ's queue ──► queue of the receiver ──► taken or refused
                               └────────────── bytes held ────────────┘
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import zmq

_INTERVAL_S = 0.02  # between two checks of up to a hundred connections
_MOST_CONNECTIONS = 4096  # with an address
PART_BYTES = 64  # what a part takes on the wire in addition to its content, at most
_EVENT = struct.Struct("=HI")  # ZeroMQ's connection events: kind, descriptor
_RECEIVED = struct.Struct("<128xQ")  # Linux: tcpi_bytes_received in the struct tcp_info
_SENT = struct.Struct("<24xI92xQ16xI")  # tcpi_unacked (packets), tcpi_bytes_acked, tcpi_notsent_bytes
_SO_COOKIE = 57  # Linux: a number that no other socket has had


class Connection:
    """TCP connection of a receiver, which counts the bytes received, the bytes processed and the bytes sent so far."""

    __slots__ = ("cookie", "descriptor", "done", "is_closed", "is_counted", "offset", "sent", "waiting")

    def __init__(self, descriptor: int = -1) -> None:
        self.descriptor = descriptor
        self.waiting = 0  # bytes of messages that were received, and not taken
        self.done = 0  # bytes on the wire, estimated, of messages that were taken or refused
        self.sent = 0  # bytes of messages to the other side, without what ZeroMQ adds
        self.offset = 0  # corrects the estimate, which is never more than what was received
        self.is_closed = False
        self.cookie = self.read_cookie() if descriptor >= 0 else b""
        self.is_counted = False  # whether the kernel counts the bytes, as it does for TCP
        if descriptor >= 0 and hasattr(socket, "TCP_INFO"):
            with suppress(OSError):
                self.num_held()
                self.is_counted = True

    def num_held(self) -> int:
        """Return the number of bytes that were received through this connection but not processed yet.
        Raise `OSError` if it is not TCP."""
        info = _socket_option(self.descriptor, socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED.size)
        held = _RECEIVED.unpack(info)[0] - self.done - self.offset
        if held < 0:
            self.offset += held
        return max(held, 0)

    def is_delivered(self) -> bool:
        """Return True if the kernel of the other side has all bytes that were sent, or the connection has ended."""
        if self.is_closed or not self.is_counted:
            return True
        try:
            info = _socket_option(self.descriptor, socket.IPPROTO_TCP, socket.TCP_INFO, _SENT.size)
        except OSError:
            return True
        num_unacked_packets, num_acked, num_unsent = _SENT.unpack(info)
        return not num_unacked_packets and not num_unsent and num_acked >= self.sent

    def read_cookie(self) -> bytes:
        """Return the socket's unique identifier in the Linux kernel, as 8 bytes.
        Unlike a descriptor, it is never reused."""
        return _socket_option(self.descriptor, socket.SOL_SOCKET, _SO_COOKIE, 8)

    def shut_down(self) -> None:
        """Shut the TCP connection down. ZeroMQ then closes it and discards its buffered messages."""
        if self.read_cookie() == self.cookie:
            with _borrowed(self.descriptor) as borrowed:
                borrowed.shutdown(socket.SHUT_RDWR)


def _borrowed(descriptor: int) -> socket.socket:
    """Return a Python socket object for the connection of a file descriptor that ZeroMQ owns.

    It has a copy of the descriptor. An interrupt that drops it does not close ZeroMQ's own, which ends the process.
    """
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, os.dup(descriptor))


def _socket_option(descriptor: int, level: int, name: int, size: int) -> bytes:
    """Return a socket option (as `socket.getsockopt` does, `size` bytes) of the socket with this file descriptor."""
    with _borrowed(descriptor) as borrowed:
        return borrowed.getsockopt(level, name, size)


class ConnectionWatch:
    """Table of the open TCP connections of a receiver, kept up to date by a background thread that
    also enforces the byte limit."""

    def __init__(self) -> None:
        self.num_failed_handshakes = 0
        self.connections: dict[int, Connection] = {}
        """Open connections by descriptor."""
        self.by_address: OrderedDict[bytes, Connection] = OrderedDict()
        """Connections by the address of their senders. Only calls of the receiver use it, and not the thread."""

    def start(self, zmq: ModuleType, monitor: zmq.Socket[bytes], limit: int) -> Callable[[], None]:
        """Start the background thread. Return a function that waits until it has ended.

        Args:
            zmq: the module.
            monitor: a socket of connection events. The thread ends when its monitor is disabled.
            limit: bytes that may be held for a connection.
        """
        thread = threading.Thread(target=_watch, args=(self, zmq, monitor, limit), name="connections", daemon=True)
        thread.start()
        return thread.join

    def connection_of(self, address: bytes, descriptor: int) -> Connection:
        """Return the connection with a file descriptor, and store it as the connection of the sender at `address`.

        The thread may not have seen the connection yet.
        """
        try:
            connection = _opened(self.connections, descriptor)
        except OSError:  # it is closed already
            return Connection()
        if len(self.by_address) >= _MOST_CONNECTIONS:
            closed = [key for key, value in self.by_address.items() if value.is_closed]
            for key in closed or [next(iter(self.by_address))]:
                del self.by_address[key]
        self.by_address[address] = connection
        return connection


def _watch(watch: ConnectionWatch, zmq: ModuleType, monitor: zmq.Socket[bytes], limit: int) -> None:
    """Main function of the background thread: record opened and closed connections, and shut down connections that
    hold more than `limit` bytes."""
    connections, next_check = watch.connections, 0.0
    failures = (
        zmq.EVENT_HANDSHAKE_FAILED_AUTH,
        zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
        zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
    )
    try:
        while True:
            interval_s = _INTERVAL_S * (1 + len(connections) / 100)
            if monitor.poll(int(1000 * interval_s) if connections else None):
                event, _ = monitor.recv_multipart()
                kind, descriptor = _EVENT.unpack(event)
                if kind == zmq.EVENT_MONITOR_STOPPED:
                    return
                if kind in (zmq.EVENT_DISCONNECTED, zmq.EVENT_CLOSED):
                    _remove(connections, descriptor)
                if kind == zmq.EVENT_ACCEPTED:
                    with suppress(OSError):  # it is closed already
                        _opened(connections, descriptor)
                elif kind in failures:
                    watch.num_failed_handshakes += 1
            if time.monotonic() >= next_check:
                next_check = time.monotonic() + interval_s
                for connection in list(connections.values()):
                    try:
                        if connection.is_counted and connection.num_held() > limit:
                            connection.shut_down()
                            _remove(connections, connection.descriptor)
                    except OSError:  # it is closed
                        _remove(connections, connection.descriptor)
    except zmq.ContextTerminated:
        return
    finally:
        monitor.close(0)


def _opened(connections: dict[int, Connection], descriptor: int) -> Connection:
    """Return the open connection with this file descriptor, and store it in the dict `connections` if it is new. Raise
    `OSError` if it is closed.
    """
    connection = connections.get(descriptor)
    if connection is None or connection.read_cookie() != connection.cookie:  # the descriptor was that of another one
        _remove(connections, descriptor)
        connection = connections[descriptor] = Connection(descriptor)
    return connection


def _remove(connections: dict[int, Connection], descriptor: int) -> None:
    """Mark the connection with this file descriptor as closed, and remove it from the dict `connections`."""
    if (connection := connections.pop(descriptor, None)) is not None:
        connection.is_closed = True

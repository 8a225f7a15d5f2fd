"""Limits of the bytes that a receiver buffers per connection, for endless and for queued messages."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from episodes import EpisodePack
from episodes.errors import TransportTimeout
from episodes.transport import EpisodeReceiver, EpisodeSender
from episodes.transport.messages import Head, MessageKind
from episodes.transport.wire import Schemas, encoded
from tests.episodes.transport import traffic
from tests.episodes.transport.traffic import PATIENCE_S, SECONDS, drained, number_of, until

LIMIT = 256 << 20  # large compared with the memory that the process uses for other things

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/statm").exists() or not hasattr(socket, "TCP_INFO"), reason="only Linux counts these bytes"
)


def memory() -> int:
    """Return the bytes of memory that this process uses."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def pack_of(number: int, nbytes: int = 1000, version: int | None = None) -> EpisodePack:
    return traffic.pack_of(number, 1, nbytes // 8, policy_versions=None if version is None else [version])


def connected(receiver: EpisodeReceiver) -> socket.socket:
    """Return a TCP socket after the handshake of ZeroMQ's DEALER (ZMTP 3.0) without encryption."""
    port = int(receiver.address.rsplit(":", 1)[1])
    raw = socket.create_connection(("127.0.0.1", port))
    raw.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16 + 32))
    left = 64
    while left:
        left -= len(raw.recv(left))
    ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
    raw.sendall(bytes([4, len(ready)]) + ready)
    return raw


def part(data: bytes, has_more: bool) -> bytes:
    """Return a part of a message as it is sent."""
    return bytes([2 | has_more]) + struct.pack(">Q", len(data)) + data


def sent_until_closed(raw: socket.socket, content: Callable[[], Iterator[bytes]], limit: int) -> int:
    """Send until the connection is closed, and return the number of bytes."""
    num = 0
    with contextlib.suppress(OSError), raw:
        raw.settimeout(1.0)  # a receiver that does not read any more is as good as one that closes the connection
        for data in content():
            raw.sendall(data)
            num += len(data)
            if num > limit:
                break
    return num


def parts_without_end() -> Iterator[bytes]:
    data = part(bytes(1 << 20), has_more=True)
    while True:
        yield data


def messages_of_many_senders() -> Iterator[bytes]:
    """Yield valid messages of many senders, which stay queued while `sample` needs messages of another sender."""
    message = encoded([pack_of(0, 1 << 20, version=0)], Schemas())
    for number in range(10**6):
        head = Head(MessageKind.DATA, 1, number.to_bytes(8, "little"), 0, message.schema_id, 0.0, 0, 0)
        yield part(head._replace(kind=MessageKind.HELLO).packed(), has_more=False)
        yield part(head._replace(kind=MessageKind.SCHEMA).packed() + message.schema, has_more=False)
        parts = message.parts(head._replace(num_parts=1 + len(message.large)).packed())
        for i, data in enumerate(parts):
            yield part(bytes(data), has_more=i + 1 < len(parts))


@pytest.mark.parametrize("calls", ["recv", "sample", "nothing"])
@pytest.mark.parametrize("content", [parts_without_end, messages_of_many_senders])
def test_bytes_held_for_one_connection_are_limited(calls: str, content: Any) -> None:
    with EpisodeReceiver(max_message_bytes=LIMIT) as receiver, EpisodeSender(receiver.address) as good:
        receiver.publish(np.zeros(1), 0)
        good.send(pack_of(0, version=0))
        receiver.sample(1, max_age=3, timeout=SECONDS)
        receiver.publish(np.zeros(1), 5)  # so that `sample` needs steps of `good`, and queues those of others
        before = highest = memory()
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(sent_until_closed, connected(receiver), content, 3 * LIMIT)
            deadline = time.monotonic() + PATIENCE_S
            while not sending.done():
                assert time.monotonic() < deadline
                with contextlib.suppress(TransportTimeout):
                    if calls == "recv":
                        receiver.recv(0.01)
                    elif calls == "sample":
                        receiver.sample(1, max_age=3, timeout=0.01)
                    else:
                        time.sleep(0.01)
                highest = max(highest, memory())
        assert highest - before < 1.5 * LIMIT
        good.send(pack_of(1, version=5))
        numbers = []
        while 1 not in numbers:
            assert time.monotonic() < deadline
            numbers.append(number_of(receiver.recv(SECONDS)))
        good.close(timeout=0)


def test_sender_with_a_large_window_is_limited_and_loses_nothing() -> None:
    limit = LIMIT // 3
    with (
        EpisodeReceiver(max_message_bytes=limit) as receiver,
        EpisodeSender(receiver.address) as slow,
        EpisodeSender(receiver.address, window=2**20, max_message_bytes=2**40) as fast,
        ThreadPoolExecutor(1) as pool,
    ):
        receiver.publish(np.zeros(1), 0)
        slow.send(pack_of(0, version=0))
        receiver.sample(1, max_age=1, timeout=SECONDS)
        receiver.publish(np.zeros(1), 1)

        def send() -> None:
            for number in range(200):
                fast.send(pack_of(number, 1 << 20, version=1), None)
            fast.flush(None)

        sending = pool.submit(send)

        def sample() -> None:
            with contextlib.suppress(TransportTimeout):
                receiver.sample(1, max_age=1, timeout=0.05)  # `slow` is behind, so all messages are queued
            assert sum(arrived.nbytes for arrived in receiver._queue) <= limit

        until(lambda: receiver.stats.refused, sample)  # the limit is reached
        sample()
        numbers = [0]  # `sample` has taken this one
        while numbers[-1] < 199:
            numbers.append(number_of(receiver.recv(SECONDS)))
        until(sending.done, lambda: drained(receiver, 0.01))
        sending.result()
        assert numbers == list(range(200))
        assert receiver.stats.refused.keys() == {"more than max_message_bytes unacknowledged"}


def test_sender_within_the_limits_stays_connected() -> None:
    with (
        EpisodeReceiver(max_message_bytes=4 << 20) as receiver,
        EpisodeSender(receiver.address, window=1000, max_message_bytes=4 << 20) as sender,
        ThreadPoolExecutor(1) as pool,
    ):
        sending = pool.submit(lambda: [sender.send(pack_of(i, 100_000), None) for i in range(400)])
        for number in range(400):
            assert number_of(receiver.recv(SECONDS)) == number
        sending.result()
        sender.flush(SECONDS)
        assert sender.stats.connections == 1
        assert receiver.stats.refused == {}

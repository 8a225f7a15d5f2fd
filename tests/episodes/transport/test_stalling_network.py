"""Senders behind a TCP relay that stalls, forwards single bytes, cuts connections and is unreachable for a time.

A lost packet is a stall to a program that uses TCP, so stalls stand in for loss. A relay needs no rights of the system.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Iterator
from types import TracebackType

import numpy as np
import pytest

from episodes.transport import EpisodeReceiver, EpisodeSender
from tests.episodes.transport.traffic import SECONDS, number_of, pack_of, until

Pair = tuple[socket.socket, socket.socket]


class Relay:
    """TCP relay to a port of this machine, with random faults.

    Args:
        cut: probability that a forwarded part of a message is the last one of its connection.
        stall: probability of a stall before a part is forwarded.

    Attributes:
        address: where senders connect.
        is_partitioned: no connection is kept or accepted.
        num_cut: number of connections that the relay closed.
    """

    def __init__(self, to: str, rng: np.random.Generator, *, cut: float = 0.0, stall: float = 0.0) -> None:
        self._to = ("127.0.0.1", int(to.rpartition(":")[2]))
        self._rng, self._cut, self._stall = rng, cut, stall
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.is_partitioned = self._is_closed = False
        self.num_cut = 0
        self._pairs: list[Pair] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Relay:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_closed = True
        self._thread.join()
        for end in (self._listener, *(end for pair in self._pairs for end in pair)):
            end.close()

    def _run(self) -> None:
        while not self._is_closed:
            ends = {end: pair for pair in self._pairs for end in pair}
            for end in select.select([self._listener, *ends], [], [], 0.005)[0]:
                if end is self._listener:
                    self._pairs.append((end.accept()[0], socket.create_connection(self._to)))
                elif ends[end] in self._pairs:
                    self._forward(end, ends[end])
            for pair in self._pairs if self.is_partitioned else ():
                self._close(pair)

    def _forward(self, end: socket.socket, pair: Pair) -> None:
        """Forward a part of what an end has sent to the other end of its connection, or close the connection."""
        if self._rng.random() < self._stall:
            select.select([], [], [], self._rng.uniform(0, 0.03))
        most = int(self._rng.choice([1, 7, 100, 65536], p=[0.05, 0.1, 0.25, 0.6]))
        data = b""
        with contextlib.suppress(OSError):
            data = end.recv(most)
            pair[end is pair[0]].sendall(data)
        if not data or self._rng.random() < self._cut:
            self._close(pair)

    def _close(self, pair: Pair) -> None:
        self._pairs = [other for other in self._pairs if other is not pair]
        self.num_cut += 1
        for end in pair:
            end.close()


@pytest.fixture
def receiver() -> Iterator[EpisodeReceiver]:
    with EpisodeReceiver() as receiver:
        yield receiver


def exchanged(receiver: EpisodeReceiver, senders: list[EpisodeSender], num: int) -> list[list[int]]:
    """Send `num` packs with each sender in a thread of its own, publish weights, and return the numbers
    that arrived."""

    def send(sender: EpisodeSender, first: int) -> None:
        for number in range(first, first + num):
            sender.send(pack_of(number, width=int(1 + number % 5 * 200)), SECONDS)
            sender.latest_weights()
        sender.flush(SECONDS)

    threads = [threading.Thread(target=send, args=(sender, place * 10_000)) for place, sender in enumerate(senders)]
    for thread in threads:
        thread.start()
    came: list[list[int]] = [[] for _ in senders]

    def receive() -> None:
        with contextlib.suppress(TimeoutError):
            number = number_of(receiver.recv(0.01))
            came[number // 10_000].append(number % 10_000)
            receiver.publish({"w": np.full(3, len(came[0]))}, len(came[0]))

    until(lambda: not any(thread.is_alive() for thread in threads), receive)
    for thread in threads:
        thread.join()
    with contextlib.suppress(TimeoutError):
        while True:
            number = number_of(receiver.recv(0.05))
            came[number // 10_000].append(number % 10_000)
    return came


@pytest.mark.parametrize(
    ("seed", "num"), [(0, 60), *(pytest.param(i, 600, marks=pytest.mark.slow) for i in range(1, 6))]
)
def test_stalls_and_cut_connections_lose_and_repeat_nothing(receiver: EpisodeReceiver, seed: int, num: int) -> None:
    rng = np.random.default_rng(seed)
    with Relay(receiver.address, rng, cut=0.02, stall=0.05) as relay:
        with EpisodeSender(relay.address) as first, EpisodeSender(relay.address) as second:
            came = exchanged(receiver, [first, second], num)
        assert relay.num_cut >= 2
    assert came == [list(range(num))] * 2


def test_partition_delays_messages_and_loses_none(receiver: EpisodeReceiver) -> None:
    with Relay(receiver.address, np.random.default_rng(0)) as relay, EpisodeSender(relay.address) as sender:
        sender.send(pack_of(0), SECONDS)
        assert number_of(receiver.recv(SECONDS)) == 0
        for start in (1, 6, 11):
            relay.is_partitioned, before = True, relay.num_cut
            until(lambda before=before: relay.num_cut > before)
            for number in range(start, start + 5):
                sender.send(pack_of(number), 0.05)  # the first one waits so long for a connection
            with pytest.raises(TimeoutError):
                sender.flush(0.05)
            relay.is_partitioned = False
            came: list[int] = []
            until(lambda came=came: len(came) == 5, lambda came=came: take(receiver, sender, came))
            assert came == list(range(start, start + 5))


def take(receiver: EpisodeReceiver, sender: EpisodeSender, came: list[int]) -> None:
    """Receive a message, if there is one, after the sender has looked for its connection."""
    sender.latest_weights(0.01)
    with contextlib.suppress(TimeoutError):
        came.append(number_of(receiver.recv(0.01)))

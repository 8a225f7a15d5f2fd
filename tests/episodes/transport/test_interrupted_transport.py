"""Interrupts at random instructions of senders and receivers: nothing is lost, and nothing arrives twice."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import numpy as np
import pytest

from episodes.errors import TransportTimeout
from episodes.transport import EpisodeReceiver, EpisodeSender
from episodes.transport.sockets import socket_class, zeromq
from tests.episodes.transport.traffic import SECONDS, pack_of, until
from tests.interrupts import Breaking

ROOMS = ("/episodes/transport/", "/episodes/storage/small_episodes.py")
KINDS: dict[str, dict[str, int]] = {
    "packs": {"coalesce": 0},
    "episodes": {"coalesce": 1500},
    "joined packs": {"join": 2000},
    "halved": {"coalesce": 8000, "max_message_bytes": 1500},
}


class Program:
    """Random calls of a sender and its receiver, and the numbers of the episodes that were sent and received.

    Attributes:
        certain: episodes of the calls of `send` that returned.
        uncertain: episodes of the calls of `send` that were interrupted.
        handed: episodes of calls of the receiver that were interrupted when their work was done.
    """

    def __init__(self, kind: str, seed: int, receiver: EpisodeReceiver, sender: EpisodeSender) -> None:
        self.kind, self.rng, self.receiver, self.sender = kind, np.random.default_rng(seed), receiver, sender
        self.num = 0
        self.certain, self.uncertain, self.received, self.handed = set[int](), set[int](), list[int](), set[int]()
        receiver.publish(np.zeros(1), 0)

    def call(self) -> bool:
        """Make one random call, half of them with an interrupt. Return True if it was interrupted."""
        name = self.rng.choice(["send", "recv", "sample", "flush", "weights"], p=[0.5, 0.25, 0.1, 0.1, 0.05])
        place = int(np.exp(self.rng.uniform(0, 6))) if self.rng.random() < 0.5 else -1
        result = list[Any]()
        pack = pack_of(self.num, policy_versions=[0])

        def work() -> None:
            with contextlib.suppress(TransportTimeout):
                if name == "send":
                    self.sender.send(pack if "pack" in self.kind else pack[0], 0)
                    self.certain.add(self.num)
                elif name == "recv":
                    result.append(self.receiver.recv(0))
                elif name == "sample":
                    result.extend(self.receiver.sample(12, max_age=1, timeout=0))
                elif name == "flush":
                    self.sender.flush(0)
                else:
                    self.sender.latest_weights()

        is_interrupted = Breaking(KeyboardInterrupt, place, rooms=ROOMS, where_signals_come=True).run(work)
        if name == "send":
            self.uncertain |= {self.num} if is_interrupted else set()
            self.num += 1
        elif name in ("recv", "sample") and is_interrupted and not result and not self.receiver.is_interrupted:
            returned = self.receiver._taken.in_use.get(threading.get_ident(), [])
            self.handed |= {number_of for message in returned for number_of in numbers_of(message.result)}
        self.received += [number for received in result for number in numbers_of(received)]
        return is_interrupted

    def finish(self) -> None:
        """Receive everything that is left, and compare it with what was sent."""

        def exchange() -> None:
            with contextlib.suppress(TransportTimeout):
                self.sender.flush(0)
            with contextlib.suppress(TransportTimeout):
                self.received += numbers_of(self.receiver.recv(0.01))

        until(
            lambda: not self.sender._unacked and not self.sender._queue and not self.receiver._taken.waiting, exchange
        )
        with contextlib.suppress(TransportTimeout):
            for pack in self.receiver.sample(1, max_age=1, timeout=0.01):
                self.received += numbers_of(pack)
        arrived = set(self.received)
        assert len(arrived) == len(self.received), "an episode arrived twice"
        assert arrived <= self.certain | self.uncertain
        assert self.certain - arrived <= self.handed, "an episode is lost"
        assert self.sender.stats.sent == self.sender.stats.taken
        assert self.receiver.stats.refused.keys() <= {"handshake", "unknown sender"}  # whose hello was interrupted


def numbers_of(pack: Any) -> list[int]:
    return pack.t_started.tolist()


def interrupted(kind: str, seed: int, num: int) -> None:
    """Run a program with `num` interrupts."""
    with EpisodeReceiver() as receiver:
        sender = EpisodeSender(receiver.address, window=1 << 20, max_delay=0.01, **KINDS[kind])
        try:
            program = Program(kind, seed, receiver, sender)
            left = num
            while left:
                left -= program.call()
            program.finish()
        finally:
            sender.close(timeout=0)


@pytest.mark.parametrize("kind", KINDS)
def test_interrupted_calls_neither_lose_nor_double(kind: str) -> None:
    interrupted(kind, seed=0, num=40)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(1, 6))
def test_interrupted_calls_neither_lose_nor_double_often(kind: str, seed: int) -> None:
    interrupted(kind, seed, num=120)


def test_sockets_that_an_interrupt_drops_do_not_block_closing() -> None:
    zmq = zeromq()
    context = zmq.Context()
    context.socket(zmq.DEALER, socket_class())  # warnings are errors here, so that pyzmq's own class would stay open
    ending = threading.Thread(target=context.term, daemon=True)
    ending.start()
    ending.join(SECONDS)
    assert not ending.is_alive()

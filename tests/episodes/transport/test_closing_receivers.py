"""Receivers that close and senders that are killed: what was sent right before arrives, and no other process dies."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from episodes.errors import TransportTimeout
from episodes.transport import EpisodeReceiver, EpisodeSender
from episodes.transport.connections import ConnectionWatch
from tests.episodes.transport.traffic import PATIENCE_S, drained, number_of, pack_of, started

ME, RUNS = "test_closing_receivers", 25


def receive(kind: str, runs: int) -> None:
    """Run a process with one receiver after another. Each closes right after its last message."""
    for run in range(runs):
        with EpisodeReceiver() as receiver:
            print(receiver.address, flush=True)
            if kind == "behind":  # the sender has not confirmed these weights when the next ones are published
                receiver.publish({"w": np.zeros(10)}, 0)
            for _ in range(3):
                receiver.recv(PATIENCE_S)
            if kind != "acknowledged":
                receiver.publish({"w": np.full(500_000 if run % 2 else 10, run + 1)}, run + 1)
        print("closed", flush=True)


@pytest.mark.parametrize("kind", ["acknowledged", "weights", "behind"])
def test_what_a_receiver_sends_right_before_it_closes_arrives(
    processes: list[subprocess.Popen[str]], kind: str
) -> None:
    receivers = started(ME, "receive", kind, RUNS)
    processes.append(receivers)
    assert receivers.stdout is not None
    for run in range(RUNS):
        with EpisodeSender(receivers.stdout.readline().strip()) as sender:
            for number in range(3):
                sender.send(pack_of(number), PATIENCE_S)
            assert receivers.stdout.readline() == "closed\n"
            sender.flush(PATIENCE_S)  # there is no receiver any more
            assert sender.stats.taken == 3
            if kind != "acknowledged":
                weights = sender.latest_weights(PATIENCE_S)  # large ones may be on the way
                if weights is not None and weights.version == 0:
                    weights = sender.latest_weights(PATIENCE_S)
                assert weights is not None
                assert weights.version == run + 1
                assert (weights.values["w"] == run + 1).all()


def send_and_read(address: str, num_messages: int) -> None:
    """Run a process that sends messages, which nobody receives but the first, and reads the weights then."""
    with EpisodeSender(address, window=100_000) as sender:
        sender.send(pack_of(0), PATIENCE_S)
        for number in range(1, num_messages):
            sender.send(pack_of(number, 1000))
        print("sent", flush=True)
        weights = sender.latest_weights(PATIENCE_S)
        print(None if weights is None else weights.version, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)  # the messages are of no use


@pytest.mark.parametrize("size", [10, 200_000])
@pytest.mark.parametrize("num_messages", [2, 500, 3000])
def test_weights_arrive_at_a_stalled_sender_whose_messages_nobody_reads(
    processes: list[subprocess.Popen[str]], size: int, num_messages: int
) -> None:
    receiver = EpisodeReceiver()
    sender = started(ME, "send_and_read", receiver.address, num_messages)
    processes.append(sender)
    assert sender.stdout is not None
    receiver.recv(PATIENCE_S)
    assert sender.stdout.readline() == "sent\n"
    os.kill(sender.pid, signal.SIGSTOP)
    receiver.publish({"w": np.ones(size)}, 1)
    closing = threading.Thread(target=receiver.close)
    closing.start()
    closing.join(0.1)  # all that the system takes is on the way, or the receiver waits
    os.kill(sender.pid, signal.SIGCONT)
    closing.join()
    assert sender.stdout.readline() == "1\n"


@pytest.mark.parametrize("num_sent", [0, 1, 5])
def test_messages_of_a_closed_receiver_go_to_the_next_one_once(num_sent: int) -> None:
    with EpisodeReceiver("tcp://127.0.0.1:*") as first:
        address = first.address
        sender = EpisodeSender(address)
        for number in range(num_sent):
            sender.send(pack_of(number))
        result = [number_of(first.recv(PATIENCE_S)) for _ in range(num_sent)]
    sender.flush(PATIENCE_S)
    for number in range(num_sent, 10):
        sender.send(pack_of(number), timeout=None if number > num_sent else 0.1)
    with EpisodeReceiver(address) as second, contextlib.closing(sender):
        while 9 not in result:
            sender.latest_weights()
            with contextlib.suppress(TransportTimeout):
                result.append(number_of(second.recv(0.01)))
        assert second.stats.lost == second.stats.duplicates == 0
        assert second.stats.refused == {}
    assert result == list(range(10))


def send_and_die(address: str) -> None:
    """Run a process that sends more than the receiver queues, and is killed."""
    with EpisodeSender(address, window=4000, max_message_bytes=1 << 30) as sender:
        for number in range(3000):
            sender.send(pack_of(number, 1000), PATIENCE_S)
        time.sleep(2)  # its io thread fills the queue of the receiver
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_killed_sender_with_a_full_queue_does_not_abort_the_receiver(processes: list[subprocess.Popen[str]]) -> None:
    with EpisodeReceiver() as receiver:
        sender = started(ME, "send_and_die", receiver.address)
        processes.append(sender)
        sender.wait(PATIENCE_S)
        time.sleep(7)  # the learner computes; a heartbeat of ZeroMQ would end this process
        assert [number_of(pack) for pack in drained(receiver)][:10] == list(range(10))


@pytest.mark.parametrize("make", [EpisodeReceiver, lambda: EpisodeSender("tcp://127.0.0.1:9")], ids=["recv", "send"])
def test_sockets_have_no_heartbeats_of_zeromq(make: type[EpisodeReceiver]) -> None:
    end = make()
    assert end.socket.getsockopt(end.zmq.HEARTBEAT_IVL) == 0
    assert end.socket.getsockopt(end.zmq.TCP_KEEPALIVE) == 1
    end._sockets.release()


if __name__ == "__main__":
    _, work, *arguments = sys.argv
    globals()[work](*(int(value) if value.isdigit() else value for value in arguments))


def test_connection_counts_from_its_first_message_on() -> None:
    """The thread that watches connections may hear of one later than the receiver reads a message through it."""
    watch, listener = ConnectionWatch(), socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()) as other:
        accepted, _ = listener.accept()
        with accepted:
            descriptor = accepted.fileno()
            connection = watch.connection_of(b"sender", descriptor)
            assert watch.by_address[b"sender"] is connection is watch.connections[descriptor]
            assert watch.connection_of(b"sender", descriptor) is connection
            assert connection.is_counted == hasattr(socket, "TCP_INFO")
        other.close()
        with socket.create_connection(listener.getsockname()) as again:  # the descriptor is free for another connection
            os.dup2(again.fileno(), descriptor)
            newer = watch.connection_of(b"sender", descriptor)
            os.close(descriptor)
            assert newer is not connection
            assert connection.is_closed
            assert not newer.is_closed
        assert watch.connection_of(b"other", descriptor).descriptor == -1  # closed

"""Forged acknowledgements, many senders of one receiver, and journals with crafted records."""

from __future__ import annotations

import contextlib
import os
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import zmq

from episodes.errors import UnreadableData
from episodes.transport import EpisodeReceiver, EpisodeSender
from episodes.transport import journal as journals
from episodes.transport.journal import Journal, Progress
from episodes.transport.messages import Head, MessageKind, read_head
from episodes.transport.wire import Schemas, encoded
from tests.episodes.transport.traffic import SECONDS, drained, number_of, pack_of, until

# --- forged acknowledgements ---


class FalseReceiver:
    """Raw socket that replies to a sender with whatever a test wants, and counts its messages of data."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.socket, self.num_data = socket, 0
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        self.endpoint = f"tcp://127.0.0.1:{port}"
        self.address = b""

    def poll(self) -> None:
        """Read all messages that have arrived."""
        while self.socket.poll(10):
            self.address, first, *_ = self.socket.recv_multipart()
            head = read_head(first)
            self.num_data += not isinstance(head, str) and head.kind == MessageKind.DATA

    def acknowledge(self, number: int) -> None:
        self.socket.send_multipart([self.address, Head(MessageKind.TAKEN, 1, number=number).packed()])


@pytest.fixture
def false_receiver() -> Iterator[FalseReceiver]:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.linger = 0
        yield FalseReceiver(socket)


@pytest.mark.parametrize("number", [2, 3, 1 << 40, (1 << 64) - 1])
def test_acknowledgement_of_messages_that_were_not_sent_takes_only_sent_ones(
    false_receiver: FalseReceiver, number: int
) -> None:
    sender = EpisodeSender(false_receiver.endpoint, coalesce=0)
    try:
        for i in range(2):
            sender.send(pack_of(i))
        until(lambda: false_receiver.num_data == 2, lambda: (sender.latest_weights(), false_receiver.poll()))
        false_receiver.acknowledge(number)
        until(lambda: sender.stats.taken == 2, sender.latest_weights)
        for i in range(2, 5):
            sender.send(pack_of(i))
        until(lambda: false_receiver.num_data == 5, lambda: (sender.latest_weights(), false_receiver.poll()))
        assert (sender.stats.sent, sender.stats.taken) == (5, 2)
        for repeated in (0, 2, 2, 1):  # an older one takes nothing back
            false_receiver.acknowledge(repeated)
        until(lambda: sender.stats.taken == 3, sender.latest_weights)
        assert sender.stats.taken == 3
        false_receiver.acknowledge(4)
        sender.flush(SECONDS)
        assert (sender.stats.sent, sender.stats.taken, sender._unacked.nbytes) == (5, 5, 0)
    finally:
        sender.close(timeout=0)


@pytest.mark.parametrize("kind", [MessageKind.TAKEN, MessageKind.WHO, MessageKind.REFUSED, MessageKind.WEIGHTS])
def test_receiver_ignores_the_messages_of_a_receiver(receiver: EpisodeReceiver, kind: MessageKind) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket, EpisodeSender(receiver.address) as sender:
        socket.linger = 0
        socket.connect(receiver.address)
        for number in range(5):
            sender.send(pack_of(number))
            socket.send(Head(kind, 1, sender._id, number=1 << 40).packed())
        result = [number_of(receiver.recv(SECONDS)) for _ in range(5)]
        until(lambda: receiver.stats.refused.get("unknown kind") == 5, lambda: drained(receiver, 0.01))
        sender.flush(SECONDS)
    assert result == [*range(5)]
    assert receiver.stats.lost == receiver.stats.duplicates == 0


def test_stranger_confirms_no_weights_of_another_sender(receiver: EpisodeReceiver) -> None:
    """A stranger's confirmation lets the receiver send newer weights earlier, and loses none."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket, EpisodeSender(receiver.address) as sender:
        socket.linger = 0
        socket.connect(receiver.address)
        sender.send(pack_of(0))
        receiver.recv(SECONDS)
        versions = list[int]()
        for version in range(10):
            receiver.publish([], version)
            socket.send(Head(MessageKind.GOT, 1, sender._id, version).packed())
            socket.send(Head(MessageKind.GOT, 1, b"stranger", version).packed())
            drained(receiver, 0.01)
            if (weights := sender.latest_weights()) is not None:
                versions.append(weights.version)

        def exchange() -> None:
            if (weights := sender.latest_weights()) is not None:
                versions.append(weights.version)
            drained(receiver, 0.01)

        until(lambda: 9 in versions, exchange)
    assert versions == sorted(set(versions))


# --- many senders ---


@pytest.mark.parametrize("num", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_senders_at_once_are_received_and_released(receiver: EpisodeReceiver, num: int) -> None:
    process = psutil.Process()
    message = encoded([pack_of(0)], Schemas())
    (body,) = message.parts()
    before = process.num_fds(), threading.active_count()
    with zmq.Context() as context:
        context.set(zmq.MAX_SOCKETS, num + 8)
        with contextlib.ExitStack() as stack:
            for i in range(num):
                socket, sender = stack.enter_context(context.socket(zmq.DEALER)), i.to_bytes(8, "little")
                socket.linger = 0
                socket.connect(receiver.address)
                socket.send(Head(MessageKind.HELLO, 1, sender, 0, 1).packed())
                socket.send(Head(MessageKind.SCHEMA, 1, sender, 0, message.schema_id).packed() + message.schema)
                for number in range(2):
                    socket.send(Head(MessageKind.DATA, 1, sender, number, message.schema_id).packed() + body)
            received = [receiver.recv(SECONDS) for _ in range(2 * num)]
            assert all(pack == pack_of(0) for pack in received)
            assert receiver.stats.senders == num
            assert receiver.stats.refused == {}
            while_connected = process.num_fds()
    until(lambda: process.num_fds() <= before[0] + 4, lambda: drained(receiver, 0.01))
    assert while_connected - before[0] <= 4 * num + 16  # both ends of each connection are in this process
    assert threading.active_count() == before[1]
    assert len(receiver._schemas) == 1


def test_senders_that_come_and_go_hold_nothing(receiver: EpisodeReceiver) -> None:
    process, fds = psutil.Process(), list[int]()
    for number in range(40):
        with EpisodeSender(receiver.address) as sender:
            sender.send(pack_of(number))
            assert number_of(receiver.recv(SECONDS)) == number
            drained(receiver, 0.0)
            until(lambda: sender.stats.taken == 1, lambda: (sender.latest_weights(), drained(receiver, 0.0)))
        if number in (5, 39):
            until(lambda: (len(fds) and process.num_fds() <= fds[0] + 4) or not fds, lambda: drained(receiver, 0.01))
            fds.append(process.num_fds())
    assert fds[1] <= fds[0] + 4


# --- journals with crafted records ---

EMPTY = bytes(journals._RECORD_SIZE)


def record(sender: bytes | int, taken: int, done: int, when: float = 0.0) -> bytes:
    """Return a record with a valid checksum."""
    name = sender if isinstance(sender, bytes) else sender.to_bytes(8, "little")
    content = journals._RECORD.pack(name, taken, done, when)
    return content + journals._SUM.pack(zlib.crc32(content))


def crafted(*slots: tuple[bytes, bytes]) -> bytes:
    content = b"".join(first + second for first, second in slots)
    header = journals._MAGIC.ljust(journals._FIRST, b"\0")
    return (header + content).ljust(journals._SIZE, b"\0")


A = b"sender a"
MOST = journals._MOST_MESSAGES
READ = {
    "most messages": crafted((record(A, MOST, MOST), EMPTY)),
    "most messages in use": crafted(*((record(i + 1, MOST, 0), EMPTY) for i in range(journals._SLOTS))),
    "equal records": crafted((record(A, 1, 1), record(A, 1, 1))),
    **{
        f"full, at {when}": crafted(*((record(i + 1, 3, 3, when), record(i + 1, 4, 4, when)) for i in range(4096)))
        for when in (float("nan"), float("inf"), float("-inf"), -1.0, 1e300, 4e9)
    },
}
REFUSED = {
    "more than most": crafted((record(A, MOST + 1, 0), record(A, MOST + 1, 0))),
    "finished more than taken": crafted((record(A, 1, 2), record(A, 1, 2))),
    "two senders in a slot": crafted((record(A, 1, 1), record(b"sender b", 1, 1))),
    "one sender in two slots": crafted((record(A, 1, 1), EMPTY), (record(A, 1, 1), EMPTY)),
    "longer": crafted() + b"x",
    "shorter": crafted()[:-1],
    "newer": b"REjournal99\n".ljust(journals._SIZE, b"\0"),
}


@pytest.mark.parametrize("name", READ)
def test_journal_with_odd_valid_records_serves_new_senders(name: str, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(READ[name])
    newest = b""
    for turn in range(2):
        with EpisodeReceiver(journal=path) as receiver, EpisodeSender(receiver.address) as sender:
            sender.send(pack_of(turn))
            assert number_of(receiver.recv(SECONDS)) == turn
            drained(receiver, 0.0)
            sender.close(timeout=0)
            newest = sender._id
    assert path.stat().st_size == journals._SIZE
    with contextlib.closing(Journal(path)) as journal:
        assert journal.progress_of(newest) == Progress(1, 1)


@pytest.mark.parametrize("name", READ)
def test_new_senders_do_not_take_slots_from_each_other(name: str, tmp_path: Path) -> None:
    """Whatever the journal holds: times of a clock in the future, or forged ones."""
    path = tmp_path / "journal"
    path.write_bytes(READ[name])
    new = [b"sender%02d" % i for i in range(20)]
    with contextlib.closing(Journal(path)) as journal:
        for sender in new:
            journal.note(sender, 1, 1)
    with contextlib.closing(Journal(path)) as journal:
        assert [journal.progress_of(sender) for sender in new] == [Progress(1, 1)] * len(new)
        journal.note(b"sender x", 1, 1)
        assert journal.progress_of(new[0]) == Progress(1, 1)


@pytest.mark.parametrize("kind", ["pipe", "folder", "device without an end", "empty device"])
def test_journal_at_what_is_no_file_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "device without an end" else "/dev/null")
    with pytest.raises(UnreadableData, match="journal is not a journal of a receiver; give another path"):
        EpisodeReceiver(journal=path)


@pytest.mark.parametrize("name", REFUSED)
def test_journal_with_impossible_records_is_refused_and_stays(name: str, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(REFUSED[name])
    with pytest.raises(UnreadableData, match=str(path)):
        EpisodeReceiver(journal=path)
    assert path.read_bytes() == REFUSED[name]

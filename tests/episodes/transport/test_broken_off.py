"""Interrupted calls, forked processes, several threads, and connections that break."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import zmq

from episodes.errors import EpisodeStateError, TransportTimeout
from episodes.transport import EpisodeReceiver, EpisodeSender, peers
from episodes.transport.messages import SIZE, Head, MessageKind, read_head
from episodes.transport.taken_messages import TakenMessages
from episodes.transport.wire import Schemas, encoded
from tests.episodes.transport.traffic import PATIENCE_S, SECONDS, drained, number_of, pack_of, until
from tests.interrupts import Breaking

# --- interrupts ---


def interrupted_at(place: int, call: Callable[[], object]) -> bool:
    """Interrupt a call at the n-th instruction of the transport at which CPython handles signals. Return True if it
    got there.
    """
    return Breaking(KeyboardInterrupt, place, rooms=("/episodes/transport/",), where_signals_come=True).run(call)


def taken_until(receiver: EpisodeReceiver, sender: EpisodeSender, last: int, weights: Any = ()) -> list[int]:
    """Return the numbers of the packs received up to `last`. Weights that arrive meanwhile go to the list `weights`."""
    result = list[int]()

    def exchange() -> None:
        if (newest := sender.latest_weights()) is not None:  # it answers the receiver, too
            weights.append(newest)
        with contextlib.suppress(TransportTimeout):
            result.append(number_of(receiver.recv(0.01)))

    until(lambda: last in result, exchange)
    return result


@pytest.mark.parametrize("steps", [1, 10_000])
def test_interrupted_recv_loses_only_what_it_returns(
    receiver: EpisodeReceiver, sender: EpisodeSender, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle, settled = TakenMessages.settle, list[int]()

    def settle_and_note(taken: TakenMessages) -> None:
        settled.extend(number_of(message.result) for message in taken._returned or ())
        settle(taken)

    monkeypatch.setattr(TakenMessages, "settle", settle_and_note)
    result, sent, place = list[int](), 0, 1
    while True:
        sender.send(pack_of(sent, steps))
        sent += 1
        if not interrupted_at(place, lambda: result.append(number_of(receiver.recv(SECONDS)))):  # noqa: B023
            break
        place += 3
        sender.send(pack_of(sent, steps))
        sent += 1
        result += taken_until(receiver, sender, sent - 1)
    assert result == sorted(set(result))
    assert set(result) >= set(range(1, sent - 1, 2))
    assert set(settled) >= set(range(sent)) - set(result)  # lost after the call had only to return it
    assert sent > 40
    assert receiver.stats.refused == {}


def test_interrupted_send_repeats_nothing(receiver: EpisodeReceiver, sender: EpisodeSender) -> None:
    result, number, is_going_on = list[int](), 0, True
    while is_going_on:
        is_going_on = interrupted_at(1 + 4 * number, lambda: sender.send(pack_of(2 * number, 10_000), SECONDS))  # noqa: B023
        sender.send(pack_of(2 * number + 1), SECONDS)
        result += taken_until(receiver, sender, 2 * number + 1)
        number += 1
    assert result == sorted(set(result))
    assert set(result) >= set(range(1, 2 * number, 2))
    assert number > 20


@pytest.mark.parametrize(("make", "options"), [(lambda n: pack_of(n)[0], {"coalesce": 500}), (pack_of, {"join": 600})])
def test_interrupted_queued_send_repeats_nothing(
    receiver: EpisodeReceiver, make: Callable[[int], Any], options: dict[str, Any]
) -> None:
    with EpisodeSender(receiver.address, max_delay=SECONDS, **options) as sender, ThreadPoolExecutor(1) as pool:
        result, number, is_going_on = list[int](), 0, True
        while is_going_on or number % 5:
            is_going_on = interrupted_at(1 + 2 * number, lambda: sender.send(make(2 * number), SECONDS))  # noqa: B023
            sender.send(make(2 * number + 1), SECONDS)
            number += 1
            if number % 5 == 0:
                flushed, until = pool.submit(sender.flush, SECONDS), time.monotonic() + PATIENCE_S
                while not flushed.done() or receiver._queue:
                    assert time.monotonic() < until
                    with contextlib.suppress(TransportTimeout):
                        result += receiver.recv(0.01).t_started.tolist()  # type: ignore[union-attr]
                flushed.result()
    assert result == sorted(set(result))
    assert set(result) >= set(range(1, 2 * number, 2))
    assert number > 20


def test_sender_with_a_lost_hello_is_asked_again(
    receiver: EpisodeReceiver, sender: EpisodeSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender.send(pack_of(0))
    result, greet, lost = [number_of(receiver.recv(SECONDS))], receiver._register_sender, list[Head]()
    sender.mend()  # connects again
    monkeypatch.setattr(
        receiver, "_register_sender", lambda *metadata: greet(*metadata) if lost else lost.append(metadata[1])
    )
    for number in range(1, 4):
        sender.send(pack_of(number), SECONDS)
    result += taken_until(receiver, sender, 3)

    def exchange() -> None:
        sender.latest_weights()
        with contextlib.suppress(TransportTimeout):
            result.append(number_of(receiver.recv(0.01)))

    until(lambda: sender.stats.taken == 4, exchange)
    assert lost
    assert result == [0, 1, 2, 3]


def test_interrupted_publish_sends_complete_weights(receiver: EpisodeReceiver, sender: EpisodeSender) -> None:
    number, version, metadata, is_going_on = 0, 0, list[Any](), True
    while is_going_on:
        version += 2
        weights = {"w": np.full(20_000, version)}
        is_going_on = interrupted_at(1 + 2 * version, lambda: receiver.publish(weights, version))  # noqa: B023
        receiver.publish({"w": np.full(20_000, version + 1)}, version + 1)
        until = time.monotonic() + PATIENCE_S
        while not metadata or metadata[-1].version <= version:
            assert time.monotonic() < until
            number += 1
            sender.send(pack_of(number))
            taken_until(receiver, sender, number, metadata)
    assert version > 10
    assert all((weight.values["w"] == weight.version).all() for weight in metadata)
    assert [weight.version for weight in metadata] == sorted(weight.version for weight in metadata)


@pytest.mark.parametrize("make", [EpisodeReceiver, lambda: EpisodeSender("tcp://127.0.0.1:9")], ids=["recv", "send"])
def test_interrupted_close_is_completed_by_a_second_call(make: Callable[[], Any]) -> None:
    place = 1
    while True:
        end = make()
        is_broken_off = interrupted_at(place, lambda: end.close(0) if isinstance(end, EpisodeSender) else end.close())  # noqa: B023
        end.close()
        assert end.is_over
        if not is_broken_off:
            break
        place += 2


def test_call_from_a_signal_handler_raises(sender: EpisodeSender) -> None:
    with sender.lock(), sender.busy(), pytest.raises(EpisodeStateError, match="called while it works"):
        sender.flush()
    sender.flush()


# --- threads and processes ---


def test_calls_in_a_forked_process_raise(
    receiver: EpisodeReceiver, sender: EpisodeSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as forked:
        for end in (receiver, sender):
            forked.setattr(end._sockets, "process", end._sockets.process + 1)
        for call in (lambda: sender.send(pack_of(0)), sender.flush, sender.latest_weights, receiver.recv):
            with pytest.raises(EpisodeStateError, match="forked from; make another one here"):
                call()
        with pytest.raises(EpisodeStateError, match="forked from"):
            next(iter(receiver))
        sender.close()
        receiver.close()
    sender.send(pack_of(1))
    assert number_of(receiver.recv(SECONDS)) == 1


def test_close_ends_calls_of_other_threads(receiver: EpisodeReceiver) -> None:
    sender = EpisodeSender(receiver.address, window=2)

    def send() -> None:
        while True:
            sender.send(pack_of(0), timeout=None)

    with ThreadPoolExecutor(3) as pool:
        sending = [pool.submit(send) for _ in range(3)]
        number_of(receiver.recv(SECONDS))
        sender.close(timeout=0)
        for future in sending:
            with pytest.raises(EpisodeStateError, match="closed"):
                future.result(SECONDS)


def test_slow_sender_is_acknowledged_next_to_a_fast_one(receiver: EpisodeReceiver) -> None:
    with EpisodeSender(receiver.address) as much, EpisodeSender(receiver.address) as little:
        much.send(pack_of(0))
        little.send(pack_of(1))
        for _ in range(9):
            much.send(pack_of(0))
        numbers = [number_of(receiver.recv(SECONDS))]
        until(  # those of `much` come between, and never all of them
            lambda: 1 in numbers,
            lambda: (much.send(pack_of(0)), numbers.append(number_of(receiver.recv(SECONDS)))),
        )
        for _ in range(3):
            much.send(pack_of(0))
        receiver._unacknowledged.since = 0.0  # as when its user takes its time with each pack
        receiver.recv(SECONDS)
        little.flush(SECONDS)
        much.close(timeout=0)


# --- connections ---


class Stranger:
    """Speaks as senders do, one message at a time."""

    def __init__(self, receiver: EpisodeReceiver) -> None:
        self.context = zmq.Context()
        self.socket: Any = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.rcvtimeo = int(1000 * SECONDS)
        self.socket.connect(receiver.address)

    def hello(self, sender: bytes, number: int, connection: int = 0) -> None:
        self.socket.send(Head(MessageKind.HELLO, 1, sender, number, connection).packed())

    def send(self, sender: bytes, number: int) -> None:
        message = encoded([pack_of(number)], Schemas())
        head = Head(MessageKind.DATA, 1, sender, number, message.schema_id)
        self.socket.send(head._replace(kind=MessageKind.SCHEMA).packed() + message.schema)
        self.socket.send_multipart(message.parts(head.packed()))

    def metadata(self) -> Head:
        head = read_head(self.socket.recv()[:SIZE])
        assert isinstance(head, Head)
        return head

    def __enter__(self) -> Stranger:
        return self

    def __exit__(self, *exception: object) -> None:
        self.socket.close()
        self.context.term()


def test_late_hello_of_an_old_connection_is_ignored(
    receiver: EpisodeReceiver,
) -> None:
    with Stranger(receiver) as before, Stranger(receiver) as now:
        before.hello(b"a sender", 0, 1)
        before.send(b"a sender", 0)
        assert number_of(receiver.recv(SECONDS)) == 0
        now.hello(b"a sender", 1, 2)
        until(lambda: now.socket.poll(10), lambda: drained(receiver, 0.01))
        assert now.metadata().kind == MessageKind.TAKEN
        before.hello(b"a sender", 0, 1)
        before.send(b"a sender", 1)
        assert number_of(receiver.recv(SECONDS)) == 1
        while now.metadata().number != 1:
            pass


def test_archived_sender_repeats_nothing(receiver: EpisodeReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_MOST_PEERS", 2)
    with Stranger(receiver) as stranger:
        stranger.hello(b"sender a", 0)
        stranger.send(b"sender a", 0)
        assert number_of(receiver.recv(SECONDS)) == 0
        for newcomer in (b"sender b", b"sender c", b"sender d"):
            stranger.hello(newcomer, 7)
            stranger.send(newcomer, 7)
            assert number_of(receiver.recv(SECONDS)) == 7
        assert receiver.stats.senders <= 3
        stranger.hello(b"sender a", 0)  # it does not know yet that it was taken
        for number in (0, 1):
            stranger.send(b"sender a", number)
        assert number_of(receiver.recv(SECONDS)) == 1
        assert receiver.stats.duplicates == 1

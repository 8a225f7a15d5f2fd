"""`EpisodeSender` and `EpisodeReceiver` in one process: order, delivery, refusals, and nothing left behind."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import zmq
from gymnasium import spaces

from episodes import EpisodePack, MultiAgentEpisode, SingleAgentEpisode
from episodes.errors import (
    EpisodeStateError,
    InvalidArgument,
    NotAdmitted,
    TrackMismatch,
    TransportTimeout,
    UnreadableData,
)
from episodes.facts import VersionRuns
from episodes.transport import EpisodeReceiver, EpisodeSender, make_keys
from episodes.transport.messages import Head, MessageKind
from episodes.transport.wire import Schemas, encoded
from tests.episodes.transport.test_processes import unused_address
from tests.episodes.transport.traffic import SECONDS, drained, number_of, pack_of, received, until


def turns(num: int) -> MultiAgentEpisode:
    """Return an episode of two agents that act in turns, with different observation spaces."""
    grown = MultiAgentEpisode()
    views: dict[str, Any] = {"a": np.zeros(2), "b": np.zeros(3)}
    grown.add_env_reset(observations={"a": views["a"]}, infos={"a": {"first": True}})
    for t in range(num):
        agent_episode, opponent = "ab"[t % 2], "ab"[(t + 1) % 2]
        grown.add_env_step(
            {opponent: views[opponent] + t}, {agent_episode: t}, {agent_episode: float(t)}, {opponent: {"t": t}}
        )
    return grown


def sent_until_refused(sender: EpisodeSender) -> None:
    sender.send(pack_of(2), 0.1)
    deadline = time.monotonic() + 5 * SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(TransportTimeout):  # the receiver has not answered yet
            sender.flush(0.3)


# --- what arrives ---


def test_send_packs_arrive_equal_and_in_order(receiver: EpisodeReceiver, sender: EpisodeSender) -> None:
    sent = [pack_of(i, 1 + 40 * i, infos=[{"n": i}] * (2 + 40 * i)) for i in range(20)]
    sent += [pack_of(20, 5_000, policy_versions=[7])]  # in several parts
    for pack in sent:
        sender.send(pack)
    result = [receiver.recv(SECONDS) for _ in sent]
    assert result == sent
    for pack in result:
        assert isinstance(pack, EpisodePack)
        arrays = [*pack.tracks.values(), pack.lengths, pack.lookbacks, pack.t_started, pack.ids]
        assert not any(array.flags.writeable for array in arrays)
    assert receiver.stats.received == receiver.stats.episodes == 21
    assert receiver.stats.steps == sum(pack.num_steps for pack in sent)
    assert receiver.stats.bytes == sender.stats.bytes
    assert 0 <= (receiver.stats.lag or 0) < SECONDS


def test_send_growing_episodes_and_chunks_arrive_as_packs(receiver: EpisodeReceiver, sender: EpisodeSender) -> None:
    growing = SingleAgentEpisode(observation_space=spaces.Box(0, 9, (1,)))
    growing.add_env_reset(np.zeros(1, np.float32))
    for t in range(4):
        growing.add_env_step(np.full(1, t, np.float32), t, 1.0, {"t": t}, extra_model_outputs={"vf": 0.5})
    sender.send(growing)
    chunk = growing.cut(len_lookback_buffer=2)
    chunk.add_env_step(np.ones(1, np.float32), 1, 1.0, {}, truncated=True, extra_model_outputs={"vf": 0.5})
    sender.send([chunk, chunk])
    first, second = (receiver.recv(SECONDS) for _ in range(2))
    assert first == EpisodePack.from_episodes([growing])
    assert isinstance(second, EpisodePack)
    assert second[1].equals(chunk.to_numpy())
    assert second.t_started.tolist() == [4, 4]


def test_send_multi_agent_episodes_arrive_equal(receiver: EpisodeReceiver, sender: EpisodeSender) -> None:
    sent = [turns(4), turns(7)]
    sender.send(sent)
    sender.send(sent[0])
    both, message = receiver.recv(SECONDS), receiver.recv(SECONDS)
    assert isinstance(both, list)
    assert isinstance(message, list)
    for result, expected in zip([*both, *message], [*sent, sent[0]], strict=True):
        assert result.id_ == expected.id_
        assert result.agent_ids == expected.agent_ids
        for agent_id, agent_episode in expected.agent_episodes.items():
            assert result.agent_episodes[agent_id].equals(agent_episode.to_numpy())


def test_loop_over_a_receiver_ends_at_close(receiver: EpisodeReceiver, sender: EpisodeSender) -> None:
    with ThreadPoolExecutor(1) as pool:
        looping = pool.submit(list, receiver)
        for i in range(5):
            sender.send(pack_of(i))
            receiver.publish(np.zeros(1), i)  # while the other thread waits in `recv`
        sender.flush(SECONDS)
        receiver.close()
        assert looping.result(SECONDS) == [pack_of(i) for i in range(5)]
        with pytest.raises(EpisodeStateError, match="closed"):
            receiver.recv()
        for _ in range(8):
            waiting = EpisodeReceiver()
            looping = pool.submit(list, waiting)
            time.sleep(0.05)  # it is most likely waiting then, and right in both cases
            waiting.close()
            assert looping.result(SECONDS) == []


def test_send_and_recv_from_several_threads(receiver: EpisodeReceiver, sender: EpisodeSender) -> None:
    def send(thread: int) -> None:
        for i in range(30):
            sender.send(pack_of(100 * thread + i), SECONDS)

    def receive() -> list[int]:
        return [number_of(receiver.recv(SECONDS)) for _ in range(30)]

    with ThreadPoolExecutor(6) as pool:
        receiving = [pool.submit(receive) for _ in range(3)]
        sending = [pool.submit(send, thread) for thread in range(3)]
        result = sorted(number for future in receiving for number in future.result(3 * SECONDS))
        for future in sending:
            future.result()
    assert result == [100 * thread + i for thread in range(3) for i in range(30)]


# --- waiting ---


def test_send_with_full_window_blocks_until_recv(receiver: EpisodeReceiver) -> None:
    sender = EpisodeSender(receiver.address, window=4)
    until(lambda: sender.stats.connections, lambda: sender.latest_weights(0.1))
    try:
        for i in range(4):
            sender.send(pack_of(i))
        with pytest.raises(TransportTimeout, match="4 messages are not acknowledged"):
            sender.send(pack_of(4), timeout=0.2)
        assert sender.stats.sent == 4
        assert [number_of(receiver.recv(SECONDS)) for _ in range(4)] == [0, 1, 2, 3]
        with pytest.raises(TransportTimeout, match=r"nothing came within 0\.1 s from 1 senders"):
            receiver.recv(0.1)
        sender.send(pack_of(5), timeout=SECONDS)
        assert receiver.recv(SECONDS) == pack_of(5)
    finally:
        sender.close(timeout=0)


def test_send_without_a_receiver_times_out() -> None:
    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))  # and does not listen
        address = f"tcp://127.0.0.1:{occupied.getsockname()[1]}"
        sender = EpisodeSender(address)
        sender.send(pack_of(0), timeout=0.1)  # kept until somebody is there
        with pytest.raises(TransportTimeout, match="does not answer"):
            sender.flush(timeout=0.2)
        with pytest.raises(TransportTimeout):
            sender.close(timeout=0.1)
    with pytest.raises(EpisodeStateError, match="closed"):
        sender.send(pack_of(0))
    with pytest.raises(InvalidArgument, match="address 'nowhere'"):
        EpisodeSender("nowhere")
    with pytest.raises(InvalidArgument, match="window=0"):
        EpisodeSender(address, window=0)
    with pytest.raises(InvalidArgument, match="address 'nowhere'"):
        EpisodeReceiver("nowhere")


def test_messages_sent_before_the_receiver_exists_arrive() -> None:
    folder = tempfile.TemporaryDirectory(prefix="ours")  # the system allows a hundred letters
    address = f"ipc://{folder.name}/socket"
    with folder, EpisodeSender(address) as sender:
        for i in range(3):
            sender.send(pack_of(i), timeout=0.1)
        with EpisodeReceiver(address) as receiver:
            assert received(receiver, sender, 3) == [pack_of(i) for i in range(3)]


def test_next_receiver_with_the_journal_repeats_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, result = tmp_path / "journal", []
    first = EpisodeReceiver(unused_address(), journal=journal)
    monkeypatch.setattr(first, "_acknowledge", lambda peer: None)  # as when it is killed before
    with pytest.raises(InvalidArgument, match="another receiver"):
        EpisodeReceiver(journal=journal)
    with EpisodeSender(first.address) as sender:
        for i in range(30):
            sender.send(pack_of(i))
        result += [first.recv(SECONDS) for _ in range(7)]
        first.release()
        with EpisodeReceiver(first.address, journal=journal) as second:
            assert second.stats.lost == 1  # the caller had not finished with the seventh
            result += received(second, sender, 23)
            assert second.stats.duplicates >= 7
        assert sender.stats.resent > 0
    assert list(map(number_of, result)) == list(range(30))


# --- weights ---


def test_publish_reaches_present_and_later_senders(receiver: EpisodeReceiver) -> None:
    with EpisodeSender(receiver.address) as early:
        early.send(pack_of(0, policy_versions=[VersionRuns((0, 1), (1,))]))
        receiver.recv(SECONDS)
        assert early.latest_weights() is None
        for version in range(1, 4):
            receiver.publish({"w": np.full(3, version)}, version)
        assert receiver.stats.age == 3
        with EpisodeSender(receiver.address) as late:
            for sender in (early, late):
                versions, deadline = [], time.monotonic() + 5 * SECONDS
                while not versions or versions[-1] < 3:
                    assert time.monotonic() < deadline
                    drained(receiver)
                    result = sender.latest_weights(0.1)
                    versions += [] if result is None else [result.version]
                    assert result is None or result.values["w"].tolist() == [result.version] * 3
                assert versions == sorted(set(versions))
            assert late.latest_weights() is None


# --- strangers ---


def test_pack_unlike_like_is_rejected_and_reported() -> None:
    like = pack_of(0)
    with EpisodeReceiver(like=like) as receiver, EpisodeSender(receiver.address) as sender:
        sender.send(pack_of(0).replace(observations={"x": np.zeros(5)}))
        until(lambda: receiver.stats.refused, lambda: drained(receiver))
        assert receiver.stats.refused == {"schema": 1}
        assert receiver.stats.received == 0
        until(lambda: sender.stats.refused, lambda: sender.latest_weights(0.1))
        with pytest.raises(TrackMismatch, match=r"rejected an earlier message: .* no track 'observations'"):
            sender.send(like)
        sender.send(like)
        assert receiver.recv(SECONDS) == like
        assert sender.stats.refused == 1


def noise(receiver: EpisodeReceiver, num: int, all_came: threading.Event) -> None:
    """Send invalid messages of an unknown sender, until `all_came` is set.

    The connection stays open until then, because the system drops pending data of a connection with unread replies.
    """
    rng, context = np.random.default_rng(0), zmq.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.linger = 0
    stranger.sndtimeo = int(1000 * SECONDS)
    stranger.connect(receiver.address)
    message = encoded([pack_of(0)], Schemas())
    body = bytes(message.parts()[0])
    head = Head(MessageKind.DATA, 1, b"stranger", 0, message.schema_id)
    stranger.send(head._replace(kind=MessageKind.HELLO).packed())
    stranger.send(head._replace(kind=MessageKind.SCHEMA).packed() + message.schema)
    for i in range(num):
        flipped = bytearray(body)
        flipped[int(rng.integers(0, 8))] ^= 255
        kinds: list[list[bytes]] = [
            [rng.bytes(int(rng.integers(0, 200))) for _ in range(int(rng.integers(1, 5)))],
            [head._replace(sender=b"attacker").packed() + rng.bytes(100)],
            [head._replace(kind=MessageKind.SCHEMA, schema=i).packed() + rng.bytes(30)],
            [head._replace(number=i // 6).packed() + bytes(flipped)],
            [head._replace(number=i // 6, num_parts=9).packed() + body],
            [head._replace(kind=77).packed()],
        ]
        stranger.send_multipart(kinds[i % len(kinds)])
    all_came.wait(10 * SECONDS)
    stranger.close()
    context.term()


@pytest.mark.parametrize("num", [1200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_random_messages_are_rejected_and_counted(receiver: EpisodeReceiver, num: int) -> None:
    address = ("127.0.0.1", int(receiver.address.rsplit(":", 1)[1]))
    rng, good, all_came = np.random.default_rng(1), [pack_of(i) for i in range(20)], threading.Event()
    deadline = time.monotonic() + 10 * SECONDS
    with EpisodeSender(receiver.address) as sender, ThreadPoolExecutor(2) as pool:
        noisy = pool.submit(noise, receiver, num, all_came)
        flushed = pool.submit(lambda: ([sender.send(pack, SECONDS) for pack in good], sender.flush(60)))
        try:
            for _ in range(20):
                with socket.create_connection(address) as raw:
                    raw.sendall(rng.bytes(int(rng.integers(1, 500))))
            result = drained(receiver)
            while time.monotonic() < deadline and (sum(receiver.stats.refused.values()) < num or not flushed.done()):
                result += drained(receiver)
        finally:
            all_came.set()
        noisy.result()
    assert result == good
    assert sum(receiver.stats.refused.values()) >= num


# --- keys ---


def test_receiver_admits_only_known_keys(tmp_path: Path) -> None:
    receivers, senders = make_keys(tmp_path / "ours")
    _, strangers = make_keys(tmp_path / "theirs")
    _, unknown = make_keys(tmp_path / "theirs", sender="unknown")
    (unknown / "receiver.key").write_bytes((senders / "receiver.key").read_bytes())  # the right one for another
    assert all(file.stat().st_mode & 0o077 == 0 for file in tmp_path.rglob("*.key_secret"))
    with EpisodeReceiver(keys=receivers) as receiver:
        with EpisodeSender(receiver.address, keys=senders) as sender:
            sender.send(pack_of(1), SECONDS)
            assert receiver.recv(SECONDS) == pack_of(1)
        for keys in (None, strangers, unknown):
            sender = EpisodeSender(receiver.address, keys=keys)
            with pytest.raises(NotAdmitted, match="keys="):
                sent_until_refused(sender)
            sender.close(timeout=0)
        until(lambda: receiver.stats.refused.get("handshake", 0) >= 2, lambda: drained(receiver))
        assert receiver.stats.received == 1
        with EpisodeSender(receiver.address, keys=senders) as sender:
            sender.send(pack_of(3), SECONDS)
            assert receiver.recv(SECONDS) == pack_of(3)


def test_make_keys_twice_raises(tmp_path: Path) -> None:
    receivers, _ = make_keys(tmp_path)
    with pytest.raises(InvalidArgument, match="exists already"):
        make_keys(tmp_path)
    make_keys(tmp_path, sender="second")
    assert sorted(file.name for file in receivers.iterdir()) == [
        "receiver.key",
        "receiver.key_secret",
        "second.key",
        "sender.key",
    ]
    for name in ("a/b", "", "receiver", "a\0b", "..", None):
        with pytest.raises(InvalidArgument, match="give a file name"):
            make_keys(tmp_path, sender=name)  # type: ignore[arg-type]
    with pytest.raises(UnreadableData, match="0 secret keys"):
        EpisodeReceiver(keys=tmp_path)
    with pytest.raises(UnreadableData, match="secret keys"):
        EpisodeSender("tcp://127.0.0.1:5555", keys=tmp_path)


def test_receiver_without_its_guard_admits_no_sender(tmp_path: Path) -> None:
    receivers, senders = make_keys(tmp_path)
    with EpisodeReceiver(keys=receivers) as receiver:
        stop_guard = next(close for close in receiver._sockets.closers if close.__name__ == "stop")
        stop_guard()
        with EpisodeSender(receiver.address, keys=senders) as sender:
            sender.send(pack_of(0), 0.3)
            with pytest.raises(TransportTimeout):
                receiver.recv(0.5)
            with pytest.raises((NotAdmitted, TransportTimeout)):
                sender.close(0.3)
        assert receiver.stats.received == 0


@pytest.mark.parametrize("damage", ["unreadable", "empty", "a directory", "other text"])
def test_receiver_with_a_damaged_key_file_names_it(tmp_path: Path, damage: str) -> None:
    receivers, _ = make_keys(tmp_path)
    file = receivers / "third.key"
    if damage == "a directory":
        file.mkdir()
    else:
        file.write_bytes({"unreadable": b"\xff\xfe", "empty": b"", "other text": b"public-key = 'x'\n"}[damage])
    with pytest.raises(UnreadableData, match=r"third\.key"):
        EpisodeReceiver(keys=receivers)


def test_second_receiver_on_an_ipc_path_raises() -> None:
    with tempfile.TemporaryDirectory(prefix="ours") as folder:
        address = f"ipc://{folder}/socket"
        with EpisodeReceiver(address) as first:
            with pytest.raises(InvalidArgument, match="another receiver uses it"):
                EpisodeReceiver(address)
            with EpisodeSender(address) as sender:
                sender.send(pack_of(0))
                assert first.recv(SECONDS) == pack_of(0)
        with EpisodeReceiver(address) as next_one, EpisodeSender(address) as sender:
            sender.send(pack_of(1))
            assert next_one.recv(SECONDS) == pack_of(1)
        assert list(Path(folder).glob("*.lock")) == []


def test_receiver_listens_on_loopback_by_default(receiver: EpisodeReceiver) -> None:
    port = int(receiver.address.rsplit(":", 1)[1])
    listening = [c.laddr for c in psutil.Process().net_connections() if c.status == "LISTEN" and c.laddr.port == port]
    assert {place.ip for place in listening} == {"127.0.0.1"}

"""`EpisodeSender(join=...)`: small packs that wait for what is on its way arrive as one."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from episodes import EpisodePack, SingleAgentEpisode
from episodes.errors import WrongType
from episodes.transport import EpisodeReceiver, EpisodeSender

SECONDS = 60.0  # the longest that anything may take on a slow machine
LARGE = 1 << 20


def pack_of(number: int, width: int = 3, steps: int = 4, **options: Any) -> EpisodePack:
    return EpisodePack(
        observations=np.full((steps + 1, width), number, np.float32),
        actions=np.arange(steps),
        rewards=np.full(steps, number, np.float32),
        lengths=[steps],
        ids=[f"e{number}"],
        **options,
    )


def all_of(receiver: EpisodeReceiver, sender: EpisodeSender, num_episodes: int) -> list[EpisodePack]:
    """Return the packs of `num_episodes` episodes, which is everything that was sent."""
    result: list[Any] = []
    with ThreadPoolExecutor(1) as pool:
        flushed = pool.submit(sender.flush, SECONDS)
        while sum(map(len, result)) < num_episodes:
            result.append(receiver.recv(SECONDS))
        flushed.result()
    return result


def received_meanwhile(
    receiver: EpisodeReceiver, sender: EpisodeSender, sent: list[EpisodePack], at_least: int
) -> list[EpisodePack]:
    """Return received packs of one episode: `at_least` of them while others are still being sent, then the rest."""
    result: list[Any] = []
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(lambda: [sender.send(pack, SECONDS) for pack in sent])
        while sum(map(len, result)) < at_least:
            result.append(receiver.recv(SECONDS))
        sending.result()
    return result + all_of(receiver, sender, len(sent) - sum(map(len, result)))


def test_join_sends_first_pack_and_joins_later_ones(receiver: EpisodeReceiver) -> None:
    sent = [pack_of(i, infos=[{"n": i}] * 5, policy_versions=[i // 10]) for i in range(20)]
    with EpisodeSender(receiver.address, join=LARGE, max_delay=SECONDS) as sender:
        sender.send(sent[0])
        assert receiver.recv(SECONDS) == sent[0]
        sender.flush(SECONDS)
        sender.send(sent[1])
        for pack in sent[2:]:
            sender.send(pack)
        result = all_of(receiver, sender, 19)
        assert sender.stats.sent == 4
        assert sender.stats.episodes == 20
    assert result == [sent[1], EpisodePack.concat(sent[2:10]), EpisodePack.concat(sent[10:])]
    assert [pack.get_policy_versions().tolist() for pack in result] == [[0] * 4, [0] * 32, [1] * 40]


def test_latest_weights_sends_the_queue(receiver: EpisodeReceiver) -> None:
    with EpisodeSender(receiver.address, join=LARGE, max_delay=SECONDS) as sender, ThreadPoolExecutor(1) as pool:
        for i in range(5):
            sender.send(pack_of(i))
        waiting = pool.submit(sender.latest_weights, SECONDS)
        result: list[Any] = []
        while sum(map(len, result)) < 5:
            result.append(receiver.recv(SECONDS))
        receiver.publish({"w": np.zeros(1)}, 7)
        weights = waiting.result()
    assert weights is not None
    assert weights.version == 7


def test_join_sends_when_enough_bytes_are_queued(receiver: EpisodeReceiver) -> None:
    sent = [pack_of(i) for i in range(40)]
    with EpisodeSender(receiver.address, join=10 * sent[0].nbytes, max_delay=SECONDS) as sender:
        for pack in sent:
            sender.send(pack)
        result = all_of(receiver, sender, 40)
    assert [len(pack) for pack in result] == [1, 10, 10, 10, 9]
    assert EpisodePack.concat(result) == EpisodePack.concat(sent)


def test_packs_that_cannot_be_joined_keep_their_order(receiver: EpisodeReceiver) -> None:
    sent = [
        pack_of(0),
        pack_of(1),
        pack_of(2, steps=200),  # no small one
        pack_of(3),
        pack_of(4, width=5),  # of other tracks
        pack_of(5, width=5),
        pack_of(6, width=5, custom_data=[{"any": "thing"}]),
        pack_of(7, width=5),
        pack_of(8, width=5, agent_ids=["a"]),
        pack_of(9, width=5),
    ]
    with EpisodeSender(receiver.address, join=4096, max_delay=SECONDS) as sender:
        for pack in sent:
            sender.send(pack)
        result = all_of(receiver, sender, 10)
    flat = list(itertools.chain(*result))
    assert all(a.equals(b[0]) for a, b in zip(flat, sent, strict=True))
    assert [len(pack) for pack in result] == [1, 1, 1, 1, 2, 1, 1, 1, 1]


def test_joined_packs_with_infos_stay_below_the_limit(receiver: EpisodeReceiver) -> None:
    large = [{"seen": np.full(8_000, i, np.uint8)} for i in range(5)]  # of each pack; its tracks are far less
    sent = [pack_of(i, infos=large) for i in range(60)]
    with EpisodeSender(receiver.address, join=LARGE, max_message_bytes=LARGE, max_delay=SECONDS) as sender:
        result = received_meanwhile(receiver, sender, sent, 50)
    assert EpisodePack.concat(result) == EpisodePack.concat(sent)
    assert max(map(len, result)) <= 7  # a quarter of the most that a message may have, and the one that fills it


def test_queued_episodes_and_packs_keep_their_order(receiver: EpisodeReceiver) -> None:
    sent: list[Any] = [pack_of(i) for i in range(30)]
    with EpisodeSender(receiver.address, join=LARGE, max_delay=SECONDS) as sender:
        for i, pack in enumerate(sent):
            sender.send(pack[0] if i // 3 % 2 else pack)
        result = all_of(receiver, sender, 30)
    assert [item.id_ for pack in result for item in pack] == [f"e{i}" for i in range(30)]
    assert len(result) < 15


def test_send_growing_episode_sends_its_current_state(receiver: EpisodeReceiver) -> None:
    growing = SingleAgentEpisode(id_="grows")
    growing.add_env_reset(np.zeros(3, np.float32))
    growing.add_env_step(np.ones(3, np.float32), 1, 1.0)
    with EpisodeSender(receiver.address, join=LARGE, max_delay=SECONDS) as sender:
        sender.send(pack_of(0))
        sender.send(pack_of(1))
        sender.send(growing)
        growing.add_env_step(np.ones(3, np.float32), 1, 1.0)
        sender.send(pack_of(2))
        result = all_of(receiver, sender, 4)
    assert [(item.id_, len(item)) for pack in result for item in pack] == [
        ("e0", 4),
        ("e1", 4),
        ("grows", 1),
        ("e2", 4),
    ]


def test_full_window_keeps_the_queue(receiver: EpisodeReceiver) -> None:
    sent = [pack_of(i) for i in range(50)]
    with EpisodeSender(receiver.address, join=4 * sent[0].nbytes, window=2, max_delay=SECONDS) as sender:
        result = received_meanwhile(receiver, sender, sent, 46)
    assert EpisodePack.concat(result) == EpisodePack.concat(sent)


@pytest.mark.parametrize("join", [LARGE, 2000, 0])
def test_received_views_stay_unchanged_later(join: int) -> None:
    held: list[Any] = []
    with EpisodeReceiver() as receiver:
        for first in range(0, 250, 50):
            sent = [pack_of(first + i, steps=30) for i in range(50)]
            with EpisodeSender(receiver.address, join=join, window=64, max_delay=SECONDS) as sender:
                for pack in sent:
                    sender.send(pack, SECONDS)
                held += all_of(receiver, sender, 50)
    joined = EpisodePack.concat(held)
    assert joined == EpisodePack.concat([pack_of(number, steps=30) for number in range(250)])


def test_joined_packs_are_copied_when_they_are_sent() -> None:
    with EpisodeReceiver() as receiver:
        with EpisodeSender(receiver.address, join=LARGE, max_delay=SECONDS) as sender, ThreadPoolExecutor(1) as pool:
            sender.send(pack_of(0))
            arrays = [np.full((5, 3), i, np.float32) for i in range(1, 40)]
            for i, array in enumerate(arrays, 1):
                sender.send(pack_of(i).replace(observations=array))
            flushed = pool.submit(sender.flush, SECONDS)
            result: list[Any] = []
            while sum(map(len, result)) < 40:
                result.append(receiver.recv(SECONDS))
            flushed.result()
            for array in arrays:
                array[:] = -1  # taken: its owner's again
            for i in range(40, 60):
                sender.send(pack_of(i))
            result += all_of(receiver, sender, 20)
        assert sum(map(len, result)) == 60
        assert EpisodePack.concat(result) == EpisodePack.concat([pack_of(i) for i in range(60)])


def test_joined_packs_keep_ids_of_several_types(receiver: EpisodeReceiver) -> None:
    ids = [np.array([1]), np.array(["1"]), np.array([b"1"]), np.array([2**63], np.uint64), np.array([True])]
    sent = [pack_of(i).replace(ids=value) for i, value in enumerate([*ids, *ids])]
    with EpisodeSender(receiver.address, join=LARGE, max_delay=SECONDS) as sender:
        for pack in sent:
            sender.send(pack)
        result = all_of(receiver, sender, len(sent))
    for pack in (*result, EpisodePack.concat(sent)):
        assert all(type(item.id_) in (int, str, bytes, bool) for item in pack)
    assert [item.id_ for pack in result for item in pack] == [1, "1", b"1", 2**63, True] * 2
    assert [item.id_ for item in EpisodePack.concat(sent)] == [1, "1", b"1", 2**63, True] * 2


@pytest.mark.parametrize("invalid", [np.array(["2020-01-01"], "M8[s]"), np.array([1j])], ids=["time", "complex"])
def test_send_pack_with_invalid_ids_raises(receiver: EpisodeReceiver, invalid: Any) -> None:
    with EpisodeSender(receiver.address, join=LARGE, max_delay=SECONDS) as sender:
        sender.send(pack_of(0))
        sender.send(pack_of(1))
        with pytest.raises(WrongType, match="ids"):
            sender.send(pack_of(2).replace(ids=invalid))
        sender.send(pack_of(3))
        assert [item.id_ for pack in all_of(receiver, sender, 3) for item in pack] == ["e0", "e1", "e3"]


@pytest.mark.parametrize("join", [LARGE, 0])
def test_ids_with_any_characters_arrive(receiver: EpisodeReceiver, join: int) -> None:
    ids = [f"é€😀{i}" for i in range(40)] + [f"\ud800{i}" for i in range(40)]  # a lone surrogate, as of a file's name
    sent = [pack_of(i).replace(ids=[id_]) for i, id_ in enumerate(ids)]
    with EpisodeSender(receiver.address, join=join, window=100, max_delay=SECONDS) as sender:
        for pack in (*sent, EpisodePack.concat(sent)):
            sender.send(pack)
        result = all_of(receiver, sender, 160)
    assert [item.id_ for pack in result for item in pack] == ids + ids


def test_queue_larger_than_a_message_is_sent_in_parts(receiver: EpisodeReceiver) -> None:
    ids = ["x" * 20_000 + str(i) for i in range(20)]  # 80 kB each, beside tracks of less than one
    whole = EpisodePack.concat([pack_of(i) for i in range(20)]).replace(ids=ids)
    for of_packs in (True, False):
        with EpisodeSender(receiver.address, join=LARGE, max_message_bytes=LARGE, max_delay=SECONDS) as sender:
            sender.send(pack_of(0))
            for i in range(20):
                sender.send(whole[i : i + 1] if of_packs else whole[i])
            result = EpisodePack.concat(all_of(receiver, sender, 21))
        assert [item.id_ for item in result] == ["e0", *ids]
        assert result[1:] == whole


def test_halved_queue_is_kept_while_the_window_is_full(receiver: EpisodeReceiver) -> None:
    ids = ["e0", *("x" * 60_000 + str(i) for i in range(1, 5))]  # 240 kB each, of which no two go as one
    sent = [pack_of(i).replace(ids=[id_]) for i, id_ in enumerate(ids)]
    options = {"join": LARGE, "max_message_bytes": 300_000, "max_delay": SECONDS}
    with EpisodeSender(receiver.address, window=2, **options) as sender:
        for pack in sent[:4]:
            sender.send(pack, SECONDS)
        sender._queue._max_delay = 0.0  # they have waited long enough, and the first of two parts has room
        sender.send(sent[4], 0)
        result = all_of(receiver, sender, 5)
    assert [item.id_ for pack in result for item in pack] == ids


def test_unsendable_episode_does_not_block_the_queue(receiver: EpisodeReceiver) -> None:
    sender = EpisodeSender(receiver.address, join=LARGE, max_delay=SECONDS)
    sender.send(pack_of(0))
    for i in range(1, 10):
        sender.send(pack_of(i, infos=[{"\ud800": 1}] * 5) if i == 4 else pack_of(i))
    with pytest.raises(WrongType, match="key"):
        sender.flush(SECONDS)
    with sender:
        result = all_of(receiver, sender, 9)
    assert [item.id_ for pack in result for item in pack] == [f"e{i}" for i in range(10) if i != 4]


@pytest.mark.parametrize("timeout", [0.0, SECONDS])
def test_latest_weights_returns_with_a_full_window(receiver: EpisodeReceiver, timeout: float) -> None:
    with EpisodeSender(receiver.address, join=LARGE, window=1, max_delay=0) as sender, ThreadPoolExecutor(1) as pool:
        sender.send(pack_of(0))
        sender.send(pack_of(1))  # waits, and has waited long enough
        if not timeout:
            assert sender.latest_weights(timeout) is None
        waiting = pool.submit(sender.latest_weights, SECONDS)
        result = [receiver.recv(SECONDS)]
        if timeout:
            result.append(receiver.recv(SECONDS))  # which goes while its sender waits for weights
        receiver.publish({"w": np.zeros(1)}, 7)
        weights = waiting.result()
        assert weights is not None
        assert weights.version == 7
        result += all_of(receiver, sender, 2 - len(result))
    assert [item.id_ for pack in result for item in pack] == ["e0", "e1"]

"""Queues of a sender: small packs and episodes are sent together, and everything arrives equal and in order."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from episodes import EpisodePack, SingleAgentEpisode
from episodes.errors import WrongType
from episodes.transport import EpisodeReceiver, EpisodeSender
from tests.episodes.transport.traffic import SECONDS, ids_of, pack_of, received

LARGE = 1 << 20
ANY_TEXT = st.text(st.characters(codec=None), max_size=5)  # also lone surrogates, as of a file's name

SENT: dict[str, Callable[[int], Any]] = {
    "pack": pack_of,
    "episode": lambda n: pack_of(n)[0],
    "two": lambda n: [pack_of(n)[0], pack_of(n, 2)[0]],
    "large": lambda n: pack_of(n, steps=3000),
    "other tracks": lambda n: pack_of(n, width=5),
    "custom data": lambda n: pack_of(n, custom_data=[{"any": "thing"}]),
    "agent": lambda n: pack_of(n, agent_ids=["a"]),
    "version": lambda n: pack_of(n, policy_versions=[n // 3]),
    "infos": lambda n: pack_of(n, infos=[{"n": n, "seen": np.full(200, n, np.uint8)}] * 5),
    "bytes as id": lambda n: pack_of(n, ids=np.array([b"1"])),
    "bool as id": lambda n: pack_of(n, ids=np.array([True])),
    "large number as id": lambda n: pack_of(n, ids=np.array([2**63], np.uint64)),
    "empty": lambda n: pack_of(n)[:0],
}
OPTIONS = st.fixed_dictionaries(
    {"coalesce": st.sampled_from([0, 600, LARGE]), "join": st.sampled_from([0, 4096, LARGE])},
    optional={"window": st.integers(1, 3), "max_message_bytes": st.just(200_000), "max_delay": st.just(0)},
)


@settings(max_examples=40)
@given(st.lists(st.sampled_from(sorted(SENT)), max_size=15), ANY_TEXT, OPTIONS)
def test_everything_sent_arrives_equal_and_in_order(kinds: list[str], text: str, options: dict[str, Any]) -> None:
    sent = [SENT[kind](number) for number, kind in enumerate(kinds)]
    sent += [pack_of(i, ids=[f"{text}{i}"]) for i in range(3)] + [EpisodePack.concat([pack_of(0, ids=[text])] * 40)]
    expected = [episode for item in sent for episode in ([item] if isinstance(item, SingleAgentEpisode) else item)]
    with EpisodeReceiver() as receiver, EpisodeSender(receiver.address, **({"max_delay": SECONDS} | options)) as sender:
        packs = received(receiver, sender, len(expected), lambda: [sender.send(item, SECONDS) for item in sent])
    result = [episode for pack in packs for episode in pack]
    assert all(a.equals(b) and type(a.id_) is type(b.id_) for a, b in zip(result, expected, strict=True))


def test_join_sends_first_pack_and_joins_later_ones(receiver: EpisodeReceiver) -> None:
    sent = [pack_of(i, infos=[{"n": i}] * 5, policy_versions=[i // 10]) for i in range(20)]
    with EpisodeSender(receiver.address, join=LARGE, max_delay=SECONDS) as sender:
        sender.send(sent[0])
        assert receiver.recv(SECONDS) == sent[0]
        sender.flush(SECONDS)
        for pack in sent[1:]:
            sender.send(pack)
        result = received(receiver, sender, 19)
        assert (sender.stats.sent, sender.stats.episodes) == (4, 20)
    assert result == [sent[1], EpisodePack.concat(sent[2:10]), EpisodePack.concat(sent[10:])]
    assert [pack.get_policy_versions().tolist() for pack in result] == [[0] * 4, [0] * 32, [1] * 40]


def test_join_sends_when_enough_bytes_are_queued(receiver: EpisodeReceiver) -> None:
    sent = [pack_of(i) for i in range(40)]
    with EpisodeSender(receiver.address, join=10 * sent[0].nbytes, max_delay=SECONDS) as sender:
        for pack in sent:
            sender.send(pack)
        result = received(receiver, sender, 40)
    assert [len(pack) for pack in result] == [1, 10, 10, 10, 9]


def test_small_episodes_are_sent_together(receiver: EpisodeReceiver) -> None:
    with EpisodeSender(receiver.address, max_delay=SECONDS) as sender:
        for number in range(100):
            sender.send(pack_of(number)[0])
        assert len(received(receiver, sender, 100)) < 40


def test_joined_packs_with_infos_stay_below_the_limit(receiver: EpisodeReceiver) -> None:
    large = [{"seen": np.full(8_000, i, np.uint8)} for i in range(5)]  # of each pack; its tracks are far less
    sent = [pack_of(i, infos=large) for i in range(60)]
    with EpisodeSender(receiver.address, join=LARGE, max_message_bytes=LARGE, max_delay=SECONDS) as sender:
        result = received(receiver, sender, 60, lambda: [sender.send(pack, SECONDS) for pack in sent])
    assert EpisodePack.concat(result) == EpisodePack.concat(sent)
    assert max(map(len, result)) <= 7  # a quarter of the most that a message may have, and the one that fills it


def test_send_growing_episode_sends_its_current_state(receiver: EpisodeReceiver) -> None:
    growing = SingleAgentEpisode(id_="grows")
    growing.add_env_reset(np.zeros(3, np.float32))
    with EpisodeSender(receiver.address, join=LARGE, max_delay=SECONDS) as sender:
        for number in range(3):
            sender.send(pack_of(number))
            growing.add_env_step(np.ones(3, np.float32), 1, 1.0)
            sender.send(growing)
        result = received(receiver, sender, 6)
    lengths = [(episode.id_, len(episode)) for pack in result for episode in pack]
    assert lengths == [("e0", 4), ("grows", 1), ("e1", 4), ("grows", 2), ("e2", 4), ("grows", 3)]


@pytest.mark.parametrize("join", [LARGE, 2000, 0])
def test_received_views_stay_unchanged_later(join: int) -> None:
    held: list[Any] = []
    sent = [pack_of(number, steps=30) for number in range(250)]
    with EpisodeReceiver() as receiver:
        for first in range(0, 250, 50):
            part = sent[first : first + 50]
            with EpisodeSender(receiver.address, join=join, window=64, max_delay=SECONDS) as sender:
                held += received(receiver, sender, 50, lambda: [sender.send(pack, SECONDS) for pack in part])  # noqa: B023
    assert EpisodePack.concat(held) == EpisodePack.concat(sent)


@pytest.mark.parametrize("options", [{"join": LARGE}, {"coalesce": LARGE}])
def test_queued_items_are_copied_when_they_are_sent(receiver: EpisodeReceiver, options: dict[str, int]) -> None:
    arrays = [np.full((5, 3), i, np.float32) for i in range(40)]
    packs = [pack_of(i).replace(observations=array) for i, array in enumerate(arrays)]
    with EpisodeSender(receiver.address, max_delay=SECONDS, **options) as sender:
        for pack, array in zip(packs, arrays, strict=True):
            sender.send(pack if "join" in options else pack[0])
            if "coalesce" in options:
                array[:] = -1  # copied already
        result = received(receiver, sender, 40)
        for array in arrays:
            array[:] = -1  # taken: its owner's again
        sender.send(pack_of(40))
        result += received(receiver, sender, 1)
    assert EpisodePack.concat(result) == EpisodePack.concat([pack_of(i) for i in range(41)])


@pytest.mark.parametrize("invalid", [np.array(["2020-01-01"], "M8[s]"), np.array([1j])], ids=["time", "complex"])
def test_send_pack_with_invalid_ids_raises(receiver: EpisodeReceiver, invalid: Any) -> None:
    with EpisodeSender(receiver.address, join=LARGE, max_delay=SECONDS) as sender:
        sender.send(pack_of(0))
        sender.send(pack_of(1))
        with pytest.raises(WrongType, match="ids"):
            sender.send(pack_of(2).replace(ids=invalid))
        sender.send(pack_of(3))
        assert ids_of(received(receiver, sender, 3)) == ["e0", "e1", "e3"]


@pytest.mark.parametrize("of_packs", [True, False])
def test_queue_larger_than_a_message_is_sent_in_parts(receiver: EpisodeReceiver, of_packs: bool) -> None:
    ids = ["x" * 20_000 + str(i) for i in range(20)]  # 80 kB each, beside tracks of less than one
    whole = EpisodePack.concat([pack_of(i) for i in range(20)]).replace(ids=ids)
    with EpisodeSender(receiver.address, join=LARGE, max_message_bytes=LARGE, max_delay=SECONDS) as sender:
        sender.send(pack_of(0))
        for i in range(20):
            sender.send(whole[i : i + 1] if of_packs else whole[i])
        result = EpisodePack.concat(received(receiver, sender, 21))
    assert result[1:] == whole


def test_halved_queue_is_kept_while_the_window_is_full(receiver: EpisodeReceiver) -> None:
    ids = ["e0", *("x" * 60_000 + str(i) for i in range(1, 5))]  # 240 kB each, of which no two go as one
    sent = [pack_of(i, ids=[id_]) for i, id_ in enumerate(ids)]
    with EpisodeSender(receiver.address, window=2, join=LARGE, max_message_bytes=300_000, max_delay=SECONDS) as sender:
        for pack in sent[:4]:
            sender.send(pack, SECONDS)
        sender._queue._max_delay = 0.0  # they have waited long enough, and the first of two parts has room
        sender.send(sent[4], 0)
        assert ids_of(received(receiver, sender, 5)) == ids


def test_unsendable_episode_does_not_block_the_queue(receiver: EpisodeReceiver) -> None:
    sender = EpisodeSender(receiver.address, join=LARGE, max_delay=SECONDS)
    for i in range(10):
        sender.send(pack_of(i, infos=[{"\ud800": 1}] * 5) if i == 4 else pack_of(i))
    with pytest.raises(WrongType, match="key"):
        sender.flush(SECONDS)
    with sender:
        assert ids_of(received(receiver, sender, 9)) == [f"e{i}" for i in range(10) if i != 4]


@pytest.mark.parametrize("window", [1, 32])
@pytest.mark.parametrize("timeout", [0.0, SECONDS])
def test_latest_weights_sends_the_queue(receiver: EpisodeReceiver, timeout: float, window: int) -> None:
    with (
        EpisodeSender(receiver.address, join=LARGE, window=window, max_delay=0) as sender,
        ThreadPoolExecutor(1) as pool,
    ):
        sender.send(pack_of(0))
        sender.send(pack_of(1))  # is queued, and has waited long enough
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
        result += received(receiver, sender, 2 - len(result))
    assert ids_of(result) == ["e0", "e1"]

"""Senders, receivers and groups of runners told what they cannot work with: each refuses it, by its name, at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from episode_runners import RayRunnerGroup
from episodes import EpisodePack
from episodes.errors import EpisodeError, InvalidArgument, TransportTimeout
from episodes.transport import EpisodeReceiver, EpisodeSender

ADDRESS = "tcp://127.0.0.1:9"
WRONG: dict[str, Any] = {
    "NaN": math.nan,
    "text": "x",
    "a list": [1],
    "an object": object,
    "a flag": True,
    "an array": np.zeros(2),
    "more than a float": 10**400,
}
COUNTS = {"None": None, "-1": -1, "1.5": 1.5, "text": "x", "a flag": True, "NaN": math.nan}


@pytest.mark.parametrize("timeout", WRONG.values(), ids=WRONG.keys())
@pytest.mark.parametrize(
    "call",
    [
        lambda receiver, sender, timeout: receiver.recv(timeout),
        lambda receiver, sender, timeout: receiver.sample(1, max_age=1, timeout=timeout),
        lambda receiver, sender, timeout: sender.send([], timeout),
        lambda receiver, sender, timeout: sender.flush(timeout),
        lambda receiver, sender, timeout: sender.latest_weights(timeout),
    ],
    ids=["recv", "sample", "send", "flush", "latest_weights"],
)
def test_a_timeout_is_a_number_of_seconds_or_none(
    receiver: EpisodeReceiver, sender: EpisodeSender, call: Callable[..., Any], timeout: Any
) -> None:
    with pytest.raises(InvalidArgument, match="timeout="):
        call(receiver, sender, timeout)


@pytest.mark.parametrize("timeout", WRONG.values(), ids=WRONG.keys())
def test_a_sender_that_is_closed_with_a_wrong_timeout_says_so_and_is_closed(
    receiver: EpisodeReceiver, timeout: Any
) -> None:
    sender = EpisodeSender(receiver.address)
    with pytest.raises(InvalidArgument, match="timeout="):
        sender.close(timeout)
    sender.close()
    assert sender.is_over


@pytest.mark.parametrize("timeout", [-1, 0, 0.0, -math.inf, np.float32(0), np.int64(-3), Fraction(0), Decimal(0)])
def test_who_has_no_time_left_gets_what_is_there(
    receiver: EpisodeReceiver, sender: EpisodeSender, timeout: Any
) -> None:
    with pytest.raises(TransportTimeout, match="nothing came"):
        receiver.recv(timeout)
    assert sender.latest_weights(timeout) is None
    sender.flush(timeout)


@pytest.mark.parametrize("timeout", [None, math.inf, 1e300, np.float64(60), Fraction(60), 60])
def test_who_has_time_waits_for_what_comes(receiver: EpisodeReceiver, sender: EpisodeSender, timeout: Any) -> None:
    pack = EpisodePack(observations=np.zeros(3), actions=np.zeros(2), rewards=np.ones(2), lengths=[2])
    sender.send(pack, timeout)
    assert receiver.recv(timeout) == pack
    sender.flush(timeout)


@pytest.mark.parametrize("value", COUNTS.values(), ids=COUNTS.keys())
@pytest.mark.parametrize("name", ["window", "coalesce", "join", "max_message_bytes"])
def test_counts_of_a_sender_are_counts(name: str, value: Any) -> None:
    make: Any = EpisodeSender
    with pytest.raises(InvalidArgument, match=f"{name}="):
        make(ADDRESS, **{name: value})


@pytest.mark.parametrize("value", [None, -1, "x", True, math.nan], ids=["None", "-1", "text", "a flag", "NaN"])
def test_seconds_that_a_sender_waits_are_seconds(value: Any) -> None:
    with pytest.raises(InvalidArgument, match="max_delay="):
        EpisodeSender(ADDRESS, max_delay=value)


@pytest.mark.parametrize("value", COUNTS.values(), ids=COUNTS.keys())
@pytest.mark.parametrize("name", ["max_message_bytes", "most_waiting"])
def test_counts_of_a_receiver_are_counts(name: str, value: Any) -> None:
    make: Any = EpisodeReceiver
    with pytest.raises(InvalidArgument, match=f"{name}="):
        make(**{name: value})


@pytest.mark.parametrize("value", [5, 1.5, ["a"], b"x"], ids=str)
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (EpisodeReceiver, "address"),
        (EpisodeReceiver, "keys"),
        (EpisodeReceiver, "journal"),
        (EpisodeReceiver, "like"),
        (EpisodeSender, "address"),
        (lambda **given: EpisodeSender(ADDRESS, **given), "keys"),
    ],
    ids=["receiver address", "receiver keys", "journal", "like", "sender address", "sender keys"],
)
def test_addresses_and_places_are_texts_and_paths(make: Callable[..., Any], name: str, value: Any) -> None:
    with pytest.raises(EpisodeError, match=f"{name}="):
        make(**{name: value})


def test_as_many_as_there_can_be_may_wait() -> None:
    with (
        EpisodeReceiver(max_message_bytes=2**70, most_waiting=2**70) as receiver,
        EpisodeSender(
            receiver.address, window=2**70, max_message_bytes=2**70, coalesce=2**70, max_delay=math.inf
        ) as own,
    ):
        own.send(EpisodePack(observations=np.zeros(3), actions=np.zeros(2), rewards=np.ones(2), lengths=[2]))
        assert len(receiver.recv(60)) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"slow_after_s": math.nan},
        {"slow_after_s": -1},
        {"lost_after_s": None},
        {"lost_after_s": "x"},
        {"merge_every": 0},
        {"num_cpus_each": math.inf},
    ],
    ids=["slow NaN", "slow negative", "lost None", "lost text", "merge never", "CPUs without end"],
)
def test_numbers_of_a_group_of_runners_are_numbers(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(InvalidArgument, match=f"{name}="):
        RayRunnerGroup(lambda index, seed: None, 1, **wrong)

"""Wrong arguments of senders, receivers and groups of runners: each is named, and nothing is changed."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from episode_runners import RayRunnerGroup
from episodes.errors import EpisodeError, TransportTimeout
from episodes.transport import EpisodeReceiver, EpisodeSender
from tests.episodes.transport.traffic import pack_of

ADDRESS = "tcp://127.0.0.1:9"
NOT_NUMBERS: list[Any] = [math.nan, "x", [1], object, True, np.zeros(2), 10**400]
NOT_COUNTS: list[Any] = [None, -1, 1.5, "x", True, math.nan]
NOT_PATHS: list[Any] = [5, 1.5, ["a"], b"x"]
CONSTRUCTORS: list[tuple[Callable[..., Any], str, list[Any]]] = [
    *((EpisodeSender, name, NOT_COUNTS) for name in ("window", "coalesce", "join", "max_message_bytes")),
    *((EpisodeReceiver, name, NOT_COUNTS) for name in ("max_message_bytes", "max_queued_messages")),
    *((EpisodeReceiver, name, NOT_PATHS) for name in ("address", "keys", "journal", "like")),
    (EpisodeSender, "max_delay", [None, -1, "x", True, math.nan]),
    (EpisodeSender, "address", NOT_PATHS),
    (EpisodeSender, "keys", NOT_PATHS),
    (RayRunnerGroup, "slow_after_s", [math.nan, -1]),
    (RayRunnerGroup, "lost_after_s", [None, "x"]),
    (RayRunnerGroup, "merge_every", [0]),
    (RayRunnerGroup, "num_cpus_each", [math.inf]),
]
REQUIRED: dict[Any, dict[str, Any]] = {
    EpisodeSender: {"address": ADDRESS},
    EpisodeReceiver: {},
    RayRunnerGroup: {"make_runner": None, "num_runners": 1},
}


@pytest.mark.parametrize(
    ("make", "name", "values"), CONSTRUCTORS, ids=[f"{c[0].__name__}-{c[1]}" for c in CONSTRUCTORS]
)
def test_wrong_constructor_argument_is_named(make: Any, name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(EpisodeError, match=f"{name}="):
            make(**{**REQUIRED[make], name: value})


REJECTED: dict[str, Callable[[EpisodeSender, EpisodeReceiver], object]] = {
    "send a number": lambda sender, receiver: sender.send(7),  # type: ignore[arg-type]
    "send None": lambda sender, receiver: sender.send(None),  # type: ignore[arg-type]
    "send a list of numbers": lambda sender, receiver: sender.send([7]),  # type: ignore[list-item]
    "send objects": lambda sender, receiver: sender.send(pack_of(0, custom_data=[{"x": object()}])),
    "send too much": lambda sender, receiver: sender.send(pack_of(0, custom_data=[{"x": "x" * 10**6}])),
    **{
        f"publish version {value}": lambda sender, receiver, value=value: receiver.publish(np.zeros(2), value)
        for value in (-1, 1.5, None, 1 << 63)
    },
    "publish too much": lambda sender, receiver: receiver.publish(np.zeros(10**6), 9),
    "publish objects": lambda sender, receiver: receiver.publish(np.array([None]), 9),
    "sample no steps": lambda sender, receiver: receiver.sample(0, max_age=1),
    "sample without an age": lambda sender, receiver: receiver.sample(1, max_age=-1),
    **{
        f"{name} for {value!r:.8}": lambda sender, receiver, call=call, value=value: call(sender, receiver, value)
        for name, call in {
            "recv": lambda sender, receiver, timeout: receiver.recv(timeout),
            "sample": lambda sender, receiver, timeout: receiver.sample(1, max_age=1, timeout=timeout),
            "send": lambda sender, receiver, timeout: sender.send([], timeout),
            "flush": lambda sender, receiver, timeout: sender.flush(timeout),
            "weights": lambda sender, receiver, timeout: sender.latest_weights(timeout),
        }.items()
        for value in NOT_NUMBERS
    },
}


def test_every_wrong_call_is_rejected() -> None:
    limits = {"max_message_bytes": 100_000}
    with EpisodeReceiver(**limits) as receiver, EpisodeSender(receiver.address, **limits) as sender:
        for name, call in REJECTED.items():
            with pytest.raises(EpisodeError):
                pytest.fail(f"{name} returned {call(sender, receiver)}")


def state_of(sender: EpisodeSender, receiver: EpisodeReceiver) -> Any:
    """Return everything that decides what later calls do."""
    queue, window, taken = sender._queue, sender._unacked, receiver._taken
    return (
        (sender.stats, window.next, list(window), window.nbytes, bool(queue), queue._now.nbytes),
        (receiver.stats, receiver._published and receiver._published[:2], len(receiver._queue), taken.num_steps),
    )


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from(["pack", "episode", "other pack", "recv", "publish"]), max_size=8),
    st.lists(st.sampled_from(sorted(REJECTED)), min_size=1, max_size=4),
    st.sampled_from([{}, {"join": 10_000}]),
)
def test_rejected_calls_change_nothing(before: list[str], rejected: list[str], options: dict[str, Any]) -> None:
    limits = {"max_message_bytes": 100_000}
    with EpisodeReceiver(**limits) as receiver:
        sender = EpisodeSender(receiver.address, max_delay=60.0, **limits, **options)
        sent, received, version = [], [], 0
        for operation in before:
            if operation == "publish":
                receiver.publish(np.zeros(2), version)
                version += 1
            elif operation != "recv":
                make = {
                    "pack": pack_of,
                    "episode": lambda n: pack_of(n)[0],
                    "other pack": lambda n: pack_of(n, agent_ids=["a"]),
                }
                sender.send(make[operation](len(sent)))
                sent.append(len(sent))
            elif sender.stats.episodes > len(received):
                received += receiver.recv(60).t_started.tolist()  # type: ignore[union-attr]
        for name in rejected:
            with pytest.raises(EpisodeError):  # the first call may read what arrived meanwhile
                REJECTED[name](sender, receiver)
            state = state_of(sender, receiver)
            with pytest.raises(EpisodeError):
                REJECTED[name](sender, receiver)
            assert state_of(sender, receiver)[0][1:] == state[0][1:]
            assert state_of(sender, receiver)[1][1:] == state[1][1:]
        with ThreadPoolExecutor(1) as pool:
            closing = pool.submit(sender.close, 60)
            while len(received) < len(sent) or not closing.done():
                with suppress(TransportTimeout):
                    received += receiver.recv(0.01).t_started.tolist()  # type: ignore[union-attr]
            closing.result()
        assert received == sent


@pytest.mark.parametrize("timeout", NOT_NUMBERS, ids=[f"{value!r:.8}" for value in NOT_NUMBERS])
def test_sender_closed_with_a_wrong_timeout_raises_and_is_closed(receiver: EpisodeReceiver, timeout: Any) -> None:
    sender = EpisodeSender(receiver.address)
    with pytest.raises(EpisodeError, match="timeout="):
        sender.close(timeout)
    assert sender.is_over


@pytest.mark.parametrize("timeout", [-1, 0, 0.0, -math.inf, np.float32(0), np.int64(-3), Fraction(0), Decimal(0)])
def test_calls_without_time_return_what_arrived(receiver: EpisodeReceiver, sender: EpisodeSender, timeout: Any) -> None:
    with pytest.raises(TransportTimeout, match="within"):
        receiver.recv(timeout)
    assert sender.latest_weights(timeout) is None
    sender.flush(timeout)
    sender.send([], timeout)
    assert sender.stats.sent == 0


@pytest.mark.parametrize("timeout", [None, math.inf, 1e300, np.float64(60), Fraction(60), 60])
def test_calls_with_a_timeout_wait(receiver: EpisodeReceiver, sender: EpisodeSender, timeout: Any) -> None:
    pack = pack_of(0)
    sender.send(pack, timeout)
    assert receiver.recv(timeout) == pack
    sender.flush(timeout)


def test_limits_can_be_larger_than_any_memory() -> None:
    with (
        EpisodeReceiver(max_message_bytes=2**70, max_queued_messages=2**70) as receiver,
        EpisodeSender(
            receiver.address, window=2**70, max_message_bytes=2**70, coalesce=2**70, max_delay=math.inf
        ) as sender,
    ):
        sender.send(pack_of(0))
        assert len(receiver.recv(60)) == 1

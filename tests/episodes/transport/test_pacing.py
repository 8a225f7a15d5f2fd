"""Steps that are learned from are young, all of them are learned from, and each carries the version that acted."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from episodes import EpisodePack
from episodes.errors import EpisodeStateError, InvalidArgument, TransportTimeout
from episodes.recorder import VectorRecorder
from episodes.transport import EpisodeReceiver, EpisodeSender
from tests.code_rules import ROOT

PATIENCE_S = 300.0  # of one call: on a busy machine a process may be long in starting
EPISODES, MAX_AGE = 40, 2  # of each worker; in versions


def lengths_of(worker: int, num: int) -> np.ndarray:
    """The lengths of a worker's episodes: from 3 to 300 steps, a short one as likely as one ten times as long."""
    return np.exp(np.random.default_rng([worker, 7]).uniform(np.log(3), np.log(301), num)).astype(int)


def work(address: str, worker: int) -> None:
    """A process that takes new weights in mid-episode, and sends whole episodes; the second one is slow.

    What its policy puts out beside the actions is the weights themselves: the truth of which version acted.
    """
    weights, rows = np.zeros(()), np.zeros((1, 2), np.float32)
    recorder = VectorRecorder(1, autoreset_mode="Disabled")

    def take(timeout: float) -> None:
        nonlocal weights
        found = sender.latest_weights(timeout)
        if found is not None:
            weights, recorder.policy_version = found.values, found.version

    with EpisodeSender(address, window=4) as sender:
        take(PATIENCE_S)
        for length in lengths_of(worker, EPISODES).tolist():
            recorder.reset(rows, reset_mask=np.array([True]))
            for left in reversed(range(length)):
                is_end = np.array([left == 0])
                recorder.step(
                    rows, [0], np.ones(1), is_end, np.zeros(1, bool), extra_model_outputs={"acted": weights[None]}
                )
                time.sleep(0.0002 * (worker - 1))
                take(0.0)
            sender.send(recorder.take(), PATIENCE_S)
        sender.flush(PATIENCE_S)


@pytest.fixture
def workers() -> Iterator[list[subprocess.Popen[str]]]:
    """A list for processes, none of which is left."""
    running: list[subprocess.Popen[str]] = []
    yield running
    for process in running:
        process.kill()
        process.wait()


def test_no_step_is_too_old_none_is_lost_and_each_knows_who_acted(workers: list[subprocess.Popen[str]]) -> None:
    lengths = np.concatenate([lengths_of(worker, EPISODES) for worker in (1, 2)])
    trained: list[int] = []
    left, changed_within = int(lengths.sum()), 0
    with EpisodeReceiver() as receiver:
        receiver.publish(np.float64(0), 0)
        for worker in ("1", "2"):
            command = [sys.executable, "-m", "tests.episodes.transport.test_pacing", receiver.address, worker]
            workers.append(subprocess.Popen(command, cwd=ROOT))
        version = 0
        while left:
            for pack in receiver.sample(min(left, 100), max_age=MAX_AGE, timeout=PATIENCE_S):
                assert isinstance(pack, EpisodePack)
                told = pack.get_policy_versions()
                assert told.tolist() == pack.extra_model_outputs["acted"].tolist()
                assert (version - told <= MAX_AGE).all()
                changed_within += len(set(told.tolist())) > 1
                trained += pack.lengths.tolist()
                left -= pack.num_steps
            version += 1
            receiver.publish(np.float64(version), version)
        for process in workers:
            assert process.wait(PATIENCE_S) == 0
        assert receiver.stats.refused == {}
    assert changed_within
    assert sorted(trained) == sorted(lengths.tolist())
    assert p_of_same_distribution(np.array(trained), lengths_of(3, 2000)) > 0.01


def p_of_same_distribution(a: np.ndarray, b: np.ndarray) -> float:
    """Of the two-sample test of Kolmogorov and Smirnov, by its asymptotic series (Numerical Recipes, 14.3.3)."""
    there = np.concatenate([a, b])
    shares = [np.searchsorted(np.sort(own), there, "right") / len(own) for own in (a, b)]
    n = np.sqrt(len(a) * len(b) / (len(a) + len(b)))
    x, k = (n + 0.12 + 0.11 / n) * np.abs(shares[0] - shares[1]).max(), np.arange(1, 101)
    return float(np.clip(2 * ((-1.0) ** (k - 1) * np.exp(-2 * (k * x) ** 2)).sum(), 0, 1))


def test_the_test_of_distributions_tells_long_episodes_from_short_ones() -> None:
    drawn = lengths_of(3, 2000)
    assert p_of_same_distribution(lengths_of(4, 100), drawn) > 0.01
    short = np.sort(lengths_of(4, 100))[:75]  # as if those that take longest came too late
    assert p_of_same_distribution(short, drawn) < 0.01


# --- who waits for whom ---


def pack_of(version: int | None, steps: int = 10) -> EpisodePack:
    return EpisodePack(
        observations=np.zeros((steps + 1, 2)),
        actions=np.zeros(steps, int),
        rewards=np.zeros(steps),
        lengths=[steps],
        policy_versions=None if version is None else [version],
    )


@pytest.fixture
def receiver() -> Iterator[EpisodeReceiver]:
    with EpisodeReceiver() as receiver:
        receiver.publish(np.zeros(2), 0)
        yield receiver


@pytest.fixture
def senders(receiver: EpisodeReceiver) -> Iterator[list[EpisodeSender]]:
    """A fast one and a slow one, which both have the weights of version 0."""
    both = [EpisodeSender(receiver.address) for _ in range(2)]
    for sender in both:
        sender.send(pack_of(0))
    assert versions(receiver.sample(20, max_age=2, timeout=PATIENCE_S)) == [0, 0]
    yield both
    for sender in both:
        sender.close(timeout=0)


def sampled_in_vain(receiver: EpisodeReceiver, max_age: int, words: str) -> None:
    """Sample until an error says that all that was sent has come, and what else there should be."""
    until = time.monotonic() + PATIENCE_S
    while True:
        with pytest.raises(TransportTimeout) as caught:
            receiver.sample(10, max_age=max_age, timeout=0.1)
        if words in str(caught.value):
            return
        assert time.monotonic() < until, caught.value


def versions(packs: Any) -> list[int]:
    return [int(pack.policy_versions[0, 0]) for pack in packs]


def test_newer_steps_wait_while_a_slow_sender_may_still_send_older_ones(
    receiver: EpisodeReceiver, senders: list[EpisodeSender]
) -> None:
    fast, slow = senders
    for version in (1, 2):
        receiver.publish(np.zeros(2), version)
        fast.send(pack_of(version))
        if version == 1:
            assert versions(receiver.sample(10, max_age=2, timeout=PATIENCE_S)) == [1]
    sampled_in_vain(receiver, 2, "10 of 10 steps came; senders that are behind sent version [0]")
    for _ in range(3):
        fast.send(pack_of(2))
    slow.send(pack_of(0))
    slow.send(pack_of(1))
    assert versions(receiver.sample(10, max_age=2, timeout=PATIENCE_S)) == [2, 0]
    receiver.publish(np.zeros(2), 3)
    slow.send(pack_of(3))
    assert sorted(versions(receiver.sample(50, max_age=2, timeout=PATIENCE_S))) == [1, 2, 2, 2, 3]
    assert receiver.stats.refused == {}


def test_what_was_left_is_taken_in_the_order_of_its_sender(
    receiver: EpisodeReceiver, senders: list[EpisodeSender]
) -> None:
    fast, slow = senders
    with EpisodeSender(receiver.address) as last:
        last.send(pack_of(0))
        receiver.recv(PATIENCE_S)
        receiver.publish(np.zeros(2), 2)
        fast.send(pack_of(2))
        left = [(fast, 2, 11), (fast, 2, 12), (slow, 1, 10), (fast, 2, 13)]
        for num, (sender, version, steps) in enumerate(left, 1):
            sender.send(pack_of(version, steps))
            until = time.monotonic() + PATIENCE_S
            while len(receiver._queue) < num:
                assert time.monotonic() < until
                sampled_in_vain(receiver, 2, "")
        last.send(pack_of(2, 14))
        assert versions(receiver.sample(10, max_age=2, timeout=PATIENCE_S)) == [2]
        receiver.publish(np.zeros(2), 3)
        slow.send(pack_of(3))
        assert versions(receiver.sample(10, max_age=2, timeout=PATIENCE_S)) == [1]  # which had to be taken now
        steps = [int(receiver.recv(PATIENCE_S).lengths[0]) for _ in range(5)]  # type: ignore[union-attr]
        assert sorted(steps) == [10, 11, 12, 13, 14]
        assert [own for own in steps if 11 <= own <= 13] == [11, 12, 13]


def test_whoever_was_sampled_from_may_close_before_the_receiver_is_called_again(
    receiver: EpisodeReceiver, senders: list[EpisodeSender]
) -> None:
    for _ in range(10):
        for sender in senders:
            sender.send(pack_of(0))
    assert len(receiver.sample(200, max_age=2, timeout=PATIENCE_S)) == 20
    for sender in senders:
        sender.close(PATIENCE_S)
        assert sender.stats.taken == 11


def test_what_is_no_pack_keeps_nobody_waiting_for_an_acknowledgement(receiver: EpisodeReceiver) -> None:
    with EpisodeSender(receiver.address) as sender:
        sender.send(pack_of(0))
        receiver.recv(PATIENCE_S)
        for version in range(1, 10):
            sender.send(pack_of(0))
            receiver.publish(np.zeros(2), version)
            until = time.monotonic() + PATIENCE_S
            while sender.latest_weights(0.1) is None:  # it tells the receiver that it has them, after the pack
                assert time.monotonic() < until
                receiver.publish(np.zeros(2), version)
            receiver.recv(PATIENCE_S)
            sender.flush(PATIENCE_S)


def test_a_sender_that_is_gone_is_not_waited_for(receiver: EpisodeReceiver, senders: list[EpisodeSender]) -> None:
    fast, slow = senders
    slow.close()
    for version in (1, 2, 3, 4):
        receiver.publish(np.zeros(2), version)
        fast.send(pack_of(version))
        assert versions(receiver.sample(10, max_age=1, timeout=PATIENCE_S)) == [version]


def test_steps_from_before_a_sender_had_weights_are_refused_when_they_are_too_old(
    receiver: EpisodeReceiver, senders: list[EpisodeSender]
) -> None:
    for version in (1, 2, 3):
        receiver.publish(np.zeros(2), version)
        for sender in senders:
            sender.send(pack_of(version))
        receiver.sample(20, max_age=1, timeout=PATIENCE_S)
    with EpisodeSender(receiver.address) as late:
        late.send(pack_of(0))
        late.send(pack_of(3))
        assert versions(receiver.sample(10, max_age=1, timeout=PATIENCE_S)) == [3]
        assert receiver.stats.refused == {"too old": 1}


def test_what_has_no_age_is_said(receiver: EpisodeReceiver) -> None:
    with EpisodeSender(receiver.address) as sender:
        sender.send(pack_of(None))
        with pytest.raises(EpisodeStateError, match="without a policy version"):
            receiver.sample(10, max_age=1, timeout=PATIENCE_S)
        assert isinstance(receiver.recv(PATIENCE_S), EpisodePack)  # it is still there
        with pytest.raises(InvalidArgument, match="max_age=0"):
            receiver.sample(10, max_age=0)
        with pytest.raises(InvalidArgument, match="num_steps=0"):
            receiver.sample(0, max_age=1)
    with EpisodeReceiver() as other, pytest.raises(EpisodeStateError, match="publish"):
        other.sample(1, max_age=1)


def test_steps_without_a_version_among_others_are_not_taken_for_young_ones(receiver: EpisodeReceiver) -> None:
    with EpisodeSender(receiver.address) as sender:
        sender.send(EpisodePack.concat([pack_of(0), pack_of(None, 0)]))  # of which each step has one
        assert len(receiver.sample(10, max_age=1, timeout=PATIENCE_S)) == 1
        sender.send(EpisodePack.concat([pack_of(0), pack_of(None)]))
        with pytest.raises(EpisodeStateError, match="without a policy version"):
            receiver.sample(10, max_age=1, timeout=PATIENCE_S)
        assert isinstance(receiver.recv(PATIENCE_S), EpisodePack)


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]))

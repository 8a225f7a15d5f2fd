"""Steps that are learned from are young, all of them are learned from, and each carries the version that acted."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from episodes import EpisodePack, VectorRecorder
from episodes.errors import EpisodeStateError, TransportTimeout
from episodes.transport import EpisodeReceiver, EpisodeSender
from tests.episodes.transport import traffic
from tests.episodes.transport.traffic import PATIENCE_S, started, until

EPISODES, MAX_AGE = 40, 2  # of each worker; in versions


def lengths_of(worker: int, num: int) -> np.ndarray:
    """Return the lengths of a worker's episodes, log-uniform from 3 to 300 steps."""
    return np.exp(np.random.default_rng([worker, 7]).uniform(np.log(3), np.log(301), num)).astype(int)


def work(address: str, worker: int) -> None:
    """Run a worker that loads new weights during episodes, and sends whole episodes. The second worker is slow.

    The extra model output "acted" has the weights themselves, which is the true policy version.
    """
    weights, rows = np.zeros(()), np.zeros((1, 2), np.float32)
    recorder = VectorRecorder(1, autoreset_mode="Disabled")

    def take(timeout: float) -> None:
        nonlocal weights
        result = sender.latest_weights(timeout)
        if result is not None:
            weights, recorder.policy_version = result.values, result.version

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


def test_sample_max_age_drops_nothing_and_keeps_versions(processes: list[subprocess.Popen[str]]) -> None:
    lengths = np.concatenate([lengths_of(worker, EPISODES) for worker in (1, 2)])
    trained: list[int] = []
    left, changed_within = int(lengths.sum()), 0
    with EpisodeReceiver() as receiver:
        receiver.publish(np.float64(0), 0)
        processes += [started("test_pacing", receiver.address, worker) for worker in (1, 2)]
        version = 0
        while left:
            for pack in receiver.sample(min(left, 100), max_age=MAX_AGE, timeout=PATIENCE_S):
                assert isinstance(pack, EpisodePack)
                metadata = pack.get_policy_versions()
                assert metadata.tolist() == pack.extra_model_outputs["acted"].tolist()
                assert (version - metadata <= MAX_AGE).all()
                changed_within += len(set(metadata.tolist())) > 1
                trained += pack.lengths.tolist()
                left -= pack.num_steps
            version += 1
            receiver.publish(np.float64(version), version)
        for process in processes:
            assert process.wait(PATIENCE_S) == 0
        assert receiver.stats.refused == {}
    assert changed_within
    assert sorted(trained) == sorted(lengths.tolist())
    assert p_of_same_distribution(np.array(trained), lengths_of(3, 2000)) > 0.01


def p_of_same_distribution(a: np.ndarray, b: np.ndarray) -> float:
    """Return the p-value of the two-sample Kolmogorov-Smirnov test, by its series (Numerical Recipes, 14.3.3)."""
    both = np.concatenate([a, b])
    shares = [np.searchsorted(np.sort(values), both, "right") / len(values) for values in (a, b)]
    n = np.sqrt(len(a) * len(b) / (len(a) + len(b)))
    x, k = (n + 0.12 + 0.11 / n) * np.abs(shares[0] - shares[1]).max(), np.arange(1, 101)
    return float(np.clip(2 * ((-1.0) ** (k - 1) * np.exp(-2 * (k * x) ** 2)).sum(), 0, 1))


def test_same_distribution_rejects_dropped_long_episodes() -> None:
    drawn = lengths_of(3, 2000)
    assert p_of_same_distribution(lengths_of(4, 100), drawn) > 0.01
    short = np.sort(lengths_of(4, 100))[:75]  # as if those that take longest came too late
    assert p_of_same_distribution(short, drawn) < 0.01


# --- who waits for whom ---


def pack_of(version: int | None, steps: int = 10) -> EpisodePack:
    return traffic.pack_of(0, steps, policy_versions=None if version is None else [version])


@pytest.fixture
def receiver() -> Iterator[EpisodeReceiver]:
    with EpisodeReceiver() as receiver:
        receiver.publish(np.zeros(2), 0)
        yield receiver


@pytest.fixture
def senders(receiver: EpisodeReceiver) -> Iterator[list[EpisodeSender]]:
    """Yield a fast and a slow sender, which both have the weights of version 0."""
    both = [EpisodeSender(receiver.address) for _ in range(2)]
    for sender in both:
        sender.send(pack_of(0))
    assert versions(receiver.sample(20, max_age=2, timeout=PATIENCE_S)) == [0, 0]
    yield both
    for sender in both:
        sender.close(timeout=0)


def sampled_in_vain(receiver: EpisodeReceiver, max_age: int) -> str:
    """Return the error of a sample that times out."""
    with pytest.raises(TransportTimeout) as caught:
        receiver.sample(10, max_age=max_age, timeout=0.1)
    return str(caught.value)


def versions(packs: Any) -> list[int]:
    return [int(pack.policy_versions[0, 0]) for pack in packs]


def test_sample_waits_for_slow_senders(receiver: EpisodeReceiver, senders: list[EpisodeSender]) -> None:
    fast, slow = senders
    for version in (1, 2):
        receiver.publish(np.zeros(2), version)
        fast.send(pack_of(version))
        if version == 1:
            assert versions(receiver.sample(10, max_age=2, timeout=PATIENCE_S)) == [1]
    text = "10 of 10 steps came; senders that are behind sent version [0]"
    until(lambda: text in sampled_in_vain(receiver, 2), lambda: None)
    for _ in range(3):
        fast.send(pack_of(2))
    slow.send(pack_of(0))
    slow.send(pack_of(1))
    assert versions(receiver.sample(10, max_age=2, timeout=PATIENCE_S)) == [2, 0]
    receiver.publish(np.zeros(2), 3)
    slow.send(pack_of(3))
    assert sorted(versions(receiver.sample(50, max_age=2, timeout=PATIENCE_S))) == [1, 2, 2, 2, 3]
    assert receiver.stats.refused == {}


def test_messages_left_by_sample_keep_their_order(receiver: EpisodeReceiver, senders: list[EpisodeSender]) -> None:
    fast, slow = senders
    with EpisodeSender(receiver.address) as last:
        last.send(pack_of(0))
        receiver.recv(PATIENCE_S)
        receiver.publish(np.zeros(2), 2)
        fast.send(pack_of(2))
        left = [(fast, 2, 11), (fast, 2, 12), (slow, 1, 10), (fast, 2, 13)]
        for num, (sender, version, steps) in enumerate(left, 1):
            sender.send(pack_of(version, steps))
            until(lambda: len(receiver._queue) == num, lambda: sampled_in_vain(receiver, 2))  # noqa: B023
        last.send(pack_of(2, 14))
        assert versions(receiver.sample(10, max_age=2, timeout=PATIENCE_S)) == [2]
        receiver.publish(np.zeros(2), 3)
        slow.send(pack_of(3))
        assert versions(receiver.sample(10, max_age=2, timeout=PATIENCE_S)) == [1]  # which had to be taken now
        steps = [int(receiver.recv(PATIENCE_S).lengths[0]) for _ in range(5)]  # type: ignore[union-attr]
        assert sorted(steps) == [10, 11, 12, 13, 14]
        assert [values for values in steps if 11 <= values <= 13] == [11, 12, 13]


def test_sender_closes_after_sample_without_another_call(
    receiver: EpisodeReceiver, senders: list[EpisodeSender]
) -> None:
    for _ in range(10):
        for sender in senders:
            sender.send(pack_of(0))
    assert len(receiver.sample(200, max_age=2, timeout=PATIENCE_S)) == 20
    for sender in senders:
        sender.close(PATIENCE_S)
        assert sender.stats.taken == 11


def test_control_messages_do_not_delay_acknowledgements(receiver: EpisodeReceiver) -> None:
    with EpisodeSender(receiver.address) as sender:
        sender.send(pack_of(0))
        receiver.recv(PATIENCE_S)
        for version in range(1, 10):
            sender.send(pack_of(0))
            receiver.publish(np.zeros(2), version)
            # The sender confirms the weights after the pack.
            until(lambda: sender.latest_weights(0.1), lambda: receiver.publish(np.zeros(2), version))  # noqa: B023
            receiver.recv(PATIENCE_S)
            sender.flush(PATIENCE_S)


def test_sample_does_not_wait_for_disconnected_senders(receiver: EpisodeReceiver, senders: list[EpisodeSender]) -> None:
    fast, slow = senders
    slow.close()
    for version in (1, 2, 3, 4):
        receiver.publish(np.zeros(2), version)
        fast.send(pack_of(version))
        assert versions(receiver.sample(10, max_age=1, timeout=PATIENCE_S)) == [version]


def test_sample_rejects_old_steps_of_new_senders(receiver: EpisodeReceiver, senders: list[EpisodeSender]) -> None:
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


@pytest.mark.parametrize("packs", [[pack_of(None)], [pack_of(0), pack_of(None)]])
def test_sample_with_a_step_without_version_raises(receiver: EpisodeReceiver, packs: list[EpisodePack]) -> None:
    with EpisodeSender(receiver.address) as sender:
        sender.send(EpisodePack.concat([pack_of(0), pack_of(None, 0)]))  # of which each step has a version
        assert len(receiver.sample(10, max_age=1, timeout=PATIENCE_S)) == 1
        sender.send(EpisodePack.concat(packs))
        with pytest.raises(EpisodeStateError, match="without a policy version"):
            receiver.sample(10, max_age=1, timeout=PATIENCE_S)
        assert isinstance(receiver.recv(PATIENCE_S), EpisodePack)  # it is still there
    with EpisodeReceiver() as second, pytest.raises(EpisodeStateError, match="nothing was published"):
        second.sample(1, max_age=1)


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]))

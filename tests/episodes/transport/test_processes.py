"""Senders and receivers as processes that are killed: what arrives is whole, in order, and never twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from episodes import EpisodePack
from episodes.transport import EpisodeReceiver, EpisodeSender
from tests.episodes.transport.traffic import PATIENCE_S, ended, started, until

ME = "test_processes"


def episode_of(sender: int, number: int) -> EpisodePack:
    """Return the n-th episode of a sender: random length, nested observations, every 20th with infos."""
    rng = np.random.default_rng([sender, number])
    steps = int(rng.integers(1, 501))
    return EpisodePack(
        observations={"camera": rng.integers(0, 255, (steps + 1, 4), np.uint8), "pair": (rng.random(steps + 1),)},
        actions=rng.integers(0, 4, steps),
        rewards=rng.random(steps),
        lengths=[steps],
        ids=[f"{sender}-{number}"],
        terminated=[True],
        infos=[{"n": i, "deep": {"x": 0.5}} for i in range(steps + 1)] if number % 20 == 0 else None,
    )


def send(address: str, sender: int, num: int) -> None:
    """Run a process that sends `num` episodes."""
    with EpisodeSender(address) as stream:
        for number in range(num):
            stream.send(episode_of(sender, number), PATIENCE_S)
        stream.flush(PATIENCE_S)


def receive(address: str, journal: str, log: str) -> None:
    """Run a process that receives, and logs each message, until it is killed."""
    handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with EpisodeReceiver(address, journal=journal) as stream:
        os.write(handle, f"at {stream.address}\nlost {stream.stats.lost}\n".encode())
        for pack in stream:
            sender, number = map(int, pack[0].id_.split("-"))
            same = pack == episode_of(sender, number)
            os.write(handle, f"{sender} {number} {'equal' if same else 'second'}\n".encode())


def send_large(address: str) -> None:
    """Run a process that kills itself while it sends 50 MB."""
    with EpisodeSender(address) as stream:
        stream.send(episode_of(9, 0), PATIENCE_S)
        stream.flush(PATIENCE_S)
        rows = np.zeros((50_001, 1000), np.uint8)
        large = EpisodePack(
            observations=rows, actions=np.zeros(50_000, int), rewards=np.zeros(50_000), lengths=[50_000], ids=["large"]
        )
        print("sending", flush=True)
        stream.send(large, PATIENCE_S)
        os.kill(os.getpid(), signal.SIGKILL)


def unused_address() -> str:
    """Return any port of a loopback address of this process, so that a second receiver can use the same port."""
    process_id = os.getpid()
    return f"tcp://127.77.{process_id >> 8 & 255}.{process_id & 255}:*"


@pytest.mark.parametrize(("num", "kills"), [(150, 2), pytest.param(10_000, 5, marks=pytest.mark.slow)])
def test_killed_receiver_with_journal_repeats_nothing(
    tmp_path: Path, processes: list[subprocess.Popen[str]], num: int, kills: int
) -> None:
    journal, log = tmp_path / "journal", tmp_path / "log"
    log.touch()
    lines = lambda: log.read_text().splitlines()  # noqa: E731
    receiver = started(ME, "receive", unused_address(), journal, log)
    processes.append(receiver)
    until(lines)
    address = lines()[0].removeprefix("at ")  # which the next ones take too
    senders = [started(ME, "send", address, sender, num) for sender in (1, 2)]
    processes += senders
    for kill in range(1, kills + 1):
        until(lambda kill=kill: len(lines()) > kill * 2 * num // (kills + 1))
        ended(receiver)
        receiver = started(ME, "receive", address, journal, log)
        processes.append(receiver)
    for sender in senders:
        sender.wait(PATIENCE_S)
        assert sender.returncode == 0
    until(lambda: len(arrived(lines())) >= 2 * num - lost(lines()))  # the last one is acknowledged, then noted
    ended(receiver)
    check(lines(), num, kills)


def check(lines: list[str], num: int, kills: int) -> None:
    came = arrived(lines)
    assert all(same == "equal" for _, _, same in came)
    missing = 0
    for sender in ("1", "2"):
        numbers = [int(number) for sender_id, number, _ in came if sender_id == sender]
        assert numbers == sorted(set(numbers))  # in order, and none twice
        missing += num - len(numbers)
    assert missing <= lost(lines) <= kills


def arrived(lines: list[str]) -> list[list[str]]:
    """Return the logged messages of all receivers."""
    return [line.split() for line in lines if line[0].isdigit()]


def lost(lines: list[str]) -> int:
    """Return the total of the logged counts of lost messages."""
    return sum(int(line.split()[1]) for line in lines if line.startswith("lost"))


def test_killed_sender_leaves_no_partial_episode(processes: list[subprocess.Popen[str]]) -> None:
    with EpisodeReceiver() as receiver:
        sender = started(ME, "send_large", receiver.address)
        processes.append(sender)
        assert receiver.recv(PATIENCE_S) == episode_of(9, 0)
        sender.wait(PATIENCE_S)
        assert sender.returncode == -signal.SIGKILL
        with EpisodeSender(receiver.address) as second:
            second.send(episode_of(8, 1))
            result = receiver.recv(PATIENCE_S)
            if result != episode_of(8, 1):  # the large one came whole
                assert isinstance(result, EpisodePack)
                assert len(result.observations) == 50_001
                assert receiver.recv(PATIENCE_S) == episode_of(8, 1)
        assert receiver.stats.refused == {}


if __name__ == "__main__":
    _, work, *arguments = sys.argv
    globals()[work](*(int(value) if value.isdigit() else value for value in arguments))

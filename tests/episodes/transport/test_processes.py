"""Senders and receivers as processes that are killed: what arrives is whole, in order, and never twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from episodes import EpisodePack
from episodes.transport import EpisodeReceiver, EpisodeSender
from tests.code_rules import ROOT

ME = "tests.episodes.transport.test_processes"
PATIENCE_S = 300.0  # of one call: on a busy machine a receiver may be long in starting


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


def started(work: str, *arguments: Any) -> subprocess.Popen[str]:
    """Start a process that runs one of the functions above."""
    command = [sys.executable, "-m", ME, work, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    """Yield a list for processes, which are killed at the end."""
    running: list[subprocess.Popen[str]] = []
    yield running
    for process in running:
        ended(process)


def ended(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


@pytest.mark.parametrize(("num", "kills"), [(150, 2), pytest.param(10_000, 5, marks=pytest.mark.slow)])
def test_killed_receiver_with_journal_repeats_nothing(
    tmp_path: Path, processes: list[subprocess.Popen[str]], num: int, kills: int
) -> None:
    journal, log = tmp_path / "journal", tmp_path / "log"
    log.touch()
    lines = lambda: log.read_text().splitlines()  # noqa: E731
    receiver = started("receive", unused_address(), journal, log)
    processes.append(receiver)
    wait_for(lines)
    address = lines()[0].removeprefix("at ")  # which the next ones take too
    senders = [started("send", address, sender, num) for sender in (1, 2)]
    processes += senders
    for kill in range(1, kills + 1):
        wait_for(lambda kill=kill: len(lines()) > kill * 2 * num // (kills + 1))
        ended(receiver)
        receiver = started("receive", address, journal, log)
        processes.append(receiver)
    for sender in senders:
        sender.wait(PATIENCE_S)
        assert sender.returncode == 0
    wait_for(lambda: len(arrived(lines())) >= 2 * num - lost(lines()))  # the last one is acknowledged, then noted
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


def wait_for(fact: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not fact():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_killed_sender_leaves_no_partial_episode(processes: list[subprocess.Popen[str]]) -> None:
    with EpisodeReceiver() as receiver:
        sender = started("send_large", receiver.address)
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

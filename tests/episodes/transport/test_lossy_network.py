"""Senders and receivers in network namespaces that lose packets and are cut off: each message arrives once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.code_rules import ROOT
from tests.episodes.transport.test_processes import arrived, lost
from tests.episodes.transport.traffic import ended, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"),
        reason="network namespaces need root, and the commands ip and tc (apt-get install iproute2)",
    ),
]
KILLS, NUM = 60, 3000


def run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True)


@pytest.fixture
def names() -> Iterator[tuple[str, str]]:
    """Yield two network namespaces that are connected with each other only: 10.77.0.1 and 10.77.0.2."""
    pair = f"rl-a-{os.getpid()}", f"rl-b-{os.getpid()}"
    try:
        for name in pair:
            run(f"ip netns add {name}")
            run(f"ip -n {name} link set lo up")
        run(f"ip -n {pair[0]} link add veth0 type veth peer name veth0 netns {pair[1]}")
        for number, name in enumerate(pair, 1):
            run(f"ip -n {name} addr add 10.77.0.{number}/24 dev veth0")
            run(f"ip -n {name} link set veth0 up")
        yield pair
    finally:
        for name in pair:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def set_loss(names: tuple[str, str], options: str) -> None:
    """Let both sides lose and delay packets. A kernel without netem loses none."""
    for name in names:
        subprocess.run(
            f"tc -n {name} qdisc replace dev veth0 root netem {options}".split(), check=False, capture_output=True
        )


def started_in(name: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a function of `test_processes` as a process in a namespace."""
    module = [sys.executable, "-m", "tests.episodes.transport.test_processes", *map(str, arguments)]
    return subprocess.Popen(["ip", "netns", "exec", name, *module], stdout=subprocess.PIPE, text=True, cwd=ROOT)


def test_killed_processes_on_a_lossy_network_repeat_nothing(
    tmp_path: Path, names: tuple[str, str], processes: list[subprocess.Popen[str]]
) -> None:
    """Kill receivers with a journal and senders in turns. The senders that are not killed send everything once."""
    rng, address = np.random.default_rng(0), "tcp://10.77.0.1:5777"
    journal, log = tmp_path / "journal", tmp_path / "log"
    log.touch()
    lines = lambda: log.read_text().splitlines()  # noqa: E731
    receiver = started_in(names[0], "receive", address, journal, log)
    lasting = [started_in(names[1], "send", address, sender, NUM) for sender in (1, 2)]
    victim = started_in(names[1], "send", address, 3, 10**6)
    processes += [receiver, victim, *lasting]
    for kill in range(KILLS):
        before = len(arrived(lines()))
        until(lambda before=before: len(arrived(lines())) > before + 20)
        set_loss(names, f"loss {rng.integers(5, 21)}% delay {rng.integers(0, 20)}ms")
        if kill % 6 == 5:  # a partition, in which a process dies
            run(f"ip -n {names[0]} link set veth0 down")
        if kill % 2:
            ended(victim)
            victim = started_in(names[1], "send", address, 3 + kill, 10**6)
            processes.append(victim)
        else:
            ended(receiver)
            receiver = started_in(names[0], "receive", address, journal, log)
            processes.append(receiver)
        if kill % 6 == 5:
            run(f"ip -n {names[0]} link set veth0 up")
    ended(victim)
    set_loss(names, "loss 0%")
    until(lambda: all(sender.poll() is not None for sender in lasting))
    assert [sender.returncode for sender in lasting] == [0, 0]
    ended(receiver)
    came = arrived(lines())
    assert all(same == "equal" for _, _, same in came)
    num_missing = 0
    for sender in {sender for sender, _, _ in came}:
        numbers = [int(number) for sender_id, number, _ in came if sender_id == sender]
        assert numbers == sorted(set(numbers))  # in order, and none twice
        num_missing += NUM - len(numbers) if sender in ("1", "2") else 0
    assert num_missing <= lost(lines()) + 1 <= KILLS  # the last receiver is killed too

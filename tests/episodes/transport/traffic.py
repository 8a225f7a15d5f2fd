"""Packs that tests send, and loops that receive them."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from episodes import EpisodePack
from episodes.errors import TransportTimeout
from episodes.transport import EpisodeReceiver, EpisodeSender
from tests.code_rules import ROOT

SECONDS = 60.0  # the longest that one call may take on a slow machine
PATIENCE_S = 300.0  # of a loop, or of a call that waits for a process to start


def pack_of(number: int, steps: int = 4, width: int = 3, **options: Any) -> EpisodePack:
    """Return a pack of one episode, whose numbers are `number`."""
    return EpisodePack(
        observations=np.full((steps + 1, width), number, np.float32),
        actions=np.arange(steps),
        rewards=np.full(steps, number, np.float32),
        lengths=[steps],
        **{"ids": [f"e{number}"], "t_started": [number], **options},
    )


def number_of(pack: Any) -> int:
    return int(pack.t_started[0])


def ids_of(packs: Any) -> list[Any]:
    return [episode.id_ for pack in packs for episode in pack]


def until(is_so: Callable[[], object], meanwhile: Callable[[], object] = lambda: time.sleep(0.01)) -> None:
    """Call `meanwhile` until `is_so` returns True."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline
        meanwhile()


def drained(receiver: EpisodeReceiver, seconds: float = 0.3) -> list[Any]:
    """Return all packs until none arrives for some time."""
    result = []
    with contextlib.suppress(TransportTimeout):
        while True:
            result.append(receiver.recv(seconds))
    return result


def received(
    receiver: EpisodeReceiver, sender: EpisodeSender, num_episodes: int, sending: Callable[[], Any] = lambda: None
) -> list[Any]:
    """Return the packs of `num_episodes` episodes while another thread calls `sending`, and then flushes the sender."""
    result: list[Any] = []
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(lambda: (sending(), sender.flush(SECONDS)))
        while sum(map(len, result)) < num_episodes:
            result.append(receiver.recv(SECONDS))
        until(sent.done, lambda: result.extend(drained(receiver, 0.01)))
        sent.result()
    assert sum(map(len, result)) == num_episodes
    return result


def started(module: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a test module as a process."""
    command = [sys.executable, "-m", f"tests.episodes.transport.{module}", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def ended(process: subprocess.Popen[str]) -> None:
    """Kill a process, and wait for its end."""
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()

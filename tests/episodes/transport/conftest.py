"""A receiver, a sender to it, and processes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from episodes.transport import EpisodeReceiver, EpisodeSender
from episodes.transport import sender as senders
from tests.episodes.transport.traffic import PATIENCE_S, ended


@pytest.fixture(autouse=True)
def _connections_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first message wait for its connection, because a test that sends and then receives calls the sender only
    once.
    """
    monkeypatch.setattr(senders, "_CONNECT_S", PATIENCE_S)


@pytest.fixture
def receiver() -> Iterator[EpisodeReceiver]:
    with EpisodeReceiver() as receiver:
        yield receiver


@pytest.fixture
def sender(receiver: EpisodeReceiver) -> Iterator[EpisodeSender]:
    sender = EpisodeSender(receiver.address)
    yield sender
    sender.close(timeout=0)


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    """Yield a list for processes, which are killed at the end."""
    running: list[subprocess.Popen[str]] = []
    yield running
    for process in running:
        ended(process)

"""A receiver, and a sender to it, in the process of the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from episodes.transport import EpisodeReceiver, EpisodeSender
from episodes.transport import sender as senders

PATIENCE_S = 300.0  # far more than anything takes on a slow and busy machine


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

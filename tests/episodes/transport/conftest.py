"""A receiver, and a sender to it, in the process of the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from episodes.transport import EpisodeReceiver, EpisodeSender


@pytest.fixture
def receiver() -> Iterator[EpisodeReceiver]:
    with EpisodeReceiver() as receiver:
        yield receiver


@pytest.fixture
def sender(receiver: EpisodeReceiver) -> Iterator[EpisodeSender]:
    sender = EpisodeSender(receiver.address)
    yield sender
    sender.close(timeout=0)

"""A replay buffer's part of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from episodes.replay import EpisodeReplayBuffer

__all__ = ["StoredBuffer"]


class StoredBuffer:
    """A buffer's state without its spaces, which it has from its episodes or its runner and no checkpoint holds."""

    def __init__(self, buffer: EpisodeReplayBuffer) -> None:
        self.buffer = buffer

    def get_state(self) -> dict[str, Any]:
        return {name: value for name, value in self.buffer.get_state().items() if name != "spaces"}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.buffer.set_state({**state, "spaces": self.buffer.get_state()["spaces"]})

"""A replay buffer's part of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from episodes.replay import EpisodeReplayBuffer
from episodes.replay.resuming import decode_infos, encode_infos
from episodes.replay.ring.info_segments import InfoSegments

__all__ = ["StoredBuffer"]


class StoredBuffer:
    """A buffer's state out of plain values and arrays.

    Infos are written as columns. The spaces are left out, which the buffer has from its episodes or its runner.
    """

    def __init__(self, buffer: EpisodeReplayBuffer) -> None:
        self.buffer = buffer

    def get_state(self) -> dict[str, Any]:
        state = {name: value for name, value in self.buffer.get_state().items() if name != "spaces"}
        return state | {"ring": state["ring"] | {"infos": encode_infos(InfoSegments(*state["ring"]["infos"]))}}

    def set_state(self, state: Mapping[str, Any]) -> None:
        infos = decode_infos(state["ring"]["infos"])
        ring = {**state["ring"], "infos": (infos.starts, infos.parts)}
        self.buffer.set_state({**state, "ring": ring, "spaces": self.buffer.get_state()["spaces"]})

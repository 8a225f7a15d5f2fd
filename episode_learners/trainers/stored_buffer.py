"""Conversion of replay buffers to plain values and arrays, for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from episodes.replay import EpisodeReplayBuffer, MultiAgentEpisodeReplayBuffer
from episodes.replay.resuming import decode_infos, encode_infos

__all__ = ["StoredBuffer"]


class StoredBuffer:
    """Wrapper by which a checkpoint stores a replay buffer: its state consists of values that checkpoints allow.

    Infos are stored as columns. Spaces of a single-agent buffer are not stored: the buffer gets them from its
    episodes or its runner.
    """

    def __init__(self, buffer: EpisodeReplayBuffer | MultiAgentEpisodeReplayBuffer) -> None:
        self.buffer = buffer

    def get_state(self) -> dict[str, Any]:
        """Return the state of the replay buffer, with infos as columns."""
        state: dict[str, Any] = self.buffer.get_state()
        if isinstance(self.buffer, MultiAgentEpisodeReplayBuffer):
            modules = [
                [module_id, capacity, _infos_to_columns(buffer)]
                for module_id, (capacity, buffer) in state["modules"].items()
            ]
            return {**state, "modules": modules}
        del state["spaces"]
        return _infos_to_columns(state)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state of the replay buffer that `get_state` returned."""
        if isinstance(self.buffer, MultiAgentEpisodeReplayBuffer):
            modules = {
                module_id: (capacity, _columns_to_infos(buffer)) for module_id, capacity, buffer in state["modules"]
            }
            self.buffer.set_state({**state, "modules": modules})
        else:
            self.buffer.set_state({**_columns_to_infos(state), "spaces": self.buffer.get_state()["spaces"]})


def _infos_to_columns(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a replay buffer with its info dicts converted to columns, which checkpoints can store."""
    return state | {"ring": state["ring"] | {"infos": encode_infos(zip(*state["ring"]["infos"], strict=True))}}


def _columns_to_infos(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a replay buffer with columns of infos converted back to dicts. This is the inverse of
    `_infos_to_columns`.
    """
    segments = decode_infos(state["ring"]["infos"])
    starts, parts = [start for start, _ in segments], [infos for _, infos in segments]
    return {**state, "ring": {**state["ring"], "infos": (starts, parts)}}

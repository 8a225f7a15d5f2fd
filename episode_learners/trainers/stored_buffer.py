"""Conversion of replay buffers to plain values and arrays, for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from episodes.facts import Ending
from episodes.replay import EpisodeReplayBuffer, MultiAgentEpisodeReplayBuffer
from episodes.replay.resuming import decode_infos, encode_infos
from episodes.replay.ring.info_segments import InfoSegments
from episodes.storage import space_json

__all__ = ["StoredBuffer"]

_ENDING, _SPACE = "__ending__", "__space__"


class StoredBuffer:
    """Wrapper by which a checkpoint stores a replay buffer: its state consists of plain values and arrays only.

    Infos are stored as columns. Spaces of a single-agent buffer are not stored: the buffer gets them from its
    episodes or its runner.
    """

    def __init__(self, buffer: EpisodeReplayBuffer | MultiAgentEpisodeReplayBuffer) -> None:
        self.buffer = buffer

    def get_state(self) -> dict[str, Any]:
        """Return the state of the replay buffer as plain values and arrays."""
        state: dict[str, Any] = self.buffer.get_state()
        if isinstance(self.buffer, MultiAgentEpisodeReplayBuffer):
            modules = [
                [module_id, capacity, _infos_to_columns(buffer)]
                for module_id, (capacity, buffer) in state["modules"].items()
            ]
            return _to_plain({**state, "modules": modules})
        del state["spaces"]
        return _to_plain(_infos_to_columns(state))

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state of the replay buffer that `get_state` returned."""
        decoded: dict[str, Any] = _from_plain(state)
        if isinstance(self.buffer, MultiAgentEpisodeReplayBuffer):
            modules = {
                module_id: (capacity, _columns_to_infos(buffer)) for module_id, capacity, buffer in decoded["modules"]
            }
            self.buffer.set_state({**decoded, "modules": modules})
        else:
            self.buffer.set_state({**_columns_to_infos(decoded), "spaces": self.buffer.get_state()["spaces"]})


def _infos_to_columns(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a replay buffer with its info dicts converted to columns, which checkpoints can store."""
    return state | {"ring": state["ring"] | {"infos": encode_infos(InfoSegments(*state["ring"]["infos"]))}}


def _columns_to_infos(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a replay buffer with columns of infos converted back to dicts. This is the inverse of
    `_infos_to_columns`.
    """
    infos = decode_infos(state["ring"]["infos"])
    return state | {"ring": state["ring"] | {"infos": (infos.starts, infos.parts)}}


def _to_plain(value: Any) -> Any:
    """Return a nested value with all `Ending`s and spaces converted to plain values, which checkpoints can store."""
    if isinstance(value, Ending):
        return {_ENDING: value.code}
    if isinstance(value, gym.Space):
        return {_SPACE: space_json.to_json(value, "a space of the buffer")}
    if isinstance(value, dict):
        return {key: _to_plain(part) for key, part in value.items()}
    return type(value)(map(_to_plain, value)) if type(value) in (list, tuple) else value


def _from_plain(value: Any) -> Any:
    """Return a nested value with `Ending`s and spaces restored from plain values: the inverse of `_to_plain`."""
    if isinstance(value, Mapping):
        if _ENDING in value:
            return Ending(value[_ENDING])
        if _SPACE in value:
            return space_json.from_json(value[_SPACE])
        return {key: _from_plain(part) for key, part in value.items()}
    return type(value)(map(_from_plain, value)) if type(value) in (list, tuple) else value

"""Replay buffers in checkpoints: their state as plain values and arrays."""

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
    """Wrapper of a replay buffer whose state consists of plain values and arrays, for checkpoints.

    Infos are stored as columns. Spaces of a single-agent buffer are left out: it gets them from its episodes or its
    runner.
    """

    def __init__(self, buffer: EpisodeReplayBuffer | MultiAgentEpisodeReplayBuffer) -> None:
        self.buffer = buffer

    def get_state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.buffer.get_state()
        if isinstance(self.buffer, MultiAgentEpisodeReplayBuffer):
            modules = [
                [module_id, capacity, _stored(buffer)] for module_id, (capacity, buffer) in state["modules"].items()
            ]
            return _encoded({**state, "modules": modules})
        del state["spaces"]
        return _encoded(_stored(state))

    def set_state(self, state: Mapping[str, Any]) -> None:
        decoded: dict[str, Any] = _decoded(state)
        if isinstance(self.buffer, MultiAgentEpisodeReplayBuffer):
            modules = {module_id: (capacity, _restored(buffer)) for module_id, capacity, buffer in decoded["modules"]}
            self.buffer.set_state({**decoded, "modules": modules})
        else:
            self.buffer.set_state({**_restored(decoded), "spaces": self.buffer.get_state()["spaces"]})


def _stored(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a replay buffer with the info dicts converted to columns."""
    return state | {"ring": state["ring"] | {"infos": encode_infos(InfoSegments(*state["ring"]["infos"]))}}


def _restored(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a replay buffer with info dicts from columns: the inverse of `_stored`."""
    infos = decode_infos(state["ring"]["infos"])
    return state | {"ring": state["ring"] | {"infos": (infos.starts, infos.parts)}}


def _encoded(value: Any) -> Any:
    """Return a nested value with `Ending`s and spaces converted to plain values."""
    if isinstance(value, Ending):
        return {_ENDING: value.code}
    if isinstance(value, gym.Space):
        return {_SPACE: space_json.to_json(value, "a space of the buffer")}
    if isinstance(value, dict):
        return {key: _encoded(part) for key, part in value.items()}
    return type(value)(map(_encoded, value)) if type(value) in (list, tuple) else value


def _decoded(value: Any) -> Any:
    """Return a nested value with `Ending`s and spaces restored: the inverse of `_encoded`."""
    if isinstance(value, Mapping):
        if _ENDING in value:
            return Ending(value[_ENDING])
        if _SPACE in value:
            return space_json.from_json(value[_SPACE])
        return {key: _decoded(part) for key, part in value.items()}
    return type(value)(map(_decoded, value)) if type(value) in (list, tuple) else value

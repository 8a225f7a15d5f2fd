"""Conversion between `SingleAgentEpisode` and RLlib's state dicts, without RLlib installed."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Protocol

import numpy as np

from episodes.converters import rllib_spaces
from episodes.converters.loss_report import LossReport, dropped_facts
from episodes.errors import UnreadableData
from episodes.facts import Ending, EpisodeFacts
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import Track, Tracks, nested
from episodes.tracks.infos.dicts import infos_of
from episodes.tracks.spaces import as_items

WHY = "RLlib's episodes have no place for it"
IDS = ("id_", "agent_id", "module_id", "multi_agent_episode_id")
_FACTS = (*IDS, "t_started")


class Stateful(Protocol):
    """An object of RLlib that returns its data as a dict: an episode or a lookback buffer."""

    def get_state(self) -> dict[str, Any]: ...


def state_of(episode: SingleAgentEpisode, report: LossReport) -> dict[str, Any]:
    """Convert an episode to a state dict for RLlib's `SingleAgentEpisode.from_state`. Data is copied.

    Policy versions and acting pipelines are lost.
    """
    for name in dropped_facts(episode.facts, _FACTS):
        report.add(name, WHY, episode.id_)
    observation_space, action_space = (
        rllib_spaces.to_dict(space) for space in (episode.observation_space, episode.env_action_space)
    )
    return {
        **{name: getattr(episode, name) for name in (*_FACTS, "is_terminated", "is_truncated")},
        "observations": _buffer(episode.observations, observation_space),
        "actions": _buffer(episode.actions, action_space),
        "rewards": _buffer(episode.rewards, None),
        "infos": {
            "data": deepcopy(list(episode.infos)),
            "lookback": episode.lookback,
            "finalized": False,
            "space": None,
        },
        "extra_model_outputs": {key: _buffer(track, None) for key, track in episode.extra_model_outputs.items()},
        "t": episode.t,
        "_observation_space": observation_space,
        "_action_space": action_space,
        "_start_time": None,
        "_last_step_time": None,
        "custom_data": deepcopy(episode.custom_data),
    }


def copy_id_and_spaces(episode: SingleAgentEpisode, made: Any) -> None:
    """Copy the id and the spaces of an episode to the RLlib episode `made`.

    This includes spaces that RLlib's states cannot store.
    """
    made.id_ = episode.id_  # RLlib takes an id such as 0 or "" for none, and makes another
    made.observation_space, made.action_space = episode.observation_space, episode.env_action_space


def _buffer(track: Track, space: dict[str, Any] | None) -> dict[str, Any]:
    """Return the state of RLlib's buffer for a time series, with copies of its data."""
    finished = not isinstance(track.data, list)
    data = nested.map_leaves(np.array, track.data) if finished else deepcopy(track.data)
    return {"data": data, "lookback": track.lookback, "finalized": finished, "space": space}


def rllib_state_of(episode: Stateful) -> dict[str, Any]:
    """Return the state dict of an RLlib episode, without the warnings that Gymnasium would print."""
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        return episode.get_state()


def episode_of(state: Mapping[str, Any]) -> SingleAgentEpisode:
    """Convert RLlib's state dict to an episode. Data is copied.

    Raises:
        UnreadableData: another kind of state.
    """
    try:
        return _episode_of(state)
    except (KeyError, TypeError, AttributeError) as error:
        raise UnreadableData(f"not the state of an episode of RLlib's: {error!r}") from error


def _episode_of(state: Mapping[str, Any]) -> SingleAgentEpisode:
    """Return an episode with copies of the data in RLlib's state dict. It is finalized if RLlib's episode was."""
    observation_space, action_space = (
        rllib_spaces.from_dict(state.get(name)) for name in ("_observation_space", "_action_space")
    )
    ending = Ending.of(bool(state["is_terminated"]), bool(state["is_truncated"]))
    identity = {name: state[name] for name in IDS}
    facts = EpisodeFacts(
        **identity,
        t_started=int(state["t_started"]),
        ending=ending,
        observation_space=observation_space,
        action_space=action_space,
    )
    named = [_plain(state[name]) for name in ("observations", "infos", "actions", "rewards")]
    extra = {key: _plain(part) for key, part in (state["extra_model_outputs"] or {}).items()}
    parts, lookback = [part["data"] for part in named], int(named[3]["lookback"])
    outputs = {key: part["data"] for key, part in extra.items()}
    is_finished = all(part["finalized"] for part in (named[0], *named[2:], *extra.values()))
    if is_finished:
        observation_data, infos, action_data, rewards = parts
        observation_data, action_data, rewards, outputs = (
            nested.map_leaves(np.array, _as_tuples(x)) for x in (observation_data, action_data, rewards, outputs)
        )
        tracks = Tracks.finished(
            observation_data, infos_of(deepcopy(list(infos))), action_data, rewards, outputs, lookback
        )
    else:  # RLlib finalizes no empty buffers, and those of an episode without a step are
        observation_items, infos, action_items, rewards = (deepcopy(_items(part)) for part in parts)
        outputs = {key: deepcopy(_items(part)) for key, part in outputs.items()}
        tracks = Tracks.growing(
            as_items(observation_items, observation_space),
            infos,
            as_items(action_items, action_space),
            rewards,
            outputs,
            lookback,
        )
    episode = SingleAgentEpisode.of(facts, tracks, deepcopy(dict(state.get("custom_data") or {})))
    episode.validate()
    return episode.to_numpy() if named[0]["finalized"] else episode


def _plain(buffer: Mapping[str, Any] | Stateful) -> Mapping[str, Any]:
    """Return the state dict of an RLlib lookback buffer, given as an object or as a state dict already.

    RLlib stores the buffer itself in the extra outputs of a cut chunk.
    """
    return buffer if isinstance(buffer, Mapping) else buffer.get_state()


def _as_tuples(data: object) -> Any:
    """Return nested arrays with lists converted to tuples, because msgpack stores tuples as lists."""
    if isinstance(data, dict):
        return {key: _as_tuples(part) for key, part in data.items()}
    return tuple(map(_as_tuples, data)) if isinstance(data, (list, tuple)) else data


def _items(data: Any) -> list[Any]:
    """Convert the content of an RLlib lookback buffer, a list or nested arrays, to a list of items."""
    if isinstance(data, list):
        return data
    data = _as_tuples(data)
    return [nested.map_leaves(lambda leaf, i=i: leaf[i], data) for i in range(len(nested.first_leaf(data)))]

"""A `SingleAgentEpisode` as the state of RLlib's, a dict of plain values and arrays, and back. RLlib is not needed."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np

from episodes.converters import rllib_spaces
from episodes.converters.loss_report import LossReport
from episodes.errors import UnreadableData
from episodes.facts import Ending, EpisodeFacts
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import Track, Tracks, nested
from episodes.tracks.infos.dicts import infos_of
from episodes.tracks.spaces import as_items

WHY = "RLlib's episodes have no place for it"


def state_of(episode: SingleAgentEpisode, report: LossReport) -> dict[str, Any]:
    """What `SingleAgentEpisode.from_state` of RLlib takes; it shares no memory with the episode.

    Policy versions are lost.
    """
    if episode.policy_versions is not None:
        report.add("policy_versions", WHY, episode.id_)
    seen, acted = (rllib_spaces.to_dict(space) for space in (episode.observation_space, episode.env_action_space))
    facts = ("id_", "agent_id", "module_id", "multi_agent_episode_id", "is_terminated", "is_truncated", "t_started")
    return {
        **{name: getattr(episode, name) for name in facts},
        "observations": _buffer(episode.observations, seen),
        "actions": _buffer(episode.actions, acted),
        "rewards": _buffer(episode.rewards, None),
        "infos": {
            "data": deepcopy(list(episode.infos)),
            "lookback": episode.lookback,
            "finalized": False,
            "space": None,
        },
        "extra_model_outputs": {key: _buffer(track, None) for key, track in episode.extra_model_outputs.items()},
        "t": episode.t,
        "_observation_space": seen,
        "_action_space": acted,
        "_start_time": None,
        "_last_step_time": None,
        "custom_data": deepcopy(episode.custom_data),
    }


def _buffer(track: Track, space: Any) -> dict[str, Any]:
    finished = not isinstance(track.whole(), list)
    data = nested.map_leaves(np.array, track.whole()) if finished else deepcopy(track.whole())
    return {"data": data, "lookback": track.lookback, "finalized": finished, "space": space}


def asked(episode: Any) -> dict[str, Any]:
    """The state of an episode of RLlib's, which asks spaces for their length, of which Gymnasium may warn."""
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        return episode.get_state()


def episode_of(state: Mapping[str, Any]) -> SingleAgentEpisode:
    """The episode of a state of RLlib's; it shares no memory with the state. One that was finalized is again.

    Raises:
        UnreadableData: it is no such state.
    """
    try:
        return _episode_of(state)
    except (KeyError, TypeError, AttributeError) as error:
        raise UnreadableData(f"not the state of an episode of RLlib's: {error!r}") from error


def _episode_of(state: Mapping[str, Any]) -> SingleAgentEpisode:
    seen, acted = (rllib_spaces.from_dict(state.get(name)) for name in ("_observation_space", "_action_space"))
    ending = Ending.of(bool(state["is_terminated"]), bool(state["is_truncated"]))
    whose = {name: state[name] for name in ("id_", "agent_id", "module_id", "multi_agent_episode_id")}
    facts = EpisodeFacts(
        **whose, t_started=int(state["t_started"]), ending=ending, observation_space=seen, action_space=acted
    )
    named = [_plain(state[name]) for name in ("observations", "infos", "actions", "rewards")]
    extra = {key: _plain(part) for key, part in (state["extra_model_outputs"] or {}).items()}
    parts, lookback = [part["data"] for part in named], int(named[3]["lookback"])
    outputs = {key: part["data"] for key, part in extra.items()}
    is_finished = all(part["finalized"] for part in (named[0], *named[2:], *extra.values()))
    if is_finished:
        seen, infos, acted, paid = parts
        seen, acted, paid, outputs = (nested.map_leaves(np.array, _tupled(x)) for x in (seen, acted, paid, outputs))
        tracks = Tracks.finished(seen, infos_of(deepcopy(list(infos))), acted, paid, outputs, lookback)
    else:  # RLlib finalizes no empty buffers, and those of an episode without a step are
        seen_items, infos, acted_items, paid = (deepcopy(_items(part)) for part in parts)
        outputs = {key: deepcopy(_items(part)) for key, part in outputs.items()}
        items = as_items(seen_items, seen), infos, as_items(acted_items, acted), paid
        tracks = Tracks.growing(*items, outputs, lookback)
    episode = SingleAgentEpisode.of(facts, tracks, deepcopy(dict(state.get("custom_data") or {})))
    episode.validate()
    return episode.to_numpy() if named[0]["finalized"] else episode


def _plain(buffer: Any) -> Mapping[str, Any]:
    """The state of a buffer, which RLlib forgets to ask for in the extra outputs of a cut chunk."""
    return buffer if isinstance(buffer, Mapping) else buffer.get_state()


def _tupled(data: Any) -> Any:
    """Nested arrays, whose tuples msgpack made lists."""
    if isinstance(data, dict):
        return {key: _tupled(part) for key, part in data.items()}
    return tuple(map(_tupled, data)) if isinstance(data, (list, tuple)) else data


def _items(data: Any) -> list[Any]:
    """The items of a buffer one by one."""
    if isinstance(data, list):
        return data
    data = _tupled(data)
    return [nested.map_leaves(lambda leaf, i=i: leaf[i], data) for i in range(len(nested.first_leaf(data)))]

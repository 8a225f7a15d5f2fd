"""From a list of episodes to the columns of a pack: one concatenate per track."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from episodes.errors import TrackMismatch
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import ArrayTrack, nested
from episodes.tracks.infos import Infos
from episodes.tracks.infos.kinds import EmptyInfos, ListInfos


def pack_arguments(episodes: Sequence[SingleAgentEpisode]) -> dict[str, Any]:
    """The columns and the metadata of all episodes, as `EpisodePack` takes them."""
    finished = [
        (e.observations, e.actions, e.rewards, e.extra_model_outputs)
        if type(e.observations) is ArrayTrack
        else e.arrays()
        for e in episodes
    ]
    observations, actions, rewards, extras = zip(*finished, strict=True)
    sizes = [len(track.data) for track in rewards]  # L + T
    column = _column if all(sizes) else _column_without_empty
    keys = _common_keys(episodes, extras)
    return {
        "observations": _column("observations", episodes, observations),
        "actions": column("actions", episodes, actions),
        "rewards": column("rewards", episodes, rewards),
        "extra_model_outputs": {
            key: column(key, episodes, [extra.get(key, _NO_ITEMS) for extra in extras]) for key in keys
        },
        "infos": _infos([e.infos for e in episodes]),
        **_metadata(episodes, sizes),
    }


_NO_ITEMS = ArrayTrack(np.zeros(0))


def _common_keys(episodes: Sequence[SingleAgentEpisode], extras: Sequence[dict[str, Any]]) -> list[str]:
    """The keys of the extra model outputs, which all episodes with a step must have."""
    keys = next((extra.keys() for episode, extra in zip(episodes, extras, strict=True) if episode.rewards.total), None)
    for episode, extra in zip(episodes, extras, strict=True):
        if extra.keys() != keys and episode.rewards.total:
            raise TrackMismatch(
                f"episode {episode.id_} has the extra model outputs {list(extra)}, others have {list(keys or ())}"
            )
    return list(extras[0] if keys is None else keys)


def _infos(infos: list[Any]) -> Infos:
    if all(type(part) is EmptyInfos for part in infos):
        return EmptyInfos(sum(map(len, infos)))
    return Infos.concat([part if isinstance(part, Infos) else ListInfos.of(part) for part in infos])


def _metadata(episodes: Sequence[SingleAgentEpisode], sizes: list[int]) -> dict[str, Any]:
    lookbacks = [e.lookback for e in episodes]
    return {
        "ids": [e.id_ for e in episodes],
        "lengths": [size - lookback for size, lookback in zip(sizes, lookbacks, strict=True)],
        "lookbacks": lookbacks,
        "t_started": [e.t_started for e in episodes],
        "terminated": [e.is_terminated for e in episodes],
        "truncated": [e.is_truncated for e in episodes],
        "agent_ids": [e.agent_id for e in episodes],
        "module_ids": [e.module_id for e in episodes],
        "multi_agent_episode_ids": [e.multi_agent_episode_id for e in episodes],
        "custom_data": [e.custom_data for e in episodes],
        "observation_space": episodes[0].observation_space,
        "action_space": episodes[0].action_space,
    }


def _column(name: str, episodes: Sequence[SingleAgentEpisode], tracks: Sequence[Any]) -> Any:
    parts = [track.data for track in tracks]
    try:
        return np.concatenate(parts) if type(parts[0]) is np.ndarray else nested.concatenate(parts)
    except ValueError:
        return _column_without_empty(name, episodes, tracks)


def _column_without_empty(name: str, episodes: Sequence[SingleAgentEpisode], tracks: Sequence[ArrayTrack]) -> Any:
    """The column of tracks of which some have no items, and so no shape; `TrackMismatch` where shapes really differ."""
    filled = [(episode, track.data) for episode, track in zip(episodes, tracks, strict=True) if track.total]
    if not filled:
        return tracks[0].data
    shapes = [nested.map_leaves(lambda leaf: list(leaf.shape[1:]), data) for _, data in filled]
    for (episode, _), shape in zip(filled, shapes, strict=True):
        if shape != shapes[0]:
            raise TrackMismatch(
                f"{name}: items of episode {episode.id_} have shape {shape}, those of {filled[0][0].id_} "
                f"have {shapes[0]}; only episodes of one shape go into one pack"
            )
    return nested.concatenate([data for _, data in filled])


def random_ids(num: int) -> np.ndarray:
    """Random episode ids [num], 32 hexadecimal digits each."""
    digits = os.urandom(16 * num).hex().encode(f"utf-32-{sys.byteorder[0]}e")  # as numpy keeps strings
    return np.frombuffer(bytearray(digits), "U32") if num else np.zeros(0, "U32")


def sums_of_parts(values: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """The sums [n] of `values[starts[i]:stops[i]]` in float64; parts in order that do not overlap, and may be empty."""
    sums = np.zeros(len(starts))
    there = np.flatnonzero(starts < stops)
    if len(there):
        bounds = np.stack([starts[there], stops[there]], axis=1).reshape(-1)[:-1]
        in_a_row = (bounds[1::2] == bounds[2::2]).all()
        rows = values[: int(stops[there[-1]])]
        sums[there] = np.add.reduceat(rows, bounds[::2] if in_a_row else bounds, dtype=np.float64)[
            :: 1 + (not in_a_row)
        ]
    return sums

"""Iteration over episodes in lists and packs of limited size, so that few are in memory at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from episodes.errors import TrackMismatch, WrongType, rejected_type
from episodes.multi_agent import MultiAgentEpisode, pack_agents
from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode
from episodes.storage import EpisodeDataset
from episodes.storage.track_schema import structure_of

MOST_EPISODES, MOST_BYTES = 1000, 1 << 22  # limits of a pack; a single episode may be larger

Given = Iterable[SingleAgentEpisode] | Iterable[MultiAgentEpisode] | EpisodePack | EpisodeDataset


def each_of(episodes: Given, *, ragged: bool = False) -> Iterator[SingleAgentEpisode]:
    """Yield each single-agent episode, and a single-agent episode per agent of each multi-agent episode.

    Args:
        episodes: the episodes.
        ragged: whether the format stores ragged tracks.

    Raises:
        TrackMismatch: an episode has ragged tracks, and the format does not store them.
        WrongType: a value is not an episode.
    """
    for episode in episodes:
        if isinstance(episode, MultiAgentEpisode):
            for pack in pack_agents([episode]):
                yield from pack if ragged else refuse_ragged(pack)
        elif isinstance(episode, SingleAgentEpisode):
            yield episode if ragged else refuse_ragged([episode])[0]
        else:
            kind = rejected_type(episode, SingleAgentEpisode, MultiAgentEpisode)
            raise WrongType(f"episodes are converted, not a {kind}")


def refuse_ragged(episodes: Iterable[Any]) -> list[Any]:
    """Raise `TrackMismatch` if an episode has ragged items (of varying length). Otherwise return the episodes as a
    list."""
    episodes = list(episodes)
    for episode in episodes:
        kinds = episode.tracks.ragged_kinds() if isinstance(episode, SingleAgentEpisode) else {}
        if isinstance(episode, MultiAgentEpisode):
            kinds = episode.ragged
        if kinds:
            raise TrackMismatch(
                f"episode {episode.id_}: the tracks {list(kinds)} are ragged, and this format has items of one shape; "
                "pad the items, or write a data set of this library"
            )
    return episodes


def packs_of(episodes: Given) -> Iterator[EpisodePack]:
    """Yield packs of limited size that hold consecutive episodes with equal dtypes, shapes and spaces."""
    for some in bounded_lists(episodes):
        yield EpisodePack.from_episodes(some)


def bounded_lists(episodes: Given, *, alike: bool = True, ragged: bool = False) -> Iterator[list[SingleAgentEpisode]]:
    """Yield lists of consecutive episodes of limited size. With `alike`, a list has equal dtypes, shapes and spaces.

    Args:
        episodes: the episodes.
        alike: start a new list for episodes with another schema, so that each list fits into a pack.
        ragged: whether the format stores ragged tracks.

    Raises:
        TrackMismatch, WrongType: as in `each_of`.
    """
    waiting: list[SingleAgentEpisode] = []
    kind, nbytes = None, 0
    for episode in each_of(episodes, ragged=ragged):
        episode_kind, size = _kind_of(episode)
        is_other = alike and episode_kind != kind
        if waiting and (is_other or len(waiting) == MOST_EPISODES or nbytes + size > MOST_BYTES):
            yield waiting
            waiting, nbytes = [], 0
        waiting.append(episode)
        kind, nbytes = episode_kind, nbytes + size
    if waiting:
        yield waiting


def _kind_of(episode: SingleAgentEpisode) -> tuple[Any, int]:
    """Return an episode's schema (dtypes, shapes, nesting and spaces) as a comparable value, and its size in bytes."""
    tracks = episode.finalized_tracks()
    arrays = tracks.arrays()
    kinds = tuple((path, _kind(array.dtype), array.shape[1:]) for path, array in arrays.items())
    nesting = structure_of((tracks.observations.data, tracks.actions.data))
    kind = (kinds, nesting, episode.observation_space, episode.action_space)
    return kind, sum(array.nbytes for array in arrays.values())


def _kind(dtype: np.dtype) -> str:
    return "U" if dtype.kind == "U" else dtype.str  # text has as many dtypes as lengths

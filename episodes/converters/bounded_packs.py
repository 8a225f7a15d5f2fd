"""Iterate over episodes in lists and packs of bounded size, so that writers never hold all episodes in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from episodes.errors import WrongType
from episodes.multi_agent import MultiAgentEpisode, pack_agents
from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode
from episodes.storage import EpisodeDataset
from episodes.storage.track_schema import structure_of

MOST_EPISODES, MOST_BYTES = 1000, 1 << 22  # limits of a pack; a single episode may be larger

Given = Iterable[SingleAgentEpisode] | Iterable[MultiAgentEpisode] | EpisodePack | EpisodeDataset


def each_of(episodes: Given) -> Iterator[SingleAgentEpisode]:
    """Yield the episodes one by one, each multi-agent episode as one episode per agent."""
    for episode in episodes:
        if isinstance(episode, MultiAgentEpisode):
            for pack in pack_agents([episode]):
                yield from pack
        elif isinstance(episode, SingleAgentEpisode):
            yield episode
        else:
            raise WrongType(f"episodes are converted, not a {type(episode).__name__}")


def packs_of(episodes: Given) -> Iterator[EpisodePack]:
    """Yield the episodes in packs of bounded size with equal dtypes, shapes and spaces."""
    for some in bounded_lists(episodes):
        yield EpisodePack.from_episodes(some)


def bounded_lists(episodes: Given, *, alike: bool = True) -> Iterator[list[SingleAgentEpisode]]:
    """Yield the episodes in lists of bounded size.

    Args:
        episodes: the episodes.
        alike: start a new list for episodes with another schema, so that each list fits into a pack.
    """
    waiting: list[SingleAgentEpisode] = []
    kind, nbytes = None, 0
    for episode in each_of(episodes):
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
    """Return the dtypes, shapes, nesting and spaces of an episode as one comparable value, and its size in bytes."""
    tracks = episode.finalized_tracks()
    arrays = tracks.arrays()
    kinds = tuple((path, _kind(array.dtype), array.shape[1:]) for path, array in arrays.items())
    nesting = structure_of((tracks.observations.whole(), tracks.actions.whole()))
    kind = (kinds, nesting, episode.observation_space, episode.action_space)
    return kind, sum(array.nbytes for array in arrays.values())


def _kind(dtype: np.dtype) -> str:
    return "U" if dtype.kind == "U" else dtype.str  # text has as many dtypes as lengths

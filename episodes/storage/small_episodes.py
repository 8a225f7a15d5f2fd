"""Small episodes that are added one by one wait, copied, to be packed together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode


class SmallEpisodes:
    """Episodes of one kind, which is known to fit into the data set.

    A pack and a record batch for each would cost ten times what copying its arrays does. Only those are taken with
    which nothing can go wrong later: finished, flat, of the very dtypes and shapes, without custom data, and with infos
    that are arrays.
    """

    def __init__(self) -> None:
        self.kind: Any = None
        self.nbytes = 0
        self._episodes: list[SingleAgentEpisode] = []

    def take(self, episodes: Sequence[Any], limit: int) -> bool:
        """Take the episodes if they are of the kind, and smaller than `limit` bytes together; else none of them."""
        if self.kind is None or type(episodes) is not list:
            return False
        nbytes = 0
        for episode in episodes:
            arrays = _plain_arrays(episode)
            if arrays is None or _kind_of(episode, arrays) != self.kind:
                return False
            nbytes += sum(array.nbytes for array in arrays.values())
            if nbytes >= limit:
                return False
        self._episodes += map(_copied, episodes)
        self.nbytes += nbytes
        return True

    def learn(self, episodes: Sequence[Any]) -> None:
        """From now on, take episodes like the first of these, which were found to fit."""
        arrays = _plain_arrays(episodes[0]) if type(episodes) is list else None
        self.kind = None if arrays is None else _kind_of(episodes[0], arrays)

    def __len__(self) -> int:
        return len(self._episodes)

    def pack(self) -> EpisodePack | None:
        """Return the waiting episodes as one pack, or None if there are none."""
        return EpisodePack.from_episodes(self._episodes) if self._episodes else None

    def clear(self) -> None:
        """Remove the waiting episodes."""
        self._episodes, self.nbytes = [], 0


def _plain_arrays(episode: Any) -> dict[str, np.ndarray] | None:
    """The arrays by path of an episode that is plain enough to wait, None of others."""
    if type(episode) is not SingleAgentEpisode or not episode.is_numpy or episode.custom_data:
        return None
    facts, tracks = episode.facts, episode.tracks
    ids = (facts.agent_id, facts.module_id, facts.multi_agent_episode_id)
    if not _is_text(facts.id_) or any(id_ is not None and not _is_text(id_) for id_ in ids):
        return None
    if not tracks.rewards.total or tracks.infos.whole().holds_objects:
        return None
    arrays = tracks.arrays()
    is_flat = all(track.field.path in arrays for track in tracks.all() if track is not tracks.infos)
    return arrays if is_flat else None


def _is_text(id_: Any) -> bool:
    """Whether a file can hold the id: a text without lone surrogates."""
    if type(id_) is not str:
        return False
    try:
        return id_.isascii() or bool(id_.encode())
    except UnicodeEncodeError:
        return False


def _kind_of(episode: SingleAgentEpisode, arrays: dict[str, np.ndarray]) -> Any:
    items = [(path, array.dtype, array.shape[1:]) for path, array in arrays.items()]
    return episode.observation_space, episode.action_space, items


def _copied(episode: SingleAgentEpisode) -> SingleAgentEpisode:
    return SingleAgentEpisode.of(episode.facts, episode.tracks.map_tracks(lambda track: track.copied()), {})

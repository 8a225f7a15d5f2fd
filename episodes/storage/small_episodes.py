"""Small episodes that are added one by one wait, copied, to be packed together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import ArrayTrack, InfoTrack, Tracks
from episodes.tracks.infos.columns import ColumnInfos


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
        found, nbytes = [], 0
        for episode in episodes:
            tracks = _tracks_of(episode)
            if tracks is None or _kind_of(episode, tracks) != self.kind:
                return False
            nbytes += sum(array.nbytes for array in _arrays(tracks))
            if nbytes >= limit:
                return False
            found.append((episode, tracks))
        self._episodes += [_copied(episode, tracks) for episode, tracks in found]
        self.nbytes += nbytes
        return True

    def learn(self, episodes: Sequence[Any]) -> None:
        """From now on, take episodes like the first of these, which were found to fit."""
        tracks = _tracks_of(episodes[0]) if type(episodes) is list else None
        self.kind = None if tracks is None else _kind_of(episodes[0], tracks)

    def pop(self) -> EpisodePack | None:
        """All that was taken, as one pack; None when there is nothing."""
        if not self._episodes:
            return None
        pack = EpisodePack.from_episodes(self._episodes)
        self._episodes, self.nbytes = [], 0
        return pack


def _tracks_of(episode: Any) -> Tracks | None:
    """The tracks of an episode that is plain enough to wait."""
    if type(episode) is not SingleAgentEpisode or not episode.is_numpy or episode.custom_data:
        return None
    facts, tracks = episode.facts, episode.tracks
    ids = (facts.agent_id, facts.module_id, facts.multi_agent_episode_id)
    if type(facts.id_) is not str or any(id_ is not None and type(id_) is not str for id_ in ids):
        return None
    infos = tracks.infos.data
    if isinstance(infos, ColumnInfos) and infos.holds_objects:
        return None
    return tracks if tracks.rewards.total and all(type(array) is np.ndarray for array in _arrays(tracks)) else None


def _arrays(tracks: Tracks) -> list[Any]:
    return [track.data for track in tracks.all() if type(track) is ArrayTrack]


def _kind_of(episode: SingleAgentEpisode, tracks: Tracks) -> Any:
    items = [(array.dtype, array.shape[1:]) for array in _arrays(tracks)]
    return episode.observation_space, episode.action_space, list(tracks.extra), items


def _copied(episode: SingleAgentEpisode, tracks: Tracks) -> SingleAgentEpisode:
    infos = tracks.infos.data
    infos = InfoTrack(infos.copied() if isinstance(infos, ColumnInfos) else infos, tracks.lookback)
    copies = tracks.each(
        lambda track: (
            ArrayTrack.of(track.data.copy(), track.lookback, track.field) if type(track) is ArrayTrack else infos
        )
    )
    return SingleAgentEpisode.of(episode.facts, copies, {})

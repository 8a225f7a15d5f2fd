"""Queue in which a writer or sender collects small episodes, to process them together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from episodes.facts.facts import EpisodeFacts, is_utf8
from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import Tracks


class SmallEpisodes:
    """Queue of small episodes with equal dtypes, shapes and spaces, which are then written or sent together.

    A pack and a record batch for each episode would cost ten times as much as copying its arrays. Only episodes that
    cannot fail later are queued: finished, flat, with the dtypes and shapes of the kind, without custom data, and with
    infos that are arrays.

    Attributes:
        kind: spaces, and the path, dtype and item shape of each array; None if no kind is known.
        nbytes: size of the queued arrays.
        unread: index of the first episode that `take_unread` has not returned yet.
    """

    def __init__(self) -> None:
        self.kind: Any = None
        self.nbytes = self.unread = 0
        self._queue: list[tuple[EpisodeFacts, Tracks, dict[str, np.ndarray]]] = []

    def take(self, episodes: Sequence[Any], limit: int) -> bool:
        """Add copies of episodes to the queue. Return False, and add none, if they are too large or
        differ from the queued ones.

        All episodes must be of the kind, and smaller than `limit` bytes together.
        """
        if self.kind is None or type(episodes) is not list:
            return False
        nbytes, copies = 0, []
        for episode in episodes:
            arrays = _queueable_arrays(episode)
            if arrays is None or _kind_of(episode, arrays) != self.kind:
                return False
            for array in arrays.values():
                nbytes += array.nbytes
            if nbytes >= limit:
                return False
            copies.append((episode.facts, episode.tracks, arrays))
        for _, _, arrays in copies:
            for path, array in arrays.items():
                arrays[path] = array.copy()
        self._queue += copies
        self.nbytes += nbytes
        return True

    def accept_like(self, episodes: Sequence[Any]) -> None:
        """Accept from now on only episodes with the dtypes, shapes and spaces of `episodes[0]` into the queue.

        If that episode has nested arrays, custom data or Python objects, no episode is accepted.
        """
        arrays = _queueable_arrays(episodes[0]) if type(episodes) is list else None
        tracks = [] if arrays is None else episodes[0].tracks.all()
        is_flat = arrays is not None and all(track.field.path in arrays for track in tracks if track is not tracks[1])
        self.kind = _kind_of(episodes[0], arrays) if arrays is not None and is_flat else None

    def __len__(self) -> int:
        return len(self._queue)

    def pack(self) -> EpisodePack | None:
        """Return the queued episodes as one pack, or None if the queue is empty."""
        return EpisodePack.from_episodes([_episode(*item) for item in self._queue]) if self._queue else None

    def take_unread(self) -> list[tuple[EpisodeFacts, Tracks, Any]]:
        """Return metadata and time series of the episodes that were queued since the last call."""
        start, self.unread = self.unread, len(self._queue)
        return self._queue[start:]

    def emptied(self) -> SmallEpisodes:
        """Return an empty queue for episodes of the same kind."""
        queue = SmallEpisodes()
        queue.kind = self.kind
        return queue


def _queueable_arrays(episode: object) -> dict[str, np.ndarray] | None:
    """Return the arrays of an episode by path, or None if the episode cannot be queued,
    for example because it has custom data."""
    if type(episode) is not SingleAgentEpisode or not episode.is_numpy or episode.custom_data:
        return None
    facts, tracks = episode.facts, episode.tracks
    ids = (facts.id_, facts.agent_id, facts.module_id, facts.multi_agent_episode_id)
    for text in (*ids, facts.acting_pipeline):
        if text is not None and not is_utf8(text):
            return None
    if facts.id_ is None or not tracks.rewards.total or tracks.infos.data.holds_objects:
        return None
    return tracks.arrays()


def _kind_of(episode: SingleAgentEpisode, arrays: dict[str, np.ndarray]) -> Any:
    """Return the spaces of an episode, and the path, dtype and item shape of each array. Episodes with equal results
    can be joined."""
    items = [(path, array.dtype, array.shape[1:]) for path, array in arrays.items()]
    return episode.observation_space, episode.action_space, items


def _episode(facts: EpisodeFacts, tracks: Tracks, arrays: dict[str, np.ndarray]) -> SingleAgentEpisode:
    """Create an episode from its metadata and its time series, in which `arrays` (by path) replace the arrays."""
    return SingleAgentEpisode.of(facts, tracks.map_arrays(lambda path, _: arrays[path]), {})

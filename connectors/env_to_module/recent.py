"""Access to the newest observations, actions or rewards of several ongoing episodes at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.errors import UnknownKey
from episodes.single_agent.episodes_history import check_single_shape
from episodes.tracks import nested

if TYPE_CHECKING:
    from episodes.single_agent import SingleAgentEpisode


def recent(episodes: Any, track: str, num_items: int) -> tuple[Any, np.ndarray]:
    """Return the newest `num_items` (k) items of one track, such as "rewards", for each of N episodes, and a mask.

    The items are nested arrays [k, N, ...]. The mask, bool [k, N], is True for items that exist.

    Missing items are zeros. Items in the lookback count. A recorder's episodes are read as arrays, and a list of
    episodes one by one.

    Args:
        episodes: N ongoing episodes.
        track: "observations", "actions", "rewards", or the key of an extra model output.
        num_items: k, the number of items per episode.

    Returns:
        None in place of the arrays if a list of episodes has no such item, or a recorder never recorded the track.

    Raises:
        TrackMismatch: the items of an episode in a list are ragged.
        UnknownKey: an episode with steps in a list has no extra model output `track`.
    """
    if hasattr(episodes, "recent"):
        return episodes.recent(track, num_items)
    newest = [_newest(episode, track, num_items) for episode in episodes]
    valid = np.zeros((num_items, len(newest)), bool)
    for env, items in enumerate(newest):
        valid[num_items - len(items) :, env] = True
    example = next((items[0] for items in newest if items), None)
    if example is None:
        return None, valid
    zero = nested.map_leaves(lambda leaf: np.zeros_like(np.asarray(leaf)), example)
    columns = [[zero] * (num_items - len(items)) + items for items in newest]
    rows = nested.stack([column[k] for k in range(num_items) for column in columns])
    return nested.map_leaves(lambda leaf: leaf.reshape(num_items, len(newest), *leaf.shape[1:]), rows), valid


def _newest(episode: SingleAgentEpisode, track: str, num_items: int) -> list[Any]:
    """Return a list of the newest items of one track, such as "rewards", of an episode, oldest first.

    It has at most `num_items` items, and those of the lookback count. It is empty if the episode has no steps yet
    and no such output.

    Raises:
        UnknownKey: an episode with steps has no such output.
    """
    series = {"observations": episode.observations, "actions": episode.actions, "rewards": episode.rewards}
    column = series.get(track, episode.extra_model_outputs.get(track))
    if column is None:
        if len(episode):
            raise UnknownKey(f"episode {episode.id_} has no extra model output {track!r}")
        return []
    check_single_shape(episode, track)
    available = len(column) + column.lookback
    return [column[i] for i in range(-min(num_items, available), 0)]

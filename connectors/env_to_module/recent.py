"""The newest items of ongoing episodes' tracks, one row an environment."""

from __future__ import annotations

from typing import Any

import numpy as np

from episodes.errors import UnknownKey
from episodes.tracks import nested


def recent(episodes: Any, track: str, num_items: int) -> tuple[Any, np.ndarray]:
    """The newest rows of a track, oldest first: nested arrays [k, N, ...], and whether they are valid, bool [k, N].

    Where an episode has fewer items, lookback included, the rows are zeros and not valid. When no episode has any
    item there is nothing to take a shape from: None. A recorder's ongoing episodes answer themselves; a list of
    ordinary episodes is gone through.

    Args:
        track: "observations", "actions", "rewards", or the key of an extra model output.
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


def _newest(episode: Any, track: str, num_items: int) -> list[Any]:
    """Up to `num_items` newest items of an episode's track, the lookback included, oldest first."""
    series = {"observations": episode.observations, "actions": episode.actions, "rewards": episode.rewards}
    column = series.get(track, episode.extra_model_outputs.get(track))
    if column is None:
        if len(episode):
            raise UnknownKey(f"episode {episode.id_} has no extra model output {track!r}")
        return []
    there = len(column) + column.lookback
    return [column[i] for i in range(-min(num_items, there), 0)]

"""Expected batches of a data set's sampler, read item by item from whole episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from episodes import SingleAgentEpisode
from episodes.storage import EpisodeDataset
from episodes.tracks import nested
from episodes.tracks.infos.infos import same_info


class ReferenceSteps:
    """All steps of all episodes in order. Lookback steps have negative times."""

    def __init__(self, dataset: EpisodeDataset) -> None:
        self.episodes: list[SingleAgentEpisode] = [dataset[i].to_numpy() for i in range(len(dataset))]
        self.steps = [(e, t) for e, episode in enumerate(self.episodes) for t in range(len(episode))]
        self.first = np.cumsum([0, *map(len, self.episodes)])

    def item(self, column: str, e: int, t: int) -> Any:
        """Return the expected value of a column for step t of episode e."""
        episode = self.episodes[e]
        tracks, last = episode.tracks, t == len(episode) - 1
        at = tracks.lookback + t
        facts: dict[str, Any] = {
            "terminateds": last and episode.is_terminated,
            "truncateds": last and episode.is_truncated,
            "t": episode.t_started + t,
            "is_first": episode.t_started + t == 0,
            "indices": self.first[e] + t if t >= 0 else -1,
        }
        if column in facts:
            return facts[column]
        if column in ("obs", "new_obs"):
            return nested.take(tracks.observations.data, at + (column == "new_obs"))
        if column == "rewards":  # as replay buffers have them
            reward = tracks.rewards.data[at]
            kinds = {np.dtype(np.float16): np.float32, np.dtype(np.float32): np.float32}
            return reward.astype(kinds.get(reward.dtype, np.float64))
        track = tracks.actions if column == "actions" else tracks.extra[column]
        return nested.take(track.data, at)

    def column(self, column: str, rows: Sequence[tuple[int, int]]) -> Any:
        """Return the expected column [n, ...] of the steps `rows`."""
        return nested.stack([self.item(column, e, t) for e, t in rows])

    def windows(self, column: str, rows: Sequence[tuple[int, int]], left: int, length: int) -> Any:
        """Return the expected column [B, W, ...] of windows from `left` steps before each start to `length` after."""
        result = []
        for e, t in rows:
            places = [p if self.is_there(e, p) else None for p in range(t - left, t + length)]
            items = [self.item(column, e, t if p is None else p) for p in places]
            blank = -1 if column == "indices" else None
            result.append(
                nested.stack([_blank(x, blank) if p is None else x for x, p in zip(items, places, strict=True)])
            )
        return nested.stack(result)

    def is_there(self, e: int, t: int) -> bool:
        return -self.episodes[e].tracks.lookback <= t < len(self.episodes[e])


def _blank(item: Any, value: Any) -> Any:
    def blank(leaf: Any) -> Any:
        array = np.asarray(leaf)
        return np.full(array.shape, np.zeros((), array.dtype) if value is None else value, array.dtype)

    return nested.map_leaves(blank, item)


def same(result: Any, expected: Any) -> bool:
    """Return True if two nested values have equal arrays of the same dtypes and shapes."""
    leaves, expected_leaves = nested.flatten(result), nested.flatten(expected)
    return leaves.keys() == expected_leaves.keys() and all(
        leaves[path].dtype == expected_leaves[path].dtype and _equal(leaves[path], expected_leaves[path])
        for path in leaves
    )


def _equal(result: np.ndarray, expected: np.ndarray) -> bool:
    if result.dtype != object:
        return nested.equal(result, expected)
    pairs = zip(result.ravel().tolist(), expected.ravel().tolist(), strict=True)
    return result.shape == expected.shape and all(same_info(a, b) for a, b in pairs)

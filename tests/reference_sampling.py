"""What batches drawn from a data set must be: read from whole episodes, item by item."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from episodes import SingleAgentEpisode
from episodes.storage import EpisodeDataset
from episodes.tracks import nested
from episodes.tracks.infos.infos import same_info


class ReferenceSteps:
    """All steps of all episodes, in order; their lookbacks are items at negative places."""

    def __init__(self, dataset: EpisodeDataset) -> None:
        self.episodes: list[SingleAgentEpisode] = [dataset[i].to_numpy() for i in range(len(dataset))]
        self.steps = [(e, t) for e, episode in enumerate(self.episodes) for t in range(len(episode))]
        self.first = np.cumsum([0, *map(len, self.episodes)])

    def item(self, column: str, e: int, t: int) -> Any:
        """What a column says of step t of episode e."""
        episode = self.episodes[e]
        tracks, last = episode.tracks, t == len(episode) - 1
        at = tracks.lookback + t
        facts: dict[str, Any] = {
            "terminateds": last and episode.is_terminated,
            "truncateds": last and episode.is_truncated,
            "t": episode.t_started + t,
            "is_first": at == 0,
            "indices": self.first[e] + t if t >= 0 else -1,
        }
        if column in facts:
            return facts[column]
        if column in ("obs", "new_obs"):
            return nested.take(tracks.observations.whole(), at + (column == "new_obs"))
        if column == "rewards":  # as replay buffers have them
            reward = tracks.rewards.whole()[at]
            kinds = {np.dtype(np.float16): np.float32, np.dtype(np.float32): np.float32}
            return reward.astype(kinds.get(reward.dtype, np.float64))
        track = tracks.actions if column == "actions" else tracks.extra[column]
        return nested.take(track.whole(), at)

    def column(self, column: str, rows: Sequence[tuple[int, int]]) -> Any:
        """A column [n, ...] of these steps."""
        return nested.stack([self.item(column, e, t) for e, t in rows])

    def windows(self, column: str, rows: Sequence[tuple[int, int]], left: int, length: int) -> Any:
        """A column [B, W, ...] of windows, `left` steps before each of these and `length` from there on."""
        found = []
        for e, t in rows:
            places = [p if self.is_there(e, p) else None for p in range(t - left, t + length)]
            items = [self.item(column, e, t if p is None else p) for p in places]
            blank = -1 if column == "indices" else None
            found.append(
                nested.stack([_blank(x, blank) if p is None else x for x, p in zip(items, places, strict=True)])
            )
        return nested.stack(found)

    def is_there(self, e: int, t: int) -> bool:
        return -self.episodes[e].tracks.lookback <= t < len(self.episodes[e])


def _blank(item: Any, value: Any) -> Any:
    def blank(leaf: Any) -> Any:
        array = np.asarray(leaf)
        return np.full(array.shape, np.zeros((), array.dtype) if value is None else value, array.dtype)

    return nested.map_leaves(blank, item)


def same(found: Any, wanted: Any) -> bool:
    """Whether two nested values have equal leaves, of the same dtypes and shapes."""
    mine, theirs = nested.flatten(found), nested.flatten(wanted)
    return mine.keys() == theirs.keys() and all(
        mine[path].dtype == theirs[path].dtype and _equal(mine[path], theirs[path]) for path in mine
    )


def _equal(found: np.ndarray, wanted: np.ndarray) -> bool:
    if found.dtype != object:
        return nested.equal(found, wanted)
    pairs = zip(found.ravel().tolist(), wanted.ravel().tolist(), strict=True)
    return found.shape == wanted.shape and all(same_info(a, b) for a, b in pairs)

"""`StagedRows`: the newest rows of N environments, one small copy a column, until they are laid into a ring at once.

One assignment for each column is all that a vector step costs here; what a step means, how it is linked and what makes
way for it is worked out for many rows together.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from episodes.errors import TrackMismatch
from episodes.replay.ring.step_links import NUM_LINKS
from episodes.replay.ring.step_ring import REWARDS, STEP_TRACKS, TERMINATEDS, TRUNCATEDS
from episodes.tracks import nested

_MOST_STEPS = 8192
_MOST_BYTES = 1 << 20


class StagedRows:
    """Room for `size` rows like those given, nested arrays [N, ...]; rows so large that one fills it are not copied.

    Attributes:
        observations, tracks: nested arrays [size, N, ...].
        links: room [6, size * N] for the links of their steps; new memory for each stage would cost more than they do.
    """

    def __init__(self, observations: Any, tracks: dict[str, Any], most_rows: int) -> None:
        rows = (observations, tracks)
        self._structure = nested.map_leaves(lambda leaf: None, rows)
        self._leaves = _kinds(rows)
        row_bytes = sum(leaf.nbytes for leaf in nested.leaves(rows))
        num_envs = len(tracks[REWARDS])
        self.size = max(1, min(most_rows, _MOST_STEPS // num_envs, _MOST_BYTES // max(row_bytes, 1)))
        self.links = np.empty((NUM_LINKS, self.size * num_envs), np.int64)
        self._views: list[tuple[np.ndarray, ...]] = []
        self._kinds: tuple[Any, ...] = ()  # dtype and shape of each of the views
        self.observations, self.tracks = observations, tracks
        if self.size > 1:
            self.observations, self.tracks = nested.map_leaves(self._room, rows)
        plain = [self.observations, *(self.tracks[name] for name in STEP_TRACKS)]
        if self.size > 1 and len(tracks) == len(STEP_TRACKS) and all(type(a) is np.ndarray for a in plain):
            self._views = [tuple(array[k] for array in plain) for k in range(self.size)]
            tracks_of_first: dict[str, Any] = dict(zip(STEP_TRACKS, self._views[0][1:], strict=True))
            self._first = (self._views[0][0], tracks_of_first)
            kinds = [observations, *(tracks[name] for name in STEP_TRACKS)]
            self._kinds = tuple(part for array in kinds for part in (array.dtype, array.shape))

    def _room(self, leaf: np.ndarray) -> np.ndarray:
        return np.empty((self.size, *leaf.shape), leaf.dtype)

    @property
    def is_plain(self) -> bool:
        """Whether rows are plain arrays without extra model outputs."""
        return bool(self._views)

    def fits(self, observations: Any, tracks: dict[str, Any]) -> bool:
        """Whether rows are of the kind that there is room for."""
        rows = (observations, tracks)
        return nested.same_structure(rows, self._structure) and _kinds(rows) == self._leaves

    def put(self, k: int, observations: Any, tracks: dict[str, Any]) -> None:
        """Copy such a row into place k."""
        if self.size == 1:
            self.observations, self.tracks = nested.map_leaves(lambda leaf: leaf[None], (observations, tracks))
            return
        _put(self.observations, k, observations)
        for name, items in tracks.items():
            _put(self.tracks[name], k, items)

    def put_arrays(self, k: int, observations: Any, actions: Any, rewards: Any, ends: Any, cuts: Any) -> bool:
        """Copy a row into place k if it is of the very kind, plain arrays and no extra model outputs; else False.

        A tenth of a microsecond for each column is all there is to save: hence no loop.
        """
        try:
            kinds = (
                observations.dtype,
                observations.shape,
                actions.dtype,
                actions.shape,
                rewards.dtype,
                rewards.shape,
                ends.dtype,
                ends.shape,
                cuts.dtype,
                cuts.shape,
            )
        except AttributeError:
            return False
        if kinds != self._kinds:
            return False
        v0, v1, v2, v3, v4 = self._views[k]
        v0[...], v1[...], v2[...], v3[...], v4[...] = observations, actions, rewards, ends, cuts
        return True

    def first_rows(self, count: int) -> tuple[Any, dict[str, Any]]:
        """Observations [count * N, ...] and tracks [count * N, ...] of the first rows."""
        if count > 1 or not self._views:
            return flat(self.observations, count), self.steps(count)
        return self._first

    def dones(self, start: int, stop: int) -> np.ndarray:
        """Where an ending flag is set in the rows, bool [k, N]."""
        return self.tracks[TERMINATEDS][start:stop] | self.tracks[TRUNCATEDS][start:stop]

    def steps(self, num_rows: int) -> dict[str, Any]:
        """The tracks of the first rows, nested arrays [num_rows * N, ...]."""
        return {name: flat(items, num_rows) for name, items in self.tracks.items()}


def flat(items: Any, num_rows: int) -> Any:
    """The first rows of nested arrays [size, N, ...] as [num_rows * N, ...]."""
    if type(items) is np.ndarray:
        return items[:num_rows].reshape(-1, *items.shape[2:])
    return nested.map_leaves(lambda leaf: leaf[:num_rows].reshape(-1, *leaf.shape[2:]), items)


def _kinds(rows: Any) -> list[tuple[np.dtype, tuple[int, ...]]]:
    return [(leaf.dtype, leaf.shape) for leaf in nested.leaves(rows)]


def _put(staged: Any, k: int, items: Any) -> None:
    nested.map_leaves(lambda room, leaf: room.__setitem__(k, leaf), staged, items)


def cast(name: str, leaf: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The rows of a leaf with the dtype of their space; `TrackMismatch` where that would lose what they are."""
    if leaf.dtype == dtype:
        return leaf
    if not np.can_cast(leaf.dtype, dtype, "same_kind"):
        raise TrackMismatch(f"{name}: rows of {leaf.dtype} in a space of {dtype}; convert them first")
    return leaf.astype(dtype)

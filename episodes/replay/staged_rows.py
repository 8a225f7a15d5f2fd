"""`StagedRows`: the newest rows of N environments, one small copy a column, until they are laid into a ring at once.

One assignment for each column is all that a vector step costs here; what a step means, how it is linked and what makes
way for it is worked out for many rows together.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from episodes.errors import TrackMismatch
from episodes.recorder.row_blocks import takes_memoryview
from episodes.replay.ring.linked_ring import ACTIONS, FLAGS, REWARDS, STEP_TRACKS, TERMINATEDS, TRUNCATEDS
from episodes.replay.ring.step_links import NUM_LINKS
from episodes.tracks import nested

_MOST_STEPS = 32_768  # what is done once for all of them takes as long as some 4,000; twice as many gain nothing
_MOST_ROWS = 4096
_MOST_BYTES = 1 << 20
_FEW_NUMBERS = 16
_ALL = slice(None)  # one that is there already
_REFUSED = (AttributeError, TypeError, ValueError, NotImplementedError)  # by a row that is no plain arrays, or others


class StagedRows:
    """Room for `size` rows like those given, nested arrays [N, ...]; rows so large that one fills it are not copied.

    Attributes:
        observations, tracks: nested arrays [size, N, ...].
        links: room [6, size * N] for the links of their steps; new memory for each stage would cost more than they do.
    """

    def __init__(self, observations: Any, tracks: dict[str, Any], most_rows: int) -> None:
        rows = (observations, tracks)
        self._structure = nested.map_leaves(lambda leaf: None, rows)
        self._leaves = _dtypes_and_shapes(rows)
        row_bytes = sum(leaf.nbytes for leaf in nested.leaves(rows))
        num_envs = len(tracks[REWARDS])
        self.size = max(1, min(most_rows, _MOST_ROWS, _MOST_STEPS // num_envs, _MOST_BYTES // max(row_bytes, 1)))
        self.links = np.empty((NUM_LINKS, self.size * num_envs), np.int64)
        self._views: list[tuple[Any, ...]] = []  # of each row, as far as memoryviews take them, and arrays [N, ...]
        self._actions: Any = None  # dtype and shape of actions [N, ...] that are not numbers
        self.observations, self.tracks = observations, tracks
        if self.size > 1:
            self.observations, self.tracks = nested.map_leaves(self._empty_like, rows)
        plain = [self.observations, *(self.tracks[name] for name in STEP_TRACKS)]
        if self.size > 1 and len(tracks) == len(STEP_TRACKS) and all(type(a) is np.ndarray for a in plain):
            self._create_views(plain, tracks[ACTIONS])

    def _create_views(self, plain: list[np.ndarray], actions: np.ndarray) -> None:
        """Make the views of all rows, and those of the first one."""
        if not all(array.ndim == 2 and takes_memoryview(array.dtype) for array in plain[2:]):
            return
        views = [[array[k] for array in plain] for k in range(self.size)]
        self._first = (views[0][0], {ACTIONS: views[0][1], REWARDS: views[0][2]})
        self._dtype, self._shape = plain[0].dtype, plain[0].shape[1:]
        first_number = 1
        if actions.ndim > 1 or not takes_memoryview(actions.dtype):
            self._actions, first_number = (actions.dtype, actions.shape), 2
        self._views = [(*row[:first_number], *map(memoryview, row[first_number:])) for row in views]

    def _empty_like(self, leaf: np.ndarray) -> np.ndarray:
        """Room for rows that lie in memory as this one does: an array that is the transpose of another is common."""
        if leaf.ndim > 1 and leaf.flags.f_contiguous and not leaf.flags.c_contiguous:
            return np.empty((self.size, *leaf.shape[::-1]), leaf.dtype).transpose(0, *range(leaf.ndim, 0, -1))
        return np.empty((self.size, *leaf.shape), leaf.dtype)

    @property
    def is_plain(self) -> bool:
        """Whether rows are plain arrays without extra model outputs."""
        return bool(self._views)

    def fits(self, observations: Any, tracks: dict[str, Any]) -> bool:
        """Whether rows are of the kind that there is room for."""
        rows = (observations, tracks)
        return nested.same_structure(rows, self._structure) and _dtypes_and_shapes(rows) == self._leaves

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

        A memoryview refuses numbers of another shape or dtype, in the time that numpy needs to tell them. A tenth of a
        microsecond for each column is all there is to save: hence no loop.
        """
        try:
            if observations.shape != self._shape or observations.dtype != self._dtype:
                return False
            v0, v1, v2, v3, v4 = self._views[k]
            if self._actions is None:
                v1[_ALL] = actions
            elif (actions.dtype, actions.shape) == self._actions:
                v1[...] = actions
            else:
                return False
            v2[_ALL] = rewards
            v3[_ALL] = ends
            v4[_ALL] = cuts
            v0[...] = observations
        except _REFUSED:
            return False
        return True

    def first_rows(self, count: int) -> tuple[Any, dict[str, Any]]:
        """Observations [count * N, ...] and tracks [count * N, ...] of the first rows."""
        if count > 1 or not self._views:
            return flatten_rows(self.observations, count), self.steps(count)
        return self._first

    def dones(self, start: int, stop: int) -> np.ndarray:
        """Where an ending flag is set in the rows, bool [k, N]."""
        return self.tracks[TERMINATEDS][start:stop] | self.tracks[TRUNCATEDS][start:stop]

    def steps(self, num_rows: int) -> dict[str, Any]:
        """The tracks of the first rows but for the flags, nested arrays [num_rows * N, ...]."""
        return {name: flatten_rows(items, num_rows) for name, items in self.tracks.items() if name not in FLAGS}


def flatten_rows(items: Any, num_rows: int) -> Any:
    """The first rows of nested arrays [size, N, ...] as [num_rows * N, ...]."""
    if type(items) is np.ndarray:
        return _flatten(items[:num_rows])
    return nested.map_leaves(lambda leaf: _flatten(leaf[:num_rows]), items)


def _flatten(rows: np.ndarray) -> np.ndarray:
    """Rows [k, N, ...] as [k * N, ...]. Of transposed ones with few numbers, one after the other is copied, in a third
    of the time."""
    if rows.ndim == 3 and rows.shape[2] <= _FEW_NUMBERS and not rows.flags.c_contiguous:
        in_order = np.empty(rows.shape, rows.dtype)
        for i in range(rows.shape[2]):
            in_order[..., i] = rows[..., i]
        rows = in_order
    return rows.reshape(-1, *rows.shape[2:])


def _dtypes_and_shapes(rows: Any) -> list[tuple[np.dtype, tuple[int, ...]]]:
    return [(leaf.dtype, leaf.shape) for leaf in nested.leaves(rows)]


def _put(staged: Any, k: int, items: Any) -> None:
    nested.map_leaves(lambda room, leaf: room.__setitem__(k, leaf), staged, items)


def cast_to_space(name: str, leaf: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The rows of a leaf with the dtype of their space; `TrackMismatch` where that would lose what they are."""
    if leaf.dtype == dtype:
        return leaf
    if not np.can_cast(leaf.dtype, dtype, "same_kind"):
        raise TrackMismatch(f"{name}: rows of {leaf.dtype} in a space of {dtype}; convert them first")
    return leaf.astype(dtype)

"""`StagedRows`: arrays for recorded vector steps that wait in memory until they are written to the replay ring.

A vector step costs one assignment per column here. Links, evictions and classifications are computed for many rows at
once.

                 env 0   env 1   ...   env N-1
    row 0          .       .             .         one array [size, N, ...] per column
    row 1          .       .             .
    ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.errors import TrackMismatch
from episodes.replay.ring.linked_ring import ACTIONS, FLAGS, REWARDS, STEP_TRACKS, TERMINATEDS, TRUNCATEDS
from episodes.replay.ring.step_links import NUM_LINKS
from episodes.tracks import nested

if TYPE_CHECKING:
    from episodes.data_types import NestedArrays

_MOST_STEPS = 32_768  # the fixed cost of a flush is that of 4,000 steps, so larger stages gain nothing
_MOST_ROWS = 4096
_MOST_BYTES = 1 << 20
_FEW_NUMBERS = 16
_IN_MEMORYVIEWS = "?bBhHiIlLqQfd"  # dtypes of memoryviews that can be assigned
_ALL = slice(None)
_REFUSED = (AttributeError, TypeError, ValueError, NotImplementedError)  # errors for rows that do not fit


class StagedRows:
    """Arrays [size, N, ...] that hold up to `size` recorded vector steps of equal dtypes and shapes.

    A row that is so large that it fills the stage is not copied.

    Args:
        observations: nested arrays [N, ...] of a row.
        tracks: nested arrays [N, ...] of the row's step tracks, by name.
        most_rows: upper bound of `size`.

    Attributes:
        observations: nested arrays [size, N, ...].
        tracks: nested arrays [size, N, ...] by name.
        links: memory [6, size * N] for the links of the steps. It is reused, since allocating it costs more than
                computing the links.
    """

    def __init__(self, observations: NestedArrays, tracks: dict[str, Any], most_rows: int) -> None:
        rows = (observations, tracks)
        self._structure = nested.map_leaves(lambda leaf: None, rows)
        self._leaves = _dtypes_and_shapes(rows)
        row_bytes = sum(leaf.nbytes for leaf in nested.leaves(rows))
        num_envs = len(tracks[REWARDS])
        self.size = max(1, min(most_rows, _MOST_ROWS, _MOST_STEPS // num_envs, _MOST_BYTES // max(row_bytes, 1)))
        self.links = np.empty((NUM_LINKS, self.size * num_envs), np.int64)
        self._views: list[tuple[Any, ...]] = []  # of each row: arrays, and memoryviews of columns of numbers
        self._actions: Any = None  # dtype and shape of actions [N, ...] with several numbers each
        self.observations, self.tracks = observations, tracks
        if self.size > 1:
            self.observations, self.tracks = nested.map_leaves(self._empty_like, rows)
        plain = [self.observations, *(self.tracks[name] for name in STEP_TRACKS)]
        if self.size > 1 and len(tracks) == len(STEP_TRACKS) and all(type(a) is np.ndarray for a in plain):
            self._create_views(plain, tracks[ACTIONS])

    def _create_views(self, plain: list[np.ndarray], actions: np.ndarray) -> None:
        """Create a memoryview for each column of each vector step, because copies into memoryviews are fast."""
        if not all(array.ndim == 2 and array.dtype.char in _IN_MEMORYVIEWS for array in plain[2:]):
            return
        views = [[array[k] for array in plain] for k in range(self.size)]
        self._first = (views[0][0], {ACTIONS: views[0][1], REWARDS: views[0][2]})
        self._dtype, self._shape = plain[0].dtype, plain[0].shape[1:]
        first_number = 1
        if actions.ndim > 1 or actions.dtype.char not in _IN_MEMORYVIEWS:
            self._actions, first_number = (actions.dtype, actions.shape), 2
        self._views = [(*row[:first_number], *map(memoryview, row[first_number:])) for row in views]

    def _empty_like(self, leaf: np.ndarray) -> np.ndarray:
        """Allocate an array [size, ...] for `size` arrays like `leaf`, each with the memory layout of `leaf`.

        Transposed arrays are common.
        """
        if leaf.ndim > 1 and leaf.flags.f_contiguous and not leaf.flags.c_contiguous:
            return np.empty((self.size, *leaf.shape[::-1]), leaf.dtype).transpose(0, *range(leaf.ndim, 0, -1))
        return np.empty((self.size, *leaf.shape), leaf.dtype)

    @property
    def is_plain(self) -> bool:
        """Whether `put_arrays` can be used: all columns are plain numpy arrays, without extra model outputs."""
        return bool(self._views)

    def fits(self, observations: NestedArrays, tracks: dict[str, Any]) -> bool:
        """Return True if a vector step has the nesting, dtypes and shapes of these arrays."""
        rows = (observations, tracks)
        return nested.same_structure(rows, self._structure) and _dtypes_and_shapes(rows) == self._leaves

    def put(self, k: int, observations: NestedArrays, tracks: dict[str, Any]) -> None:
        """Copy a vector step, whose dtypes and shapes must fit, to index `k` of the arrays."""
        if self.size == 1:
            self.observations, self.tracks = nested.map_leaves(lambda leaf: leaf[None], (observations, tracks))
            return
        _put(self.observations, k, observations)
        for name, items in tracks.items():
            _put(self.tracks[name], k, items)

    def put_arrays(
        self,
        k: int,
        observations: Any,
        actions: Any,
        rewards: Any,
        ends: Any,
        cuts: Any,
    ) -> bool:
        """Copy a vector step of plain numpy arrays to index `k`. Return False if dtypes or shapes differ. `ends` and
        `cuts` are the terminated and truncated flags.

        A memoryview rejects other shapes and dtypes in the time that numpy needs to compare them. There is no loop,
        since it would cost as much as the copies.
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
        """Return observations and step arrays (no ending flags) of the first `count` vector steps, [count * N, ...]."""
        if count > 1 or not self._views:
            return flatten_rows(self.observations, count), self.steps(count)
        return self._first

    def dones(self, start: int, stop: int) -> np.ndarray:
        """Return which episodes terminated or were truncated in the vector steps [start, stop), bool [k, N]."""
        return self.tracks[TERMINATEDS][start:stop] | self.tracks[TRUNCATEDS][start:stop]

    def steps(self, num_rows: int) -> dict[str, Any]:
        """Return actions, rewards and extra outputs of the first `num_rows` vector steps, [num_rows * N, ...] each."""
        return {name: flatten_rows(items, num_rows) for name, items in self.tracks.items() if name not in FLAGS}


def flatten_rows(items: object, num_rows: int) -> Any:
    """Return the first `num_rows` items of nested arrays [size, N, ...], reshaped to [num_rows * N, ...]."""
    if type(items) is np.ndarray:
        return _flatten(items[:num_rows])
    return nested.map_leaves(lambda leaf: _flatten(leaf[:num_rows]), items)


def _flatten(rows: np.ndarray) -> np.ndarray:
    """Reshape an array [k, N, ...] to [k * N, ...].

    Transposed rows of few numbers are copied number by number, which is faster.
    """
    if rows.ndim == 3 and rows.shape[2] <= _FEW_NUMBERS and not rows.flags.c_contiguous:
        in_order = np.empty(rows.shape, rows.dtype)
        for i in range(rows.shape[2]):
            in_order[..., i] = rows[..., i]
        rows = in_order
    return rows.reshape(-1, *rows.shape[2:])


def _dtypes_and_shapes(rows: NestedArrays) -> list[tuple[np.dtype, tuple[int, ...]]]:
    return [(leaf.dtype, leaf.shape) for leaf in nested.leaves(rows)]


def _put(staged: NestedArrays, k: int, items: object) -> None:
    nested.map_leaves(lambda room, leaf: room.__setitem__(k, leaf), staged, items)


def cast_to_space(name: str, leaf: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Convert a vector step's values to the dtype of their space. Raise `TrackMismatch` if values could be lost."""
    if leaf.dtype == dtype:
        return leaf
    if not np.can_cast(leaf.dtype, dtype, "same_kind"):
        raise TrackMismatch(f"{name}: rows of {leaf.dtype} in a space of {dtype}; convert them first")
    return leaf.astype(dtype)

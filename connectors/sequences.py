"""Index arithmetic for sequences: parts of episodes are cut into padded rows of at most `max_seq_len` steps.

A column with one row per step, [S, ...], becomes [R, max_seq_len, ...]. Short rows are padded with zeros on the right.
A row has steps of one episode only, and the rows of an episode are consecutive.

    steps of two episodes       a0 a1 a2 a3 a4 | b0 b1          [S = 7]
    max_seq_len = 3             a0 a1 a2                        [R = 3, 3]
                                a3 a4 .
                                b0 b1 .
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from connectors.ragged_checks import check_padded_column
from episodes.data_types import NestedArrays
from episodes.errors import TrackMismatch
from episodes.tracks import nested
from episodes.tracks.infos import Infos
from episodes.tracks.stacking import object_array
from episodes.tracks.validation import checked_count


@dataclass(frozen=True)
class Sequences:
    """Positions of the steps of several parts of episodes in R padded rows of at most `max_seq_len` steps."""

    episodes: np.ndarray  # [R] index of the row's episode
    starts: np.ndarray  # [R] index of the row's first step in its chunk
    lengths: np.ndarray  # [R] number of steps of the row
    lasts: np.ndarray  # [R] bool: the row ends its chunk
    max_seq_len: int

    @classmethod
    def of(cls, lengths: np.ndarray, max_seq_len: int, *, with_empty: bool = False) -> Sequences:
        """Return how parts of episodes with `lengths` [n] steps are cut into padded rows of at most `max_seq_len`
        steps.

        A part without steps has no row, or one empty row if `with_empty`.

        Raises:
            InvalidArgument: `max_seq_len` is not an int of at least 1.
        """
        checked_count("max_seq_len", max_seq_len)
        counts = np.maximum(-(-lengths // max_seq_len), 1 if with_empty else 0)
        ends = np.cumsum(counts)
        episodes = np.repeat(np.arange(len(lengths)), counts)
        starts = (np.arange(len(episodes)) - (ends - counts)[episodes]) * max_seq_len
        remaining = lengths[episodes] - starts
        return cls(episodes, starts, np.minimum(remaining, max_seq_len), remaining <= max_seq_len, max_seq_len)

    def __len__(self) -> int:
        return len(self.episodes)

    @cached_property
    def num_steps(self) -> int:
        """Number of steps in all rows, without padding."""
        return int(self.lengths.sum())

    @cached_property
    def mask(self) -> np.ndarray:
        """Mask of the padded rows, bool [R, max_seq_len]: True for steps, False for padding."""
        return np.arange(self.max_seq_len) < self.lengths[:, None]

    @cached_property
    def _steps(self) -> np.ndarray:
        """Index of the step at each position of the padded rows, int [R * max_seq_len]. It is 0 for padding."""
        begins = np.cumsum(self.lengths) - self.lengths
        places = begins[:, None] + np.arange(self.max_seq_len)
        return np.where(self.mask, places, 0).ravel()

    @cached_property
    def _padding(self) -> np.ndarray:
        return np.flatnonzero(~self.mask)

    def pad(self, column: NestedArrays, name: str = "column") -> Any:
        """Return a column with one row per step, nested arrays [S, ...], as padded rows [R, max_seq_len, ...].

        Padding is zero, or an empty dict in object arrays such as infos.

        Raises:
            TrackMismatch: the column does not have one row per step, or is ragged.
        """
        return nested.map_leaves(lambda leaf: self._pad_leaf(leaf, name), column)

    def _pad_leaf(self, leaf: np.ndarray | Infos, name: str) -> np.ndarray:
        """Return one array of a column as padded rows. Raise `TrackMismatch` if it does not have one row per step."""
        if isinstance(leaf, Infos):
            leaf = object_array(leaf)
        check_padded_column(name, leaf)
        if len(leaf) != self.num_steps:
            raise TrackMismatch(
                f"column {name!r} has {len(leaf)} rows for {self.num_steps} steps; it must have one a step"
            )
        if not len(leaf):
            return np.zeros((len(self), self.max_seq_len, *leaf.shape[1:]), leaf.dtype)
        out = leaf.take(self._steps, axis=0)
        out[self._padding] = {} if leaf.dtype == object else 0
        return out.reshape(len(self), self.max_seq_len, *leaf.shape[1:])

    def minibatches(self, size: int) -> Iterator[slice]:
        """Yield slices of the padded rows, one per minibatch of about `size` positions, padding included."""
        rows = max(size // self.max_seq_len, 1)
        return (slice(start, min(start + rows, len(self))) for start in range(0, len(self), rows))


def num_padded_rows(lengths: np.ndarray, max_seq_len: int) -> int:
    """Return the number of padded rows of `max_seq_len` steps into which parts of episodes with `lengths` steps are
    cut.
    """
    return int((-(-lengths // max_seq_len)).sum())


def padded_step_indices(lengths: np.ndarray, max_seq_len: int) -> np.ndarray:
    """Return the index of the step at each position of the padded rows, int [R, max_seq_len]. It is -1 for padding."""
    return Sequences.of(lengths, max_seq_len).pad(np.arange(1, int(lengths.sum()) + 1)) - 1

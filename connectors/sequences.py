"""Index arithmetic for sequences: episodes that are cut into rows of at most `max_seq_len` steps.

A column with one row per step, [S, ...], becomes [R, max_seq_len, ...]. Short rows are padded with zeros on the right.
A row has steps of one episode only, and the rows of an episode are consecutive.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from episodes.errors import TrackMismatch
from episodes.tracks import nested
from episodes.tracks.infos import Infos
from episodes.tracks.validation import checked_count


@dataclass(frozen=True)
class Sequences:
    """Positions of the steps of n parts of episodes in R padded rows of at most `max_seq_len` steps."""

    episodes: np.ndarray  # [R] index of the row's episode
    starts: np.ndarray  # [R] index of the row's first step in its chunk
    lengths: np.ndarray  # [R] number of steps of the row
    lasts: np.ndarray  # [R] bool: the row ends its chunk
    max_seq_len: int

    @classmethod
    def of(cls, lengths: np.ndarray, max_seq_len: int, *, with_empty: bool = False) -> Sequences:
        """Return the arrangement in padded rows of n parts of episodes with `lengths` [n] steps.

        A chunk without steps has no row, or one empty row if `with_empty`.
        """
        check_max_seq_len(max_seq_len)
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
        """True for positions of the padded rows that are steps, bool [R, max_seq_len]."""
        return np.arange(self.max_seq_len) < self.lengths[:, None]

    @cached_property
    def _steps(self) -> np.ndarray:
        """Index of the step at each position of the padded rows, int [R * max_seq_len]; 0 for padding."""
        begins = np.cumsum(self.lengths) - self.lengths
        places = begins[:, None] + np.arange(self.max_seq_len)
        return np.where(self.mask, places, 0).ravel()

    @cached_property
    def _padding(self) -> np.ndarray:
        return np.flatnonzero(~self.mask)

    def pad(self, column: Any, name: str = "column") -> Any:
        """Return a column of S steps, nested arrays [S, ...], as padded rows [R, max_seq_len, ...].

        Raises:
            TrackMismatch: the column does not have one row per step.
        """
        return nested.map_leaves(lambda leaf: self._padded(leaf, name), column)

    def _padded(self, leaf: Any, name: str) -> np.ndarray:
        if isinstance(leaf, Infos):
            leaf = _objects(leaf)
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
        """Yield slices of the R rows, each with about `size` positions including padding."""
        rows = max(size // self.max_seq_len, 1)
        return (slice(start, min(start + rows, len(self))) for start in range(0, len(self), rows))


def padded_rows(lengths: np.ndarray, max_seq_len: int) -> int:
    """Return the number of padded rows that parts of episodes with `lengths` steps need."""
    return int((-(-lengths // max_seq_len)).sum())


def padded_numbers(lengths: np.ndarray, max_seq_len: int) -> np.ndarray:
    """Return the index of the step at each position of padded rows, int [R, max_seq_len], -1 for padding."""
    return Sequences.of(lengths, max_seq_len).pad(np.arange(1, int(lengths.sum()) + 1)) - 1


def check_max_seq_len(max_seq_len: int) -> int:
    """Return `max_seq_len`, or raise `InvalidArgument` if it is not an int of at least 1."""
    return checked_count("max_seq_len", max_seq_len)


def _objects(items: Infos) -> np.ndarray:
    array = np.empty(len(items), object)
    array[:] = list(items)
    return array

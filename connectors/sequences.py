"""Episodes cut into rows of at most `max_seq_len` steps: where each step lies, as index arithmetic.

A column of real steps [S, ...] becomes [R, max_seq_len, ...], zero on the right where a row is shorter. No row mixes
episodes, and the rows of an episode follow one another.
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
    """R rows of steps."""

    episodes: np.ndarray  # [R] which episode each row is a piece of
    starts: np.ndarray  # [R] the row's first step in its chunk
    lengths: np.ndarray  # [R] real steps of the row
    lasts: np.ndarray  # [R] bool: the row ends its chunk
    max_seq_len: int

    @classmethod
    def of(cls, lengths: np.ndarray, max_seq_len: int, *, with_empty: bool = False) -> Sequences:
        """The rows of chunks of `lengths` [n] steps; a chunk without steps has none, or one empty row `with_empty`."""
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
        """The number of real steps of all rows."""
        return int(self.lengths.sum())

    @cached_property
    def mask(self) -> np.ndarray:
        """Which places hold real steps, bool [R, max_seq_len]."""
        return np.arange(self.max_seq_len) < self.lengths[:, None]

    @cached_property
    def _steps(self) -> np.ndarray:
        """The step of a column [S] for each place [R * max_seq_len]; 0 for the empty ones."""
        begins = np.cumsum(self.lengths) - self.lengths
        places = begins[:, None] + np.arange(self.max_seq_len)
        return np.where(self.mask, places, 0).ravel()

    @cached_property
    def _padding(self) -> np.ndarray:
        return np.flatnonzero(~self.mask)

    def pad(self, column: Any, name: str = "column") -> Any:
        """A column, nested arrays [S, ...], as rows [R, max_seq_len, ...]; TrackMismatch for another length."""
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
        """Slices of rows that hold about `size` places each."""
        rows = max(size // self.max_seq_len, 1)
        return (slice(start, min(start + rows, len(self))) for start in range(0, len(self), rows))


def padded_rows(lengths: np.ndarray, max_seq_len: int) -> int:
    """How many rows chunks of these lengths make."""
    return int((-(-lengths // max_seq_len)).sum())


def padded_numbers(lengths: np.ndarray, max_seq_len: int) -> np.ndarray:
    """Numbers of all steps of chunks as rows [R, max_seq_len], -1 where there is none."""
    return Sequences.of(lengths, max_seq_len).pad(np.arange(1, int(lengths.sum()) + 1)) - 1


def check_max_seq_len(max_seq_len: int) -> int:
    """The number, if it is at least 1; else InvalidArgument."""
    return checked_count("max_seq_len", max_seq_len)


def _objects(items: Infos) -> np.ndarray:
    array = np.empty(len(items), object)
    array[:] = list(items)
    return array

"""Index arithmetic that finds where the episodes of each environment begin and end in recorded vector steps.

Row 0 has the newest observations at the last take (or the reset). Each later row is a step of every environment that is
not reset in it. An episode ends at row r, or was cut there. The next one begins at row r + 1 (a reset), or at row r
itself if the last observation was stored elsewhere (`replaced`: same-step autoreset, and calls of reset). So a chunk is
one contiguous run of rows of one environment, and the runs of all environments follow each other:

    row          0  1  2  3  4  5
    env 0        a  a  a* r  b  b         a* ends, r is the reset observation of b
    env 1        c  c  c  c  c  c
    chunks       a: rows 1..2, b: rows 4..5, c: rows 1..5
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Chunks:
    """Positions of n episode parts in a recording: environment, last row, length and lookback, int [n] each."""

    envs: np.ndarray  # [n] int
    last_rows: np.ndarray  # [n] int, the row of the last step
    lengths: np.ndarray  # [n] int, T
    lookbacks: np.ndarray  # [n] int, L

    @property
    def start_rows(self) -> np.ndarray:
        """Row of the recording with the first observation of each chunk after its lookback, int [n]."""
        return self.last_rows - self.lengths

    def places(self) -> list[tuple[int, int]]:
        """Return the keys (first row, environment) that identify the chunks between two calls of `take`."""
        return list(zip(self.start_rows.tolist(), self.envs.tolist(), strict=True))

    def select(self, chosen: np.ndarray) -> Chunks:
        """Return the chunks at the given indices or mask."""
        return Chunks(self.envs[chosen], self.last_rows[chosen], self.lengths[chosen], self.lookbacks[chosen])

    def step_index(self, num_envs: int) -> np.ndarray:
        """Return the flat index (row * N + env) of every step of all chunks, lookbacks included, int [sum(L + T)]."""
        return _runs(self.start_rows - self.lookbacks + 1, self.lookbacks + self.lengths, self.envs, num_envs)

    def observation_index(self, num_envs: int) -> np.ndarray:
        """Return the flat index (row * N + env) of each observation of all chunks, int [sum(L + T + 1)]."""
        return _runs(self.start_rows - self.lookbacks, self.lookbacks + self.lengths + 1, self.envs, num_envs)


def _runs(first_rows: np.ndarray, sizes: np.ndarray, envs: np.ndarray, num_envs: int) -> np.ndarray:
    """Return the indices row * N + environment of consecutive rows of each chunk, from `first_rows` on, chunk after
    chunk.
    """
    ends = sizes.cumsum()
    index = ((first_rows - ends + sizes) * num_envs + envs).repeat(sizes)
    index += np.arange(0, len(index) * num_envs, num_envs)
    return index


def find_chunks(done: np.ndarray, replaced: np.ndarray, resets: np.ndarray, room: np.ndarray, *, base: int) -> Chunks:
    """Return the `Chunks` (episode parts) that were recorded since row `base`, both ended and ongoing.

    Args:
        done: whether the step of a row ended an episode, bool [K + 1, N] from row `base` on.
        replaced: whether the observation of a row is already the next episode's first one, bool [K + 1, N].
        resets: whether a row is a reset and no step, bool [K + 1, N].
        room: number of lookback items for a chunk that begins at row `base`, int [N].
        base: first row.
    """
    num_rows = len(done) - 1
    ends = done[1:] | replaced[1:]
    ends[:-1] |= resets[2:]  # it ended, or it was cut
    ends[-1:] = True
    ends &= ~resets[1:]
    envs, rows = np.divmod(ends.T.reshape(-1).nonzero()[0], max(num_rows, 1))
    # Each run begins at the end of the run before it, or at the base row, and later by the reset rows there.
    first = np.ones(len(envs), bool)
    np.not_equal(envs[1:], envs[:-1], out=first[1:])
    ends_at, starts = rows + 1, np.zeros(len(envs), np.intp)
    starts[1:] = ends_at[:-1]
    starts[first] = 0
    while np.count_nonzero(later := resets[1:][starts, envs]):  # several if an environment failed right after its reset
        starts += later
    return Chunks(envs, ends_at + base, ends_at - starts, np.where(first & (starts == 0), room[envs], 0))

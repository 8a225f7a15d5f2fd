"""Where episodes lie in the rows of a vector environment: index arithmetic on whole arrays, no data.

Row 0 is where recording went on: the newest observations at the last take (or the reset). Each later row is a step
of every environment but those whose reset it is. The next episode begins at row r + 1 (a reset), or at row r itself,
because the last observation was put aside (`replaced`: same-step autoreset, and every call of reset). So a chunk is
always one run of rows of one environment, and env after env the runs follow each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Chunks:
    """Runs of rows, environment after environment."""

    envs: np.ndarray  # [n] int
    last_rows: np.ndarray  # [n] int, the row of the last step
    lengths: np.ndarray  # [n] int, T
    lookbacks: np.ndarray  # [n] int, L

    @property
    def start_rows(self) -> np.ndarray:
        """The row [n] of each chunk's first observation, its lookback not counted."""
        return self.last_rows - self.lengths

    def places(self) -> list[tuple[int, int]]:
        """(first row, environment) of each, which tells chunks apart between two takes."""
        return list(zip(self.start_rows.tolist(), self.envs.tolist(), strict=True))

    def select(self, chosen: np.ndarray) -> Chunks:
        """The chosen chunks (a bool mask or indices)."""
        return Chunks(self.envs[chosen], self.last_rows[chosen], self.lengths[chosen], self.lookbacks[chosen])

    def step_index(self, num_envs: int) -> np.ndarray:
        """row * N + env of each step, lookback included, [sum(L + T)]."""
        return _runs(self.start_rows - self.lookbacks + 1, self.lookbacks + self.lengths, self.envs, num_envs)

    def observation_index(self, num_envs: int) -> np.ndarray:
        """row * N + env of each observation, lookback included, [sum(L + T + 1)]."""
        return _runs(self.start_rows - self.lookbacks, self.lookbacks + self.lengths + 1, self.envs, num_envs)


def _runs(first_rows: np.ndarray, sizes: np.ndarray, envs: np.ndarray, num_envs: int) -> np.ndarray:
    ends = sizes.cumsum()
    index = ((first_rows - ends + sizes) * num_envs + envs).repeat(sizes)
    index += np.arange(0, len(index) * num_envs, num_envs)
    return index


def find_chunks(done: np.ndarray, replaced: np.ndarray, resets: np.ndarray, room: np.ndarray, *, base: int) -> Chunks:
    """The chunks recorded since row `base`, ongoing ones included when they have a step.

    Args:
        done: [K + 1, N] bool from row `base` on: the step of this row ended an episode.
        replaced: [K + 1, N] bool: the observation of this row is already the next episode's first.
        resets: [K + 1, N] bool: this row is a reset and no step.
        room: [N] int, how many lookback items a chunk that begins at row `base` gets.
    """
    num_rows = len(done) - 1
    ends = done[1:] | replaced[1:]
    ends[-1:] = True
    ends &= ~resets[1:]
    envs, rows = np.divmod(ends.T.reshape(-1).nonzero()[0], max(num_rows, 1))
    # Each run begins where the run before it ends, or at the base row; a row later when a reset row lies between.
    first = np.ones(len(envs), bool)
    np.not_equal(envs[1:], envs[:-1], out=first[1:])
    ends_at, starts = rows + 1, np.zeros(len(envs), np.intp)
    starts[1:] = ends_at[:-1]
    starts[first] = 0
    starts += resets[1:][starts, envs]
    return Chunks(envs, ends_at + base, ends_at - starts, np.where(first & (starts == 0), room[envs], 0))

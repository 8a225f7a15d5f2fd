"""`StepTable`: where the steps of many episodes lie, a line an episode, and whose each step is."""

from __future__ import annotations

import numpy as np

END, LENGTH, FLAGS, LOOKBACK, BEFORE, AFTER, FIRST_BASE = range(7)
"""What a line says: the number after its last step, its steps, how it ends (1: terminated, 2: truncated), its items
before step 0, rows of its record batch before and after its own, and then for each track the unit of step number 0."""

_LINE = 8  # int64 in a line of the processor's cache
_PER_EPISODE = 4  # buckets


class StepTable:
    """The lines of all episodes, whose steps are numbered 0, 1, ... `num_steps` - 1 one episode after another.

    Args:
        lines: int64 [n, FIRST_BASE + tracks]; bases are counted from the episode's own step 0.
        steps: of each track, the units from one item to the next.

    What is read of an episode is one line of memory: `lines[e, FIRST_BASE + k] + number * steps[k]` is the unit of an
    item of track k.
    """

    def __init__(self, lines: np.ndarray, steps: np.ndarray) -> None:
        lengths = lines[:, LENGTH]
        self.ends = np.cumsum(lengths)
        self.num_steps = int(self.ends[-1]) if len(lines) else 0
        width = -(-lines.shape[1] // _LINE) * _LINE
        whole = np.zeros((len(lines), width), np.int64)
        whole[:, : lines.shape[1]] = lines
        whole[:, END] = self.ends
        whole[:, FIRST_BASE : lines.shape[1]] -= (self.ends - lengths)[:, None] * steps
        self._lines = whole
        self._rows = whole.view(f"V{8 * width}")[:, 0] if len(lines) else np.zeros(0, f"V{8 * width}")
        self._width = width
        per_episode = max(self.num_steps // max(len(lines), 1), 1)
        self._shift = max(int(per_episode // _PER_EPISODE).bit_length() - 1, 0)
        firsts = np.arange(0, self.num_steps, 1 << self._shift)
        self._buckets = self.ends.searchsorted(firsts, side="right").astype(np.int32)

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def lengths(self) -> np.ndarray:
        """The steps of each episode."""
        return self._lines[:, LENGTH]

    @property
    def lookbacks(self) -> np.ndarray:
        """The items of each episode before its step 0."""
        return self._lines[:, LOOKBACK]

    @property
    def starts(self) -> np.ndarray:
        """The number of each episode's first step."""
        return self.ends - self.lengths

    def episodes_of(self, numbers: np.ndarray) -> np.ndarray:
        """The episodes [n] of the steps with these numbers [n].

        An episode of the bucket that a number is in is near; from there it is mostly a step or two.
        """
        found = self._buckets[numbers >> self._shift].astype(np.int64)
        for _ in range(2 * _PER_EPISODE):
            behind = self.ends[found] <= numbers
            if not behind.any():
                return found
            found += behind
        late = np.flatnonzero(self.ends[found] <= numbers)
        found[late] = self.ends.searchsorted(numbers[late], side="right")
        return found

    def lines(self, episodes: np.ndarray) -> np.ndarray:
        """The lines [n, ...] of episodes [n]."""
        return self._rows[episodes].view(np.int64).reshape(len(episodes), self._width)

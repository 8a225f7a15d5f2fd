"""`SamplesPerInsert`: how often a stored step is drawn, kept within bounds by a loop that asks."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from episodes.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class SamplesPerInsert:
    """A limit on samples per insert (Reverb's `SampleToInsertRatio`), asked by `buffer.may_sample` and `may_add`.

    At most `ratio` samples are due for each step that was added after the first `min_size`:

        due = ratio * (num_added - min_size) - num_sampled

    Args:
        ratio: samples for each step.
        min_size: nothing is drawn before so many steps are there.
        slack: as soon as more than so many samples are due, adding waits for drawing; it never does by default. Give
            at least the size of a draw: with less, both may wait for each other.

    >>> limit = SamplesPerInsert(8, min_size=1000, slack=512)
    >>> limit.may_sample(256, size=1032, num_added=1032, num_sampled=0), limit.may_add(num_added=1100, num_sampled=0)
    (True, False)
    """

    ratio: float
    min_size: int = 1
    slack: float = inf

    def __post_init__(self) -> None:
        if not (0 < self.ratio < inf and self.min_size >= 1 and self.slack >= 0):
            raise InvalidArgument(f"{self}: give a finite ratio > 0, min_size >= 1 and slack >= 0")

    def due(self, num_added: int, num_sampled: int) -> float:
        """How many samples may be drawn now."""
        return self.ratio * max(num_added - self.min_size, 0) - num_sampled

    def may_sample(self, n: int, *, size: int, num_added: int, num_sampled: int) -> bool:
        """Whether `n` samples may be drawn of a buffer that holds `size` steps."""
        return size >= self.min_size and self.due(num_added, num_sampled) >= n

    def may_add(self, *, num_added: int, num_sampled: int) -> bool:
        """Whether steps may be added."""
        return self.due(num_added, num_sampled) <= self.slack

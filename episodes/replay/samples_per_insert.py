"""How often a stored step is drawn: counted by every buffer, and kept within bounds by a loop that asks."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from math import inf
from typing import Any

from episodes.errors import InvalidArgument, WrongType


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

    def num_allowed(self, num_added: int, num_sampled: int) -> float:
        """How many samples may be drawn now."""
        return self.ratio * max(num_added - self.min_size, 0) - num_sampled

    def may_sample(self, n: int, *, size: int, num_added: int, num_sampled: int) -> bool:
        """Whether `n` samples may be drawn of a buffer that holds `size` steps."""
        return size >= self.min_size and self.num_allowed(num_added, num_sampled) >= n

    def may_add(self, *, num_added: int, num_sampled: int) -> bool:
        """Whether steps may be added."""
        return self.num_allowed(num_added, num_sampled) <= self.slack


class SampleCounts:
    """What a buffer counts of its steps.

    Attributes:
        limit: None for no limit.
        num_sampled: how many steps were ever drawn to learn from.
    """

    limit: SamplesPerInsert | None = None
    num_sampled: int = 0

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def num_added(self) -> int:
        """The number of steps ever added."""

    @property
    def num_evicted(self) -> int:
        """The number of steps that were added and are no longer there."""
        return self.num_added - len(self)

    @property
    def samples_per_insert(self) -> float:
        """How often an added step was drawn, on average."""
        return self.num_sampled / max(self.num_added, 1)

    @property
    def counts(self) -> str:
        """All counts, in words."""
        counted = f"{self.num_added} added, {self.num_evicted} evicted, {self.num_sampled} sampled"
        return f"{counted}: {self.samples_per_insert:.3g} per insert"

    def may_sample(self, n: int = 1) -> bool:
        """Whether `n` steps may be drawn now: there are some, and the `limit` allows it."""
        limit, counts = self.limit, {"num_added": self.num_added, "num_sampled": self.num_sampled}
        return len(self) > 0 and (limit is None or limit.may_sample(n, size=len(self), **counts))

    def may_add(self) -> bool:
        """Whether steps may be added now, as the `limit` sees it."""
        return self.limit is None or self.limit.may_add(num_added=self.num_added, num_sampled=self.num_sampled)


def checked_limit(limit: Any) -> SamplesPerInsert | None:
    """The limit, or None; `WrongType` for anything else."""
    if limit is not None and not isinstance(limit, SamplesPerInsert):
        raise WrongType(f"limit={limit!r}: give a SamplesPerInsert, or None for no limit")
    return limit

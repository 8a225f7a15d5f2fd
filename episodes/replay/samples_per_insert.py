"""Limit on the ratio of sampled steps to added steps of a replay buffer."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from math import inf

from episodes.errors import InvalidArgument, WrongType


@dataclass(frozen=True, slots=True)
class SamplesPerInsert:
    """Limit on how often steps are sampled per added step, like Reverb's `SampleToInsertRatio`.

    It is read through `buffer.may_sample` and `buffer.may_add`. At most `ratio` samples are allowed for each step added
    after the first `min_size`:

        num_allowed = ratio * (num_added - min_size) - num_sampled

    Args:
        ratio: samples per added step.
        min_size: nothing may be sampled before this number of steps is stored.
        slack: steps may not be added while more than `slack` samples are allowed. By default they always may. Give at
            least the size of a batch; with less, adding and sampling may wait for each other.

    Raises:
        InvalidArgument: `ratio` is not a finite number above 0, `min_size` is below 1, or `slack` is negative.

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
        """Return how many more steps may be sampled at the given counts. Negative means too many were sampled."""
        return self.ratio * max(num_added - self.min_size, 0) - num_sampled

    def may_sample(self, n: int, *, size: int, num_added: int, num_sampled: int) -> bool:
        """Return True if the limit allows sampling `n` more steps from a buffer that stores `size` steps."""
        return size >= self.min_size and self.num_allowed(num_added, num_sampled) >= n

    def may_add(self, *, num_added: int, num_sampled: int) -> bool:
        """Return True if the limit allows adding steps, that is, if enough steps were sampled so far."""
        return self.num_allowed(num_added, num_sampled) <= self.slack


class SampleCounts:
    """Base class of replay buffers: counts added and sampled steps, and checks the limit on their ratio.

    Attributes:
        limit: limit on samples per added step, or None.
        num_sampled: number of steps sampled so far.
    """

    limit: SamplesPerInsert | None = None
    num_sampled: int = 0

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def num_added(self) -> int:
        """Number of steps added so far, evicted steps included."""

    @property
    def num_evicted(self) -> int:
        """Number of steps that were added but are no longer stored."""
        return self.num_added - len(self)

    @property
    def samples_per_insert(self) -> float:
        """Average number of times that an added step was sampled."""
        return self.num_sampled / max(self.num_added, 1)

    @property
    def counts(self) -> str:
        """Summary of all counts, such as "100 added, 0 evicted, 800 sampled: 8 per insert"."""
        counted = f"{self.num_added} added, {self.num_evicted} evicted, {self.num_sampled} sampled"
        return f"{counted}: {self.samples_per_insert:.3g} per insert"

    def may_sample(self, n: int = 1) -> bool:
        """Return True if the buffer is not empty and `limit` allows sampling `n` steps."""
        limit, counts = self.limit, {"num_added": self.num_added, "num_sampled": self.num_sampled}
        return len(self) > 0 and (limit is None or limit.may_sample(n, size=len(self), **counts))

    def may_add(self) -> bool:
        """Return True if `limit` allows adding steps."""
        return self.limit is None or self.limit.may_add(num_added=self.num_added, num_sampled=self.num_sampled)


def checked_limit(limit: object) -> SamplesPerInsert | None:
    """Return `limit` if it is a `SamplesPerInsert` or None. Otherwise raise `WrongType`."""
    if limit is not None and not isinstance(limit, SamplesPerInsert):
        raise WrongType(f"limit={limit!r}: give a SamplesPerInsert, or None for no limit")
    return limit

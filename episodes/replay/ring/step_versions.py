"""Which version of the policy made each step of a ring: a column that is there once somebody told one."""

from __future__ import annotations

from typing import Any

import numpy as np

from episodes.facts.policy_versions import UNKNOWN, VersionRuns
from episodes.replay.ring.track_ring import Allocator, put


class StepVersions:
    """The versions of the steps in a ring of `capacity`; `UNKNOWN` where nobody told one.

    Attributes:
        told: int64 [capacity + 1]; None where none was ever told.
        newest: the highest that was ever told.
    """

    __slots__ = ("_allocator", "capacity", "newest", "told")

    def __init__(self, capacity: int, allocator: Allocator) -> None:
        self.capacity = capacity
        self._allocator = allocator
        self.told: np.ndarray | None = None
        self.newest = UNKNOWN

    def write(self, start: int, num_steps: int, versions: Any) -> None:
        """Put in those of so many steps from position `start` on: one for all, [num_steps], or None."""
        if self.told is None:
            return  # no step has a version yet, nor do these
        if isinstance(versions, np.ndarray):
            newest = int(versions.max(initial=UNKNOWN))
        else:
            newest = versions = UNKNOWN if versions is None else int(versions)
        stop = start + num_steps
        if stop <= self.capacity:
            self.told[start:stop] = versions
        else:
            put(self.told, self.capacity, start, np.broadcast_to(versions, num_steps))
        self.newest = max(self.newest, newest)

    def at(self, slots: np.ndarray) -> np.ndarray:
        """Of the steps at the positions [...]: int64 [...]."""
        return np.full(slots.shape, UNKNOWN) if self.told is None else self.told[slots]

    def runs(self, slots: slice | np.ndarray, num_steps: int) -> VersionRuns | None:
        """Of a chunk of so many steps at the positions; None where nobody told any."""
        return None if self.told is None else VersionRuns.of(self.told[slots], num_steps)

    def reopen(self, newest: int) -> None:
        """Take up the column that the allocator has a file of."""
        self.told, self.newest = self._made(), newest

    def with_array(self) -> StepVersions:
        """Return other versions with an array in which all are unknown."""
        versions = StepVersions(self.capacity, self._allocator)
        versions.told = self._made()
        versions.told[:] = UNKNOWN
        return versions

    def _made(self) -> np.ndarray:
        array = self._allocator.empty(self.capacity, np.zeros(0, np.int64))
        array[self.capacity] = UNKNOWN  # of what draws are padded with
        return array

    def get_state(self, size: int) -> np.ndarray | None:
        """Those of the first `size` steps; None where none was told."""
        return None if self.told is None else self.told[:size].copy()

"""`StepVersions`: version of the policy that took each step in a replay ring."""

from __future__ import annotations

from typing import Any

import numpy as np

from episodes.facts.policy_versions import UNKNOWN, VersionRuns
from episodes.replay.ring.track_ring import Allocator, put


class StepVersions:
    """Policy versions of the steps in a ring of `capacity` steps, with -1 for unknown versions.

    Attributes:
        versions: versions by position, int64 [capacity + 1], or None if no version is known.
        newest: highest version so far, also if its steps were evicted.
    """

    __slots__ = ("_allocator", "capacity", "newest", "versions")

    def __init__(self, capacity: int, allocator: Allocator) -> None:
        self.capacity = capacity
        self._allocator = allocator
        self.versions: np.ndarray | None = None
        self.newest = UNKNOWN

    def write(self, start: int, num_steps: int, versions: Any) -> None:
        """Write the policy versions of `num_steps` steps from ring position `start` on.

        `versions` is one version for all steps, an array [num_steps], or None.
        """
        if self.versions is None:
            return  # no step has a version yet, nor do these
        if isinstance(versions, np.ndarray):
            newest = int(versions.max(initial=UNKNOWN))
        else:
            newest = versions = UNKNOWN if versions is None else int(versions)
        stop = start + num_steps
        if stop <= self.capacity:
            self.versions[start:stop] = versions
        else:
            put(self.versions, self.capacity, start, np.broadcast_to(versions, num_steps))
        self.newest = max(self.newest, newest)

    def at(self, slots: np.ndarray) -> np.ndarray:
        """Return the version of the policy that took each step at the ring positions `slots` [...], int64 [...]."""
        return np.full(slots.shape, UNKNOWN) if self.versions is None else self.versions[slots]

    def runs(self, slots: slice | np.ndarray, num_steps: int) -> VersionRuns | None:
        """Return the policy versions of an episode's steps as runs of equal values, or None if all are unknown."""
        return None if self.versions is None else VersionRuns.of(self.versions[slots], num_steps)

    def keep_newest(self, newest: int) -> None:
        """Keep a version that was added, of which no step needs to be stored.

        Raises:
            ValueError: `newest` is no int of at least -1.
        """
        if type(newest) is not int or newest < UNKNOWN:
            raise ValueError(f"the newest policy version is {newest!r}")
        self.newest = max(self.newest, newest)

    def reopen(self, newest: int) -> None:
        """Reopen the memory-mapped array of policy versions, and set the newest version."""
        self.versions, self.newest = self._allocate(), newest

    def with_array(self) -> StepVersions:
        """Return an empty copy with an allocated array of unknown versions (-1)."""
        versions = StepVersions(self.capacity, self._allocator)
        versions.versions = self._allocate()
        versions.versions[:] = UNKNOWN
        return versions

    def _allocate(self) -> np.ndarray:
        """Allocate the array of policy versions. The item for padding is -1 (unknown)."""
        array = self._allocator.empty(self.capacity, np.zeros(0, np.int64))
        array[self.capacity] = UNKNOWN  # version of padding
        return array

    def get_state(self, size: int) -> np.ndarray | None:
        """Return a copy of the policy versions at the first `size` ring positions, or None if no version is known."""
        return None if self.versions is None else self.versions[:size].copy()

"""Which version of the policy made each step of a ring: a column that is there once somebody told one."""

from __future__ import annotations

from typing import Any

import numpy as np

from episodes.facts.policy_versions import UNKNOWN
from episodes.replay.ring.track_ring import put


class StepVersions:
    """The versions of the steps in a ring of `capacity`; `UNKNOWN` where nobody told one.

    Attributes:
        told: int32 [capacity + 1]; None where none was ever told.
        newest: the highest that was ever told.
    """

    __slots__ = ("capacity", "newest", "told")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.told: np.ndarray | None = None
        self.newest = UNKNOWN

    def write(self, start: int, num_steps: int, versions: Any) -> None:
        """Put in those of so many steps from position `start` on: one for all, [num_steps], or None."""
        if versions is None and self.told is None:
            return
        if self.told is None:
            self.told = np.full(self.capacity + 1, UNKNOWN, np.int32)
        versions = np.broadcast_to(UNKNOWN if versions is None else versions, num_steps)
        put(self.told, self.capacity, start, versions)
        self.newest = max(self.newest, int(versions.max(initial=UNKNOWN)))

    def at(self, slots: Any) -> np.ndarray:
        """Of the steps at the positions, a slice or an array [...] of them: int64 [...]."""
        if self.told is None:
            return np.full(np.arange(self.capacity + 1)[slots].shape, UNKNOWN)
        return self.told[slots].astype(np.int64)

    def get_state(self, size: int) -> np.ndarray | None:
        """Those of the first `size` steps; None where none was told."""
        return None if self.told is None else self.told[:size].copy()

"""`StepPriorities`: priorities of the steps of a replay ring, which follow its additions and evictions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from episodes.replay.ring.linked_ring import LinkedRing
from episodes.replay.ring.track_ring import positions
from episodes.replay.sum_tree import SumTree


class StepPriorities:
    """Priorities of the steps of a ring of `capacity` steps, whose next step has the index `head`.

    `follow` brings them up to date with the ring:

        step index        num_gone       tail          num_known       head
        priority      none    |  removed  |    known       |    highest  |

    Attributes:
        shares: priority ** alpha of the step at each ring position. 0 where no sample begins.
        highest: highest priority that was set so far, at least 1. New steps get it.
        num_known: steps with smaller indices have their priorities, or none.
        num_gone: steps with smaller indices were evicted, and have no priorities any more.
    """

    __slots__ = ("highest", "num_gone", "num_known", "shares")

    def __init__(self, capacity: int, head: int = 0) -> None:
        self.shares, self.highest = SumTree(capacity), 1.0
        self.num_known = self.num_gone = head

    @property
    def nbytes(self) -> int:
        """Memory size in bytes."""
        return self.shares.nbytes

    def follow(self, ring: LinkedRing, share_of: Callable[[float], Any], period: int | None) -> None:
        """Give steps that are new in the ring the highest priority so far, and evicted steps 0.

        Call it before `set`, so that the priority of a new step does not depend on when it is read.

        Args:
            ring: the ring.
            share_of: returns priority ** alpha of a priority.
            period: new steps get 0 unless their `t` is divisible by it.
        """
        head, tail, capacity = ring.head, ring.tail, ring.capacity
        if tail > max(self.num_gone, head - capacity):  # steps were evicted that no new step replaces
            for first, last in _position_ranges(max(self.num_gone, head - capacity), tail, capacity):
                self.shares.fill(first, last, 0.0)
        self.num_gone = tail
        if self.num_known == head:
            return
        start = max(self.num_known, tail)
        share = share_of(self.highest)
        for first, last in _position_ranges(start, head, capacity):
            self.shares.fill(first, last, share)
        if period is not None:
            slots = positions(start, head - start, capacity)
            self.shares.set(slots[ring.links.t[slots] % period != 0], 0.0)
        self.num_known = head

    def set(self, slots: np.ndarray, priorities: np.ndarray, shares: np.ndarray) -> None:
        """Set the priorities [n] at ring positions [n], and their `shares` [n], which are priority ** alpha."""
        self.highest = max(self.highest, float(priorities.max()))
        self.shares.set(slots, shares)

    def get_state(self) -> dict[str, Any]:
        """Return a copy of all numbers. The names are part of the format of a buffer's state."""
        numbers = {"_num_known": self.num_known, "_num_gone": self.num_gone}
        return {**numbers, "tree": self.shares.get_state(), "given": np.array([self.highest])}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore priorities from a dict that `get_state` returned, of the same capacity.

        Raises:
            ValueError: the highest priority is NaN, infinite or negative.
        """
        self.shares.set_state(state["tree"])
        given = np.asarray(state["given"], np.float64)  # earlier versions have one priority for each ring position
        if not (np.isfinite(given) & (given >= 0)).all():
            raise ValueError("the priorities that were set are not finite numbers of at least 0")
        self.highest = float(given.max(initial=1.0))
        self.num_known, self.num_gone = state["_num_known"], state["_num_gone"]


def _position_ranges(number: int, stop: int, capacity: int) -> list[tuple[int, int]]:
    """Convert the step indices [number, stop) to one or two ranges (start, stop) of ring positions."""
    first = number % capacity
    last = first + stop - number
    if last <= capacity:
        return [(first, last)] if last > first else []
    return [(first, capacity), (0, last - capacity)]

"""`PrioritizedEpisodeReplayBuffer`: steps drawn in proportion to their priorities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from episodes.errors import InvalidArgument, ShapeMismatch, StateMismatch, StepOutOfRange
from episodes.replay.buffer import EpisodeReplayBuffer
from episodes.replay.sum_tree import SumTree

_UNITS = ("transition", "sequence")


class PrioritizedEpisodeReplayBuffer(EpisodeReplayBuffer):
    """An `EpisodeReplayBuffer` that draws step i with probability p_i ** alpha / sum of all p ** alpha.

    New steps have the highest priority given so far (1 before the first), and priorities die with their steps. The
    `weights` of a draw are (N * P(i)) ** -beta, divided by the largest of the batch (Schaul et al., 2016).

    Args:
        alpha: how much priorities matter; 0 draws uniformly.
        beta: how much `weights` correct for it; see `set_beta`.
        unit: what a priority of `sample_sequences` belongs to. `"transition"`: each step; `indices` are [B, W].
            `"sequence"`: the drawn sequence; `indices` are [B], the number of the step it was drawn by.
        min_priority: smaller priorities count as this one, so that every step can be drawn again.
    """

    def __init__(
        self,
        capacity: int,
        *,
        alpha: float = 0.6,
        beta: float = 0.4,
        unit: str = "transition",
        min_priority: float = 1e-6,
        seed: int | None = None,
        path: str | Path | None = None,
    ) -> None:
        super().__init__(capacity, seed=seed, path=path)
        if not alpha >= 0 or not min_priority > 0:
            raise InvalidArgument(f"alpha={alpha}, min_priority={min_priority}: give alpha >= 0 and min_priority > 0")
        if unit not in _UNITS:
            raise InvalidArgument(f"unit={unit!r}: give one of {list(_UNITS)}")
        self.alpha = alpha
        self.unit = unit
        self.min_priority = min_priority
        self.num_stale = 0
        """How many priorities came for steps that were no longer there."""
        self._tree = SumTree(capacity)
        self._max_priority = 1.0
        self._num_known = 0  # steps with smaller numbers have their priorities
        self.set_beta(beta)

    def set_beta(self, beta: float) -> None:
        """Let the weights of later draws correct more (1: fully) or less (0: not at all)."""
        if not beta >= 0:
            raise InvalidArgument(f"beta={beta}: give a number >= 0")
        self.beta = beta

    @property
    def nbytes(self) -> int:
        """Bytes of all tracks, links and priorities."""
        return super().nbytes + self._tree.nbytes

    def clear(self) -> None:
        """Forget all steps and their priorities. What kind of steps they are stays, and the generator's state."""
        super().clear()
        self._tree = SumTree(self.capacity)
        self._max_priority, self._num_known = 1.0, self.ring.head

    def _welcome_new_steps(self) -> None:
        """Give the steps added since the last call the highest priority; those in whose place they are, lose theirs."""
        head = self.ring.head
        if self._num_known == head:
            return
        priority = self._max_priority**self.alpha
        start, count = self._num_known % self.capacity, head - self._num_known
        if count >= self.capacity:
            start, count = 0, len(self)
        stop = start + count
        self._tree.fill(start, min(stop, self.capacity), priority)
        if stop > self.capacity:
            self._tree.fill(0, stop - self.capacity, priority)
        self._num_known = head

    def _draw(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        if not len(self):
            raise self._empty()
        self._welcome_new_steps()
        slots = self._tree.draw(n, self.generator)
        drawn = self._tree.get(slots)
        return slots, ((drawn / drawn.min()) ** -self.beta).astype(np.float32)

    def _sequence_indices(self, drawn: np.ndarray, window: np.ndarray) -> np.ndarray:
        return window if self.unit == "transition" else drawn

    def update_priorities(self, indices: np.ndarray, priorities: np.ndarray) -> None:
        """Set the priorities of the steps with these numbers (`batch.indices`), arrays of one shape.

        Steps that are no longer there are counted in `num_stale` and otherwise ignored; -1, padding, is ignored.

        Raises:
            ShapeMismatch: another number of priorities than of indices.
            InvalidArgument: a priority is negative or not finite.
            StepOutOfRange: a step was never added. Nothing is changed, as with the others.
        """
        numbers, given = np.asarray(indices), np.asarray(priorities, np.float64)
        if numbers.shape != given.shape:
            raise ShapeMismatch(f"{given.shape} priorities for {numbers.shape} indices; give one for each")
        if not (given >= 0).all() or np.isinf(given).any():
            raise InvalidArgument("priorities must be finite and >= 0, and some are not; give absolute errors, say")
        head, tail = self.ring.head, self.ring.tail
        if numbers.max(initial=-1) >= head:
            raise StepOutOfRange(f"step {int(numbers.max())}: the steps that were added have numbers 0..{head - 1}")
        with np.errstate(over="ignore"):
            shares = np.maximum(given, self.min_priority) ** self.alpha
        if not shares.max(initial=0.0) < _MOST / self.capacity:
            raise InvalidArgument(
                f"priority {given.max():g}: to the power of alpha={self.alpha}, {self.capacity} have no finite sum"
            )
        there = numbers >= tail
        if not there.all():
            self.num_stale += int(np.count_nonzero(~there & (numbers >= 0)))
            numbers, given, shares = numbers[there], given[there], shares[there]
        if not numbers.size:
            return
        self._welcome_new_steps()
        self._max_priority = max(self._max_priority, float(given.max()))
        self._tree.set(numbers.ravel() % self.capacity, shares.ravel())

    def priorities(self, indices: np.ndarray) -> np.ndarray:
        """p ** alpha of the steps with these numbers, which must be there."""
        self._welcome_new_steps()
        numbers = np.asarray(indices)
        if numbers.size and (numbers.min() < self.ring.tail or numbers.max() >= self.ring.head):
            raise StepOutOfRange(f"the steps that are there have numbers {self.ring.tail}..{self.ring.head - 1}")
        return self._tree.get(numbers % self.capacity)

    def get_state(self) -> dict[str, Any]:
        """Everything that is stored, the priorities and the generator's state."""
        self._welcome_new_steps()
        state = {name: getattr(self, name) for name in _STATE}
        return super().get_state() | {"priorities": {**state, "tree": self._tree.get_state()}}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on, bit for bit, where `get_state` was called.

        Raises:
            InvalidArgument: another capacity.
            StateMismatch: the state of a buffer without priorities.
        """
        if "priorities" not in state:
            raise StateMismatch("a state without priorities; restore it into an EpisodeReplayBuffer")
        self._set_state(state)
        for name in _STATE:
            setattr(self, name, state["priorities"][name])
        self._tree.set_state(state["priorities"]["tree"])


_MOST = float(np.finfo(np.float64).max)
_STATE = ("alpha", "beta", "unit", "min_priority", "num_stale", "_max_priority", "_num_known")

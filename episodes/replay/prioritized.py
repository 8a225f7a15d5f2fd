"""Replay buffer with prioritized sampling of steps or sequences."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.batch.sampling_checks import check_counts, checked_step_indices
from episodes.errors import InvalidArgument, ShapeMismatch, StateMismatch, StepOutOfRange, WrongType
from episodes.replay.buffer import EpisodeReplayBuffer
from episodes.replay.locking import locked
from episodes.replay.ring.track_ring import positions
from episodes.replay.samples_per_insert import SamplesPerInsert
from episodes.replay.step_priorities import StepPriorities
from episodes.tracks.validation import checked_number

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

_UNITS = ("transition", "sequence")


class PrioritizedEpisodeReplayBuffer(EpisodeReplayBuffer):
    """Replay buffer that samples steps in proportion to priority ** alpha (Schaul et al., 2016).

    A new step gets the highest priority that was set before it was added, at least 1, also if the step that had it is
    evicted. `clear` forgets it. The `weights` of a batch are (N * P(i)) ** -beta, divided by the largest weight in the
    batch.

    Args:
        capacity: maximum number of steps.
        alpha: exponent of the priorities. 0 samples uniformly.
        beta: exponent of the importance weights, see `set_beta`.
        unit: what a priority of `sample_sequences` belongs to. "transition": each step, and `indices` are [B, W].
            "sequence": the sampled sequence, and `indices` [B] are the step indices that it was sampled by.
        period: with `unit="sequence"`, the grid on which all sequences start (see `sample_sequences`). Only these steps
            are sampled and have priorities.
        min_priority: smaller priorities count as this one, so that every step can be sampled again.
        seed: seed of the random generator. None for a random seed.
        path: directory for memory-mapped files, see `EpisodeReplayBuffer`.
        resume: whether to continue with the steps that `flush` saved in `path`, if any.
        limit: limits how often steps are sampled.
        lineage: number of newest steps for which `batch.origin` returns episode and time.

    Attributes:
        num_stale: number of priorities that were set for steps that had been evicted. They were ignored.

    Raises:
        InvalidArgument: `alpha` or `beta` is negative, `min_priority` is not above 0, `unit` is unknown, or a `period`
            is given for another unit than "sequence".
    """

    def __init__(
        self,
        capacity: int = 10_000,
        *,
        alpha: float = 0.6,
        beta: float = 0.4,
        unit: str = "transition",
        period: int | None = None,
        min_priority: float = 1e-6,
        seed: int | None = None,
        path: str | Path | None = None,
        resume: bool = False,
        limit: SamplesPerInsert | None = None,
        lineage: int | None = None,
    ) -> None:
        self.alpha = checked_number("alpha", alpha, 0.0)
        self.min_priority = checked_number("min_priority", min_priority, 0.0)
        if not self.min_priority:
            raise InvalidArgument("min_priority=0: give a number above 0, so that every step can be sampled again")
        if unit not in _UNITS:
            raise InvalidArgument(f"unit={unit!r}: give one of {list(_UNITS)}")
        if period is not None:
            check_counts(period=period)
            if unit != "sequence":
                raise InvalidArgument(
                    f"period={period} with unit={unit!r}: a period needs priorities of sequences; give unit='sequence'"
                )
        self.unit = unit
        self.period = period
        self.num_stale = 0
        self.set_beta(beta)
        super().__init__(capacity, seed=seed, path=path, resume=resume, limit=limit, lineage=lineage)

    def _start_empty(self) -> None:
        self._priorities = StepPriorities(self.capacity, self._ring.head)

    def set_beta(self, beta: float) -> None:
        """Set the exponent `beta` of importance weights: 1 corrects the non-uniform sampling fully, 0 not at all.

        Raises:
            InvalidArgument: `beta` is not a number of at least 0.
        """
        self.beta = checked_number("beta", beta, 0.0)

    @property
    def nbytes(self) -> int:
        """Memory size in bytes of steps, observations and priorities, without infos and policy versions."""
        return super().nbytes + self._priorities.nbytes

    def _scaled_priority(self, priorities: float | np.ndarray) -> Any:
        """Return priority ** alpha, at least a tiny constant, so that every step can be sampled."""
        shares = np.maximum(priorities, self.min_priority) ** self.alpha
        return shares if min(self.min_priority, 1.0) ** self.alpha > 2 * _LEAST else np.maximum(shares, _LEAST)

    def _draw(self, n: int, period: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Sample `n` positions in proportion to their priority. Return them and their priority ** alpha, float64 [n].

        Raises:
            InvalidArgument: `period` is not the period of the buffer's priorities.
            EpisodeStateError: there is nothing to sample.
        """
        if period != self.period:
            if period is None:
                raise InvalidArgument(
                    f"this buffer has priorities of sequences with period={self.period}; sample_sequences"
                )
            raise InvalidArgument(
                f"period={period} of a buffer with period={self.period}: give unit='sequence' and the period to the "
                "constructor, because priorities belong to the sequences of this period"
            )
        ring = self._ring
        if ring.head == ring.tail:
            raise self.empty_error()
        self._priorities.follow(ring, self._scaled_priority, self.period)
        shares = self._priorities.shares
        if not shares.total:
            raise self._no_sequence()
        return shares.draw(n, self.generator)

    def _candidates(self, period: int | None) -> tuple[np.ndarray, np.ndarray]:
        slots = positions(self._ring.tail, len(self._ring), self.capacity)
        shares = self._priorities.shares.get(slots)
        return slots[shares > 0], shares[shares > 0]

    def _weights(self, shares: np.ndarray) -> np.ndarray:
        """Return importance weights, at most 1, float32 [n]."""
        return ((shares / shares.min()) ** -self.beta).astype(np.float32)

    @locked
    def update_priorities(self, indices: np.ndarray, priorities: np.ndarray) -> None:
        """Set the priorities of sampled steps, given `indices` from the batch and new priorities of the same shape.

        Evicted steps are counted in `num_stale` and otherwise ignored. Index -1 (padding) is ignored.

        Args:
            indices: step indices, ints of any shape.
            priorities: numbers of the same shape, finite and not negative. Tensors are allowed.

        Raises:
            ShapeMismatch: the shapes differ.
            WrongType: indices that are no ints, or priorities that are no numbers.
            InvalidArgument: a priority is negative or not finite, or belongs to a step where no sequence of `period`
                begins.
            StepOutOfRange: a step was never added.
        """
        self.set_checked_priorities(*self.checked_priorities(indices, priorities))

    def checked_priorities(
        self, indices: ArrayLike, priorities: ArrayLike
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Validate the arguments of `update_priorities`. Return step indices, priorities and priorities ** alpha.

        Raises:
            ShapeMismatch: there is not one priority per index.
            WrongType: indices are not ints, or priorities are not numbers.
            InvalidArgument: a priority is negative or not finite, or an index is not the start of a sequence.
            StepOutOfRange: an index is larger than that of the newest step.
        """
        numbers, values = checked_step_indices(indices), _as_numbers(priorities)
        if numbers.shape != values.shape:
            advice = ""
            if self.unit == "transition" and numbers.ndim == 2 and values.shape == numbers.shape[:1]:
                advice = ", or create the buffer with unit='sequence', where each sequence has one priority"
            elif self.unit == "sequence" and values.ndim == 2 and numbers.shape == values.shape[:1]:
                advice = ", for example the mean or the maximum over the sequence's steps with loss_mask"
            raise ShapeMismatch(f"{values.shape} priorities for {numbers.shape} indices; give one for each{advice}")
        if not numbers.size:
            return numbers, values, values
        smallest, largest = values.min(), values.max()
        if not (smallest >= 0 and largest < np.inf):  # also False for NaN
            raise InvalidArgument("priorities must be finite and >= 0; give for example absolute TD errors")
        ring, newest = self.flush_ring(), numbers.max()
        if newest >= ring.head:
            raise StepOutOfRange(f"step {int(newest)}: the steps that were added have numbers 0..{ring.head - 1}")
        if self.period is not None:
            stored = numbers[numbers >= ring.tail]
            if (ring.links.t[stored % self.capacity] % self.period).any():
                raise InvalidArgument(
                    f"some of these steps begin no sequence of period={self.period}; give batch.indices"
                )
        is_safe = self.alpha <= 1 and largest < _LARGE and self.min_priority < _LARGE
        return numbers, values, self._scaled_priority(values) if is_safe else self._finite_shares(values)

    def set_checked_priorities(self, numbers: np.ndarray, values: np.ndarray, shares: np.ndarray) -> None:
        """Set the priorities of the steps with the indices `numbers` to values that `checked_priorities` returned.

        `shares` are priority ** alpha. Priorities of evicted steps are ignored, and counted in `num_stale`.
        """
        ring = self.flush_ring()
        tail = ring.tail
        if numbers.size and numbers.min() < tail:
            is_stored = numbers >= tail
            self.num_stale += int(np.count_nonzero(~is_stored & (numbers >= 0)))
            numbers, values, shares = numbers[is_stored], values[is_stored], shares[is_stored]
        if not numbers.size:
            return
        self._priorities.follow(ring, self._scaled_priority, self.period)
        self._priorities.set(numbers.ravel() % self.capacity, values.ravel(), shares.ravel())

    def _finite_shares(self, values: np.ndarray) -> np.ndarray:
        """Return `values` ** alpha. Raise `InvalidArgument` if the sum over a full buffer could overflow."""
        with np.errstate(over="ignore"):
            shares = self._scaled_priority(values)
        if not shares.max() < _MOST / self.capacity:
            raise InvalidArgument(
                f"priority {values.max():g}: to the power of alpha={self.alpha}, {self.capacity} have no finite sum"
            )
        return shares

    @locked
    def priorities(self, indices: np.ndarray) -> np.ndarray:
        """Return priority ** alpha, on which sampling is based, of the steps with these indices, float64.

        Raises:
            StepOutOfRange: a step is not stored.
            WrongType: the indices are not ints.
        """
        numbers = checked_step_indices(indices)
        ring = self.flush_ring()
        self._priorities.follow(ring, self._scaled_priority, self.period)
        if numbers.size and (numbers.min() < ring.tail or numbers.max() >= ring.head):
            raise StepOutOfRange(f"the stored steps have numbers {ring.tail}..{ring.head - 1}")
        return self._priorities.shares.get(numbers % self.capacity)

    def _rest_of_state(self) -> dict[str, Any]:
        self._priorities.follow(self.flush_ring(), self._scaled_priority, self.period)
        settings = {name: getattr(self, name) for name in _STATE}
        return super()._rest_of_state() | {"priorities": settings | self._priorities.get_state()}

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_priorities": None}  # as in the state

    def _check_kind(self, state: dict[str, Any]) -> None:
        if "priorities" not in state:
            raise StateMismatch("a state without priorities; restore it into an EpisodeReplayBuffer")

    def _checked_rest(self, state: dict[str, Any]) -> dict[str, Any]:
        """Validate the part of a checkpoint that is not the stored steps, such as priorities. Return attributes with
        their new values.

        This buffer does not change.

        Raises:
            ValueError: a value is invalid.
        """
        priorities, restored = state["priorities"], StepPriorities(self.capacity)
        for name in ("alpha", "beta", "min_priority"):
            checked_number(name, priorities[name], 0.0)
        check_counts(0, **{name: priorities[name] for name in ("num_stale", "_num_known", "_num_gone")})
        if priorities["unit"] not in _UNITS:
            raise ValueError(f"unit={priorities['unit']!r}")
        restored.set_state(priorities)
        settings = {name: priorities[name] for name in _STATE}
        return super()._checked_rest(state) | settings | {"_priorities": restored}


_MOST = float(np.finfo(np.float64).max)
_LARGE = 1e200  # the sum of such shares is finite for every capacity
_LEAST = 1e-290  # far above the smallest float, so that sums and weights of such shares are still exact


def _as_numbers(priorities: Any) -> np.ndarray:
    """Convert priorities (numbers, arrays or tensors) to a float64 array. Raise `WrongType` for other values."""
    values = priorities.detach().double().cpu() if hasattr(priorities, "detach") else priorities
    try:
        array = np.asarray(values)
        if array.dtype.kind in "biuf" or not array.size:
            return array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise WrongType(
            f"priorities are a {type(priorities).__name__}: {error}; give a number for each step"
        ) from error
    raise WrongType(f"priorities of {array.dtype}; give a number for each step")


_STATE = ("alpha", "beta", "unit", "period", "min_priority", "num_stale")

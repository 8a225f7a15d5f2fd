"""`RowMeasurements`: what one update measured of each row of its train batch, such as the row's loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from episodes.batch.leaves import as_numpy
from episodes.batch.origin import resolved
from episodes.batch.train_batch import TrainBatch
from episodes.columns import Columns
from episodes.tracks.nested import first_leaf

__all__ = ["RowMeasurements"]

Derive = Callable[[dict[str, Tensor]], dict[str, Tensor]]

_SUMMED = "loss"  # all other measurements are means over the gradient steps
_FIRST = "first_"  # prefix of measurements of the first gradient step with the row
_RATIO, _STEP = "first_ratio", "first_gradient_step"  # at step 0, all ratios are those of the policy before the update


class RowMeasurements:
    """Collector of measurements of the rows of a train batch during one update.

    A row takes part in several gradient steps. Its "loss" is summed over them. Measurements whose names begin with
    "first_" are those of the row's first gradient step, and all others are means over the steps. A row without gradient
    steps has NaN. With "first_ratio" there is "first_gradient_step", the number of that gradient step in the update.

    Args:
        batch: the train batch. Rows of its column "loss_mask" [B, T] are sequences of steps, which are measured one by
            one.

    Attributes:
        batch: the same columns, in which each row (or step of a sequence) is numbered. Minibatches of it keep the
            numbers.
    """

    def __init__(self, batch: Mapping[str, Any]) -> None:
        mask = batch.get(Columns.LOSS_MASK)
        self._shape = tuple(mask.shape) if mask is not None else (len(first_leaf(dict(batch))),)
        numbers = np.arange(np.prod(self._shape, dtype=int)).reshape(self._shape)
        # numbers of rows take the place of the origin, since minibatches select rows of both alike
        self.batch = TrainBatch(batch, (None, numbers))  # type: ignore[arg-type]
        self._notes: dict[Derive, list[tuple[Any, Tensor | None, Mapping[str, Tensor]]]] = {}

    def add(
        self, minibatch: Mapping[str, Any], mask: Tensor | None, derive: Derive, columns: Mapping[str, Tensor]
    ) -> None:
        """Store columns of the rows of a minibatch. Nothing is computed or copied from the device yet.

        Args:
            minibatch: rows of `batch`. Rows whose numbers were lost are not measured.
            mask: bool [B, T], the steps that were measured; None: the rows themselves.
            derive: function that turns the columns of all gradient steps, [N] each, into measurements [N].
            columns: a tensor of n values for each name, where n is the number of rows, or of True values in `mask`.
        """
        origin = getattr(minibatch, "lazy_origin", None)
        if origin is not None:
            parts = {name: column.detach() for name, column in columns.items()}  # without the graph, which takes memory
            self._notes.setdefault(derive, []).append((origin, mask, parts))

    @torch.no_grad()
    def collect(self) -> dict[str, np.ndarray]:
        """Return each measurement as an array float32 [B], or [B, T] of sequences."""
        result: dict[str, np.ndarray] = {}
        for derive, notes in self._notes.items():
            rows = np.concatenate([_numbers_of(origin, mask) for origin, mask, _ in notes])
            counts = np.bincount(rows, minlength=int(np.prod(self._shape, dtype=int)))
            names = notes[0][2]
            columns = {name: torch.cat([part[name].reshape(-1) for _, _, part in notes]) for name in names}
            for name, values in derive(columns).items():
                column = _combined(name, rows, counts, as_numpy(values.float()))
                result[name] = column.astype(np.float32).reshape(self._shape)
            if _RATIO in result:
                sizes = [len(next(iter(part.values())).reshape(-1)) for _, _, part in notes]
                steps = _combined(_STEP, rows, counts, np.repeat(np.arange(len(notes)), sizes))
                result[_STEP] = steps.astype(np.float32).reshape(self._shape)
        return result


def _combined(name: str, rows: np.ndarray, counts: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return one value per row of the batch [B], given the values [N] of all gradient steps, and NaN for others.

    Args:
        name: name of the measurement.
        rows: the row of each value, int [N].
        counts: the number of values of each row, int [B].
    """
    if name.startswith(_FIRST) or len(rows) == np.count_nonzero(counts):
        first = np.full(len(counts), np.nan)
        first[rows[::-1]] = values[::-1]  # of repeated rows numpy keeps the last assignment
        return first
    sums = np.bincount(rows, values, minlength=len(counts))
    return sums / np.where(counts, 1 if name == _SUMMED else counts, np.nan)


def _numbers_of(origin: Any, mask: Tensor | None) -> np.ndarray:
    """Return the numbers [n] of the rows of a minibatch, or of its steps that `mask` selects."""
    numbers = resolved(origin).numbers
    return numbers.ravel() if mask is None else numbers[as_numpy(mask)]

"""`RowMeasurements`: what one update measured of each row of its train batch, such as the row's loss."""

from __future__ import annotations

from collections.abc import Mapping
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

_SUMMED = "loss"  # all other measurements are means over the gradient steps
_FIRST = "first_"  # prefix of measurements of the first gradient step with the row


class RowMeasurements:
    """Collector of measurements of the rows of a train batch during one update.

    A row takes part in several gradient steps. Its "loss" is summed over them. Measurements whose names begin with
    "first_" are those of the row's first gradient step, and all others are means over the steps. A row without gradient
    steps has NaN.

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
        self._origins: dict[str, list[Any]] = {}
        self._values: dict[str, list[Tensor]] = {}

    def add(self, minibatch: Mapping[str, Any], mask: Tensor | None, columns: Mapping[str, Tensor]) -> None:
        """Store measurements of the rows of a minibatch. Nothing is copied from the device yet.

        Args:
            minibatch: rows of `batch`. Measurements of rows whose numbers were lost are ignored.
            mask: bool [B, T], the steps that were measured; None: the rows themselves.
            columns: a tensor [n] for each measurement, where n is the number of rows, or of True values in `mask`.
        """
        origin = getattr(minibatch, "lazy_origin", None)
        if origin is not None:
            for name, column in columns.items():
                self._origins.setdefault(name, []).append((origin, mask))
                self._values.setdefault(name, []).append(column.detach())

    def collect(self) -> dict[str, np.ndarray]:
        """Return each measurement as an array float32 [B], or [B, T] of sequences."""
        numbers: dict[int, np.ndarray] = {}  # of each minibatch, computed once for all measurements
        result = {}
        for name, parts in self._values.items():
            rows = np.concatenate([_numbers_of(origin, mask, numbers) for origin, mask in self._origins[name]])
            values = torch.cat([part.reshape(-1).float() for part in parts]).cpu().numpy()
            result[name] = self._combined(name, rows, values).astype(np.float32).reshape(self._shape)
        return result

    def _combined(self, name: str, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return one value per row, given the values of all gradient steps and the number of the row of each value."""
        size = int(np.prod(self._shape, dtype=int))
        if name.startswith(_FIRST):
            first = np.full(size, np.nan)
            first[rows[::-1]] = values[::-1]  # of repeated rows numpy keeps the last assignment
            return first
        counts, sums = np.bincount(rows, minlength=size), np.bincount(rows, values, minlength=size)
        divisors = np.where(counts, 1 if name == _SUMMED else counts, np.nan)
        return sums / divisors


def _numbers_of(origin: Any, mask: Tensor | None, known: dict[int, np.ndarray]) -> np.ndarray:
    """Return the numbers [n] of the rows of a minibatch, or of its steps that `mask` selects."""
    if id(origin) not in known:
        known[id(origin)] = resolved(origin).numbers
    numbers = known[id(origin)]
    return numbers.ravel() if mask is None else numbers[as_numpy(mask)]

"""`RowMeasurements`: what one update measured of each row of its train batch, such as the row's loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from episodes.batch.leaves import as_numpy
from episodes.batch.origin import resolved
from episodes.batch.train_batch import TrainBatch
from episodes.columns import Columns
from episodes.tracks.nested import first_leaf

if TYPE_CHECKING:
    from episodes.batch.origin import LazyOrigin

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

    An update keeps references to tensors that its losses have computed. They are joined, turned into measurements and
    copied from the device once, when the update has ended.

    Attributes:
        newest: measurements of the newest complete update, see `Algorithm.row_measurements`.
    """

    def __init__(self) -> None:
        self.newest: dict[str, np.ndarray] = {}
        self._shape: tuple[int, ...] | None = None  # of the rows, during an update
        self._notes: list[tuple[Any, Tensor | None, Mapping[str, Tensor], int]] = []
        self._num_steps = 0  # gradient steps of the update

    def begin(self, batch: Mapping[str, Any]) -> TrainBatch:
        """Begin an update. Return the same columns, in which each row (or step of a sequence) is numbered. Minibatches
        keep the numbers.

        Args:
            batch: the train batch. Rows of its column "loss_mask" [B, T] are sequences of steps, which are measured one
                by one.
        """
        mask = batch.get(Columns.LOSS_MASK)
        self._notes, self._num_steps = [], 0
        self._shape = (len(first_leaf(batch)),) if mask is None else tuple(mask.shape)
        numbers = np.arange(prod(self._shape)).reshape(self._shape)
        # numbers of rows take the place of the origin, since minibatches select rows of both alike
        return TrainBatch(batch, (None, numbers))  # type: ignore[arg-type]

    def add(self, minibatch: Mapping[str, Any], mask: Tensor | None, columns: Mapping[str, Tensor]) -> None:
        """Store columns of the rows of a minibatch, if an update has begun. Nothing is computed or copied from the
        device yet.

        Args:
            minibatch: rows of the batch that `begin` returned. Rows whose numbers were lost are not measured.
            mask: bool [B, T], the steps that were measured; None: the rows themselves.
            columns: a tensor of n values for each name, where n is the number of rows, or of True values in `mask`.
        """
        origin = None if self._shape is None else getattr(minibatch, "lazy_origin", None)
        if origin is not None:
            # without the graph, which takes memory
            parts = {name: column.detach() if column.requires_grad else column for name, column in columns.items()}
            self._notes.append((origin, mask, parts, self._num_steps))

    def count_step(self) -> None:
        """Count a gradient step. Rows that are added later belong to the next one."""
        self._num_steps += 1

    def end(self) -> None:
        """End an update. If it failed, its columns are dropped."""
        self._shape, self._notes = None, []

    @torch.no_grad()
    def collect(self, derive: Derive) -> dict[str, np.ndarray]:
        """Return each measurement of the update as an array float32 [B], or [B, T] of sequences.

        Args:
            derive: function that turns the columns of all gradient steps, [N] each, into measurements [N].
        """
        notes, shape = self._notes, self._shape or (0,)
        if not notes:
            return {}
        numbers = [_numbers_of(origin, mask) for origin, mask, _, _ in notes]
        measured = derive({name: _joined([part[name] for _, _, part, _ in notes]) for name in notes[0][2]})
        names, values = (
            list(measured),
            as_numpy(torch.stack(list(measured.values())).float()),
        )  # one copy from the device
        if _RATIO in measured:
            steps = np.repeat(np.array([step for *_, step in notes], np.float32), list(map(len, numbers)))
            names, values = [*names, _STEP], np.concatenate((values, steps[None]))
        columns = _combined(names, np.concatenate(numbers), values, prod(shape))
        return {name: column.reshape(shape) for name, column in zip(names, columns, strict=True)}


def _joined(parts: list[Tensor]) -> Tensor:
    """Return the values of several tensors as one tensor [N]."""
    flat = [part if part.ndim == 1 else part.reshape(-1) for part in parts]
    return flat[0] if len(flat) == 1 else torch.cat(flat)


def _combined(names: list[str], rows: np.ndarray, values: np.ndarray, num_rows: int) -> np.ndarray:
    """Return one value per measurement and row of the batch, float32 [M, B], given the values of all gradient steps,
    float32 [M, N], and NaN for rows without values.

    Args:
        names: names of the measurements.
        rows: the row of each value, int [N].
        values: values of each measurement.
        num_rows: the number B of rows.
    """
    if len(rows) == num_rows and (rows == np.arange(num_rows)).all():
        return values
    combined = np.full((len(names), num_rows), np.nan, np.float32)
    counts = np.bincount(rows, minlength=num_rows)
    is_once = len(rows) == np.count_nonzero(counts)
    divisors = np.where(counts, counts, np.nan)
    first = np.full(num_rows, -1)
    first[rows[::-1]] = np.arange(len(rows))[::-1]  # of repeated rows numpy keeps the last assignment
    known = first >= 0
    for name, column, result in zip(names, values, combined, strict=True):
        if is_once or name.startswith(_FIRST):
            result[known] = column[first[known]]
        else:
            sums = np.bincount(rows, column, minlength=num_rows)
            result[:] = sums / (np.minimum(divisors, 1) if name == _SUMMED else divisors)
    return combined


def _numbers_of(origin: LazyOrigin, mask: Tensor | None) -> np.ndarray:
    """Return the numbers [n] of the rows of a minibatch, or of its steps that `mask` selects."""
    numbers = resolved(origin).numbers
    return numbers.ravel() if mask is None else numbers[as_numpy(mask)]

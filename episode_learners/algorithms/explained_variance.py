"""Explained variance, a measure of how well a value function fits its targets."""

from __future__ import annotations

from torch import Tensor

__all__ = ["explained_variance"]


def explained_variance(values: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the explained variance of value predictions: 1 - Var(targets - values) / Var(targets), a scalar tensor.

    A result of 1 means that the values equal the targets up to a constant, 0 that they are as good as a constant,
    and a negative number that they are worse. The result is NaN if all targets are equal.

    Args:
        mask: bool of the same shape, False for padding.

    >>> import torch
    >>> targets = torch.tensor([1.0, 2.0, 3.0])
    >>> [explained_variance(values, targets).item() for values in (targets + 5, 0 * targets, -targets)]
    [1.0, 0.0, -3.0]
    """
    weights = targets.new_ones(targets.shape) if mask is None else mask.to(targets.dtype)
    weights = weights / weights.sum()
    variance = _variance(targets, weights)
    return (1 - _variance(targets - values, weights) / variance).where(variance > 0, float("nan"))


def _variance(numbers: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted variance of the elements of a tensor. The weights must sum to 1."""
    return ((numbers - (numbers * weights).sum()).square() * weights).sum()

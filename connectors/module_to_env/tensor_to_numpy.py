"""Outputs of the policy as numpy arrays."""

from __future__ import annotations

from typing import Any

import torch

from connectors.connector import Batch, Connector
from episodes.tracks import nested

__all__ = ["TensorToNumpy"]


class TensorToNumpy(Connector):
    """Makes numpy arrays of all tensors: views of those in host memory, copies of those on a device."""

    def __call__(self, *, batch: Batch, **kwargs: Any) -> Batch:
        for name, column in batch.items():
            try:
                batch[name] = column.numpy()
            except (AttributeError, RuntimeError, TypeError):  # no tensor, one with a gradient, one on a device
                batch[name] = nested.map_leaves(array_of, column)
        return batch


def array_of(leaf: Any) -> Any:
    """A tensor as a numpy array, anything else as it is."""
    return leaf.detach().cpu().numpy() if isinstance(leaf, torch.Tensor) else leaf

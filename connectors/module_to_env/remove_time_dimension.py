"""Connector that removes the time axis of a recurrent policy's outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from connectors.connector import ColumnDict, Connector
from episodes.columns import Columns
from episodes.errors import ShapeMismatch
from episodes.tracks import nested

__all__ = ["RemoveTimeDimension"]


class RemoveTimeDimension(Connector):
    """Connector that removes the time axis of length 1 from every output except "state_out": [N, 1, ...] becomes [N,
    ...].

    Raises:
        ShapeMismatch: an output has no time axis of one step.
    """

    def __call__(self, *, batch: ColumnDict, **kwargs: object) -> ColumnDict:
        for name, column in batch.items():
            if name != Columns.STATE_OUT:
                batch[name] = nested.map_leaves(lambda leaf, name=name: _only_step(leaf, name), column)
        return batch


def _only_step(leaf: np.ndarray | torch.Tensor, name: str) -> Any:
    """Return an output [N, 1, ...] as [N, ...]. Raise `ShapeMismatch` if it has another number of time steps."""
    if leaf.ndim < 2 or leaf.shape[1] != 1:
        raise ShapeMismatch(
            f"the policy's output {name!r} has shape {list(leaf.shape)}; a recurrent one gives [N, 1, ...]"
        )
    return leaf[:, 0]

"""Outputs of the policy as numpy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from connectors.connector import ColumnDict, Connector
from episodes.columns import Columns
from episodes.errors import InvalidArgument
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested

__all__ = ["TensorToNumpy"]


class TensorToNumpy(Connector):
    """Makes numpy arrays of all tensors: views of those in host memory, copies of those on a device.

    Numbers of bfloat16, which numpy does not know, become float32.

    Raises:
        InvalidArgument: there is a NaN in "action_dist_inputs", or in "actions" where the policy gives them itself.
    """

    def __call__(self, *, batch: ColumnDict, episodes: Any = (), **kwargs: Any) -> ColumnDict:
        checked = Columns.ACTION_DIST_INPUTS if Columns.ACTION_DIST_INPUTS in batch else Columns.ACTIONS
        for name, column in batch.items():
            try:
                batch[name] = array = column.numpy()
            except (AttributeError, RuntimeError, TypeError):  # no tensor, one with a gradient, one on a device
                batch[name] = array = nested.map_leaves(array_of, column)
            if name == checked:
                for leaf in (array,) if type(array) is np.ndarray else nested.leaves(array):
                    if _has_nan(leaf):
                        raise _not_a_number(name, leaf, episodes)
        return batch


def array_of(leaf: Any) -> Any:
    """A tensor as a numpy array, anything else as it is."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    leaf = leaf.detach().cpu()
    return (leaf.float() if leaf.dtype is torch.bfloat16 else leaf).numpy()


def _has_nan(leaf: Any) -> bool:
    if type(leaf) is not np.ndarray or leaf.dtype.kind != "f":
        return False
    squares = np.vdot(leaf, leaf)  # 1 us: the fastest sum that is NaN with a NaN in it, and only then
    return bool(squares != squares)


def _not_a_number(name: str, leaf: np.ndarray, episodes: Any) -> InvalidArgument:
    rows = np.flatnonzero(np.isnan(leaf).reshape(len(leaf), -1).any(axis=1)).tolist()
    return InvalidArgument(
        f"the policy's output {name!r} has NaN in row {rows[0]}, for {_whose(rows[0], episodes)} ({len(rows)} of "
        f"{len(leaf)} rows have): {leaf[rows[0]].tolist()}; look for NaN in the policy's weights and in what it saw"
    )


def _whose(row: int, episodes: Any) -> str:
    own = episodes[row] if isinstance(episodes, list) and row < len(episodes) else None
    if isinstance(own, SingleAgentEpisode) and own.agent_id is not None:
        return f"agent {own.agent_id!r}"
    return f"environment {row}"

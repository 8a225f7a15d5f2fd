"""Outputs of the policy as numpy arrays."""

from __future__ import annotations

from math import isnan
from typing import Any

import numpy as np
import torch
from torch import Tensor

from connectors.connector import ColumnDict, Connector
from episodes.columns import Columns
from episodes.errors import InvalidArgument, WrongType
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested

__all__ = ["TensorToNumpy"]


class TensorToNumpy(Connector):
    """Makes numpy arrays of all tensors: views of those in host memory, copies of those on a device.

    Numbers of bfloat16 and of 8 bits, which numpy does not know, become float32.

    Raises:
        WrongType: a tensor that numpy cannot hold.
        InvalidArgument: there is a NaN in "action_dist_inputs", or in "actions" where the policy gives them itself.
    """

    def __call__(self, *, batch: ColumnDict, episodes: Any = (), **kwargs: Any) -> ColumnDict:
        return self.on_row(None, batch, episodes)

    def on_row(self, rl_module: Any, batch: ColumnDict, episodes: Any, *context: Any) -> ColumnDict:
        """The call, as a runner's pipeline makes it."""
        for name, column in batch.items():
            if type(column) is not np.ndarray:
                try:
                    batch[name] = array_of(column) if type(column) is Tensor else nested.map_leaves(array_of, column)
                except (TypeError, RuntimeError) as error:
                    raise WrongType(
                        f"the policy's output {name!r} cannot be an array: {error}; put out dense tensors of numbers"
                    ) from error
        checked = Columns.ACTION_DIST_INPUTS if Columns.ACTION_DIST_INPUTS in batch else Columns.ACTIONS
        column = batch.get(checked)
        if type(column) is np.ndarray:
            check_numbers(checked, column, episodes)
        else:
            for leaf in nested.leaves(column):
                check_numbers(checked, leaf, episodes)
        return batch


def array_of(leaf: Any) -> Any:
    """A tensor as a numpy array, anything else as it is."""
    if not isinstance(leaf, Tensor):
        return leaf
    try:
        return leaf.numpy()
    except (RuntimeError, TypeError):  # one with a gradient, one on a device, one of bfloat16
        leaf = leaf.detach().cpu()
    return (leaf.float() if leaf.is_floating_point() and leaf.dtype not in _KNOWN else leaf).numpy()


_KNOWN = (torch.float16, torch.float32, torch.float64)


def check_numbers(name: str, leaf: Any, episodes: Any) -> None:
    """Raise `InvalidArgument` for an array with NaN in it, the policy's output of that name."""
    # The sum of squares is NaN with a NaN in it, and only then; it is the fastest sum, 1 us.
    if type(leaf) is np.ndarray and leaf.dtype.kind == "f" and isnan(np.vdot(leaf, leaf)):
        raise _not_a_number(name, leaf, episodes)


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

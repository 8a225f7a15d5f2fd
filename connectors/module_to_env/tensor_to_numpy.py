"""Connector that converts the policy's outputs to numpy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from connectors.connector import ColumnDict, Connector
from connectors.distributions import ActionDistribution
from connectors.policy import distribution_of
from episodes.columns import Columns
from episodes.errors import InvalidArgument, WrongType
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested

if TYPE_CHECKING:
    from connectors.policy import Policy

__all__ = ["TensorToNumpy"]


class TensorToNumpy(Connector):
    """Connector that converts tensors to numpy arrays. Tensors in host memory are not copied.

    bfloat16 and 8-bit floats, which numpy lacks, become float32.

    Raises:
        WrongType: a tensor cannot become a numpy array.
        InvalidArgument: a row of "action_dist_inputs" is not a distribution (NaN, or no legal action), or "actions"
            have NaN or inf.
    """

    def __call__(
        self,
        *,
        rl_module: Policy | None = None,
        batch: ColumnDict,
        episodes: Sequence[SingleAgentEpisode] = (),
        **kwargs: object,
    ) -> ColumnDict:
        for name, column in batch.items():
            try:
                batch[name] = column.numpy()
            except (AttributeError, TypeError, RuntimeError):  # no tensor, or one that is not so easily an array
                batch[name] = _arrays_of(name, column)
        checked = Columns.ACTION_DIST_INPUTS if Columns.ACTION_DIST_INPUTS in batch else Columns.ACTIONS
        column = batch.get(checked)
        for leaf in (column,) if type(column) is np.ndarray else nested.leaves(column):
            # The sum of squares is finite unless there is NaN or inf, or a huge number. It is the fastest sum, 1 us.
            if type(leaf) is np.ndarray and leaf.dtype.kind == "f" and not isfinite(np.vdot(leaf, leaf)):
                self._check_rows(checked, leaf, episodes, rl_module)
        return batch

    def _check_rows(
        self, name: str, leaf: np.ndarray, episodes: Sequence[SingleAgentEpisode], policy: Policy | None
    ) -> None:
        """Raise `InvalidArgument` if the policy's output `name`, an array [N, ...], has invalid rows, for example with
        NaN.
        """
        valid = _valid_rows(name, leaf, distribution_of(policy, self.input_action_space))
        if not valid.all():
            raise _invalid_row_error(name, leaf, np.flatnonzero(~valid), episodes, policy)


def _arrays_of(name: str, column: object) -> Any:
    """Return the policy's output `name` with all tensors converted to arrays. Raise `WrongType` if a tensor cannot be
    converted.
    """
    if type(column) is np.ndarray:
        return column
    try:
        return nested.map_leaves(array_of, column)
    except (TypeError, RuntimeError) as error:
        raise WrongType(
            f"the policy's output {name!r} cannot be an array: {error}; put out dense tensors of numbers"
        ) from error


def array_of(leaf: object) -> Any:
    """Return a tensor as a numpy array. Other values are returned unchanged."""
    if not isinstance(leaf, Tensor):
        return leaf
    try:
        return leaf.numpy()
    except (RuntimeError, TypeError):  # one with a gradient, one on a device, one of bfloat16
        leaf = leaf.detach().cpu()
    return (leaf.float() if leaf.is_floating_point() and leaf.dtype not in _KNOWN else leaf).numpy()


_KNOWN = (torch.float16, torch.float32, torch.float64)


def _valid_rows(name: str, leaf: np.ndarray, distribution: ActionDistribution | None) -> np.ndarray:
    """Return which rows of the policy's output `name` are valid, bool [N]: rows that the distribution accepts, or that
    are finite.
    """
    if name == Columns.ACTION_DIST_INPUTS and isinstance(distribution, ActionDistribution):
        valid = distribution.describes(torch.from_numpy(leaf.astype(np.float64))).numpy()
        return np.logical_and.reduce(valid.reshape(len(leaf), -1), axis=1)
    rows = leaf.reshape(len(leaf), -1)
    if name == Columns.ACTION_DIST_INPUTS:
        rows = rows.max(axis=1, keepdims=True)
    return np.logical_and.reduce(np.isfinite(rows), axis=1)


def _invalid_row_error(
    name: str, leaf: np.ndarray, rows: np.ndarray, episodes: Sequence[SingleAgentEpisode], policy: Policy | None
) -> InvalidArgument:
    """Return the error for invalid rows of the policy's output `name`, with the first of them and its episode."""
    row = leaf[rows[0]]
    bad_value = "NaN" if np.isnan(row).any() else "inf" if np.isposinf(row).any() else "-inf"
    masked = "does a mask leave no choice? else " if bad_value == "-inf" else ""
    owner = "the policy" if policy is None else f"the policy {type(policy).__name__}"
    first = int(rows[0])
    return InvalidArgument(
        f"{owner}'s output {name!r} has {bad_value} in row {first}, for {_owner_of(first, episodes)} ({len(rows)} of "
        f"{len(leaf)} rows are invalid): {row.tolist()}; {masked}look for {bad_value} in the policy's weights "
        "and in its inputs"
    )


def _owner_of(row: int, episodes: Sequence[SingleAgentEpisode]) -> str:
    """Return the agent or environment that a batch row belongs to, as text for an error.

    The agent is named if it is known, else the environment.
    """
    episode = episodes[row] if isinstance(episodes, list) and row < len(episodes) else None
    if isinstance(episode, SingleAgentEpisode) and episode.agent_id is not None:
        return f"agent {episode.agent_id!r}"
    return f"environment {row}"

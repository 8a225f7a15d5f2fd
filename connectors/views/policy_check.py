"""Check, when a pipeline is built, that the policy can read the columns that its views compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from connectors.policy import module_of
from connectors.tensors import NumpyToTensor
from connectors.views.samples import SampleHistory
from connectors.views.view import Views
from episodes.columns import Columns
from episodes.errors import InvalidArgument
from episodes.tracks import nested

__all__ = ["check_reads_views"]

_NUM_ROWS = 2


def check_reads_views(policy: object, views: Views, *, acts: bool = True, values: bool = True) -> None:
    """Check that a policy can read the columns that the views compute, by running the policy on samples.

    A `torch.nn.Module` is run in evaluation mode without gradients, and torch's random state is restored. Other
    callables are not run, because they may have side effects.

    Args:
        policy: the policy.
        views: the bound views.
        acts: call the policy. Use False if other connectors add columns.
        values: call `compute_values`, if the policy has it.

    Raises:
        InvalidArgument: the policy reads a column that no view returns, or one of another shape.
    """
    if not isinstance(policy, torch.nn.Module) or views.given.observation_space is None:
        return
    module = module_of(policy)
    columns = views(SampleHistory(views.given, np.arange(_NUM_ROWS)))
    initial = module.initial_state()
    if initial:
        columns = nested.map_leaves(lambda leaf: leaf[:, None], columns)
        rows = nested.map_leaves(lambda leaf: np.repeat(np.asarray(leaf)[None], _NUM_ROWS, axis=0), initial)
        columns[Columns.STATE_IN] = rows
        columns[Columns.SEQ_LENS] = np.ones(_NUM_ROWS, np.int64)
    were_training = [(part, part.training) for part in policy.modules()]
    policy.eval()
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            batch = NumpyToTensor(device=module.device).to_tensors(columns)
            if acts:
                _check_call(policy, f"{type(policy).__name__}.forward", batch, views)
            if values and module.has_values:
                _check_call(module.compute_values, f"{type(policy).__name__}.compute_values", batch, views)
    finally:
        for part, was_training in were_training:
            part.training = was_training


def _check_call(call: Callable[[Any], Any], name: str, batch: dict[str, Any], views: Views) -> None:
    """Call a function of a policy with sample columns. Raise `InvalidArgument` if it lacks a column or does not fit
    their shapes.
    """
    try:
        call(dict(batch))
    except KeyError as error:
        raise InvalidArgument(
            f"{name} reads column {error}, which no view makes; {views!r} makes {list(views.columns)}"
        ) from error
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        shapes = {path: list(leaf.shape) for path, leaf in nested.flatten(batch).items()}
        raise InvalidArgument(
            f"{name} does not fit what the module sees, {shapes}: {error}; build the policy for the pipeline's "
            "observation_space and views.spaces"
        ) from error

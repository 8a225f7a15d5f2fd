"""Protocols that name the batch columns that an algorithm needs, for type checkers and run-time checks.

`batch.require(RolloutBatch)` returns the batch itself, typed as the view, or raises an error that names every column
that is missing or of the wrong kind. A user's own view is a Protocol with annotations, defined at the top of a module.
A field with such a Protocol as type is checked inside.

>>> import numpy as np
>>> from episodes.batch import Batch
>>> class GoalBatch(ObsBatch, Protocol):
...     goals: Numbers
>>> Batch(obs=np.zeros((2, 3)), goals=np.ones(2)).require(GoalBatch).goals
array([1., 1.])
>>> Batch(obs=np.zeros((2, 3))).require(GoalBatch)
Traceback (most recent call last):
episodes.errors.TrackMismatch: this batch does not match GoalBatch: no 'goals'; it has obs
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Protocol, get_args, get_origin, get_type_hints

from episodes.batch.leaves import numpy_dtype
from episodes.errors import TrackMismatch, WrongType
from episodes.tracks import nested

if TYPE_CHECKING:
    from episodes.data_types import Index

Nested = Annotated[Any, "anything"]  # [B, ...], an array or tensor, or a dict or tuple of them
Numbers = Annotated[Any, "numbers"]  # [B, ...], one array or tensor
Flags = Annotated[Any, "booleans"]  # [B], one array or tensor


class BatchView(Protocol):
    """Methods that all batch Protocols in this module share."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: str | Index, /) -> Any: ...
    def __iter__(self) -> Iterator[Any]: ...
    def keys(self) -> Any: ...
    def split(self, size: int, **options: Any) -> Iterator[Any]: ...
    def to_numpy(self) -> Any: ...
    def to_torch(self, dtype: object = None, device: object = None) -> Any: ...
    def to_dict(self) -> dict[str, Any]: ...


class ObsBatch(BatchView, Protocol):
    """Batch with a column of observations, the input of a policy."""

    obs: Nested


class RolloutBatch(ObsBatch, Protocol):
    """Batch of transitions: observations, actions, rewards, ending flags and next observations."""

    new_obs: Nested
    actions: Nested
    rewards: Numbers
    terminateds: Flags
    truncateds: Flags


class BatchWithReturns(ObsBatch, Protocol):
    """Batch of steps with a column of returns: the discounted sum of rewards from each step on."""

    actions: Nested
    returns_to_go: Numbers


class BatchWithAdvantages(ObsBatch, Protocol):
    """Batch of steps with columns of advantages and value targets."""

    actions: Nested
    advantages: Numbers
    value_targets: Numbers


class ActStateBatch(BatchView, Protocol):
    """Batch of a recurrent policy's actions and its recurrent state after each action."""

    actions: Nested
    state_out: Nested


class ModelOutputBatch(BatchView, Protocol):
    """Batch of a policy's outputs, the parameters of its action distribution."""

    action_dist_inputs: Numbers


class DistBatch(ModelOutputBatch, Protocol):
    """Batch of sampled actions, with the parameters of their distribution and the log-probabilities."""

    actions: Nested
    action_logp: Numbers


class PrioBatch(BatchView, Protocol):
    """Batch sampled by priority, with importance weights, and the step indices for `update_priorities`."""

    weights: Numbers
    indices: Numbers


def check_view(columns: Mapping[str, Any], view: type) -> None:
    """Raise `TrackMismatch` unless `columns` has the columns and column types that the Protocol `view` declares.
    Further columns are allowed.
    """
    problems = _problems(columns, view, "")
    if problems:
        names = ", ".join(nested.flatten(dict(columns))) or "nothing"
        raise TrackMismatch(f"this batch does not match {view.__name__}: {'; '.join(problems)}; it has {names}")


@functools.cache
def _fields(view: type) -> dict[str, Any]:
    """Return the fields of the Protocol `view`, as a dict from name to type.

    Raises:
        WrongType: a type cannot be resolved, for example because `view` is defined in a function.
    """
    try:
        return get_type_hints(view, include_extras=True)
    except NameError as error:
        raise WrongType(
            f"the fields of {view.__name__} cannot be read ({error}); define it at the top of a module"
        ) from error


def _problems(columns: Mapping[str, Any], view: type, prefix: str) -> list[str]:
    """Return one text for each field of `view` that `columns` lacks or has in another form. The list is empty if they
    match.

    Args:
        prefix: path of `columns` in the batch, with a slash at its end.
    """
    problems = []
    for name, kind in _fields(view).items():
        path = f"{prefix}{name}"
        if name not in columns:
            problems.append(f"no {path!r}")
        elif isinstance(kind, type) and Protocol in kind.__mro__:
            inner = columns[name]
            is_dict = isinstance(inner, dict)
            problems += _problems(inner, kind, f"{path}/") if is_dict else [f"{path!r} is not nested"]
        elif get_origin(kind) is Annotated:
            problems += _kind_problem(columns[name], get_args(kind)[1], path)
    return problems


def _kind_problem(value: object, kind: str, path: str) -> list[str]:
    """Return [message] if a column does not have the annotated type `kind`, otherwise []."""
    if kind not in ("numbers", "booleans"):
        return []
    if not nested.is_leaf(value):
        return [f"{path!r} is nested, not {kind}"]
    dtype = numpy_dtype(value)
    good = dtype.kind == "b" if kind == "booleans" else dtype.kind in "biufc"
    return [] if good else [f"{path!r} is {dtype}, not {kind}"]

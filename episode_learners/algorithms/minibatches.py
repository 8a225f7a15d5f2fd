"""Functions that select rows and columns of train batches, for example minibatches or next observations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from connectors.policy import module_of
from episode_learners.policies.policy import Policy
from episodes.batch.origin import select_rows_lazily
from episodes.batch.train_batch import TrainBatch
from episodes.columns import Columns
from episodes.data_types import Index
from episodes.errors import InvalidArgument, UnknownKey
from episodes.tracks.nested import first_leaf, map_leaves
from episodes.tracks.space_kinds import is_box, kind_of

if TYPE_CHECKING:
    pass

__all__ = ["after", "check_sees_rollouts", "rows_of", "selected", "shuffled", "steps_of_rollout"]

_NEW = "new_"  # prefix of the columns of next observations


def selected(batch: Mapping[str, Any], names: Iterable[str], algorithm: str) -> TrainBatch:
    """Return a train batch with only the columns that `names` lists. `algorithm` is the name used in the error.

    Raises:
        UnknownKey: the batch lacks one of the columns.
    """
    names = list(names)
    missing = [name for name in names if name not in batch]
    if missing:
        raise UnknownKey(
            f"{algorithm}: the train batch has no {', '.join(missing)} (it has {', '.join(batch)}); add a connector to "
            "the learner pipeline that makes the column"
        )
    return TrainBatch({name: batch[name] for name in names}, getattr(batch, "lazy_origin", None))


def rows_of(columns: Mapping[str, Any], rows: Index | torch.Tensor | tuple[torch.Tensor, ...]) -> dict[str, Any]:
    """Return a train batch with only the rows that an index, mask or slice selects, in all columns."""
    indexed = {name: map_leaves(lambda leaf: leaf[rows], column) for name, column in columns.items()}
    return TrainBatch(indexed, select_rows_lazily(getattr(columns, "lazy_origin", None), rows))


def shuffled(columns: Mapping[str, Any], size: int, generator: torch.Generator) -> Iterator[dict[str, Any]]:
    """Yield minibatches of `size` rows that together contain each row of `columns` once, in random order.

    If at most half of `size` rows are left over, they join the last minibatch.
    """
    first = first_leaf(columns)
    num_rows = len(first)
    mixed = rows_of(columns, torch.randperm(num_rows, generator=generator, device=generator.device).to(first.device))
    starts = range(0, max(num_rows - size // 2, 1), size)
    for start, stop in zip(starts, [*starts[1:], num_rows], strict=True):
        yield rows_of(mixed, slice(start, stop))


def after(minibatch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the policy's inputs after each step of a minibatch.

    They are the columns "new_<name>", returned under the names "<name>".
    """
    return {name.removeprefix(_NEW): column for name, column in minibatch.items() if name.startswith(_NEW)}


def check_sees_rollouts(policy: Policy, algorithm: str) -> None:
    """Raise `InvalidArgument` if a policy cannot learn from rollout tensors, because it is recurrent or its spaces do
    not fit rows of floats.
    """
    observation_space, actions = policy.observation_space, policy.action_space
    is_recurrent = module_of(policy).is_recurrent
    if not is_box(observation_space) or not kind_of(actions).is_array or is_recurrent:
        raise InvalidArgument(
            f"{algorithm}.update_from_rollout: a block has rows of floats, and {type(policy).__name__} sees "
            f"{observation_space}, acts in {actions}{' and is recurrent' if is_recurrent else ''}: "
            "learn from episodes by update(rollout_to_episodes(...))"
        )


def steps_of_rollout(policy: Policy, steps: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Return a batch with observations, actions and log-probabilities [B, ...] of steps of a rollout, in the shapes and
    dtypes of the policy's spaces.
    """
    observation_space, actions = policy.observation_space, policy.action_space
    recorded_actions = steps["action"].reshape(-1, *(actions.shape or ()))
    return {
        Columns.OBS: steps["obs"].reshape(-1, *(observation_space.shape or ())),
        Columns.ACTIONS: recorded_actions if is_box(actions) else recorded_actions.long(),
        Columns.ACTION_LOGP: steps["sample_log_prob"],
    }

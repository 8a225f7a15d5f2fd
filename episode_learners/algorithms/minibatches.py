"""Rows and columns of a train batch: some at a time, in random order, those of one moment, or of a rollout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import torch

from connectors.policy import module_of
from episode_learners.policies.policy import Policy
from episodes.batch import TrainBatch
from episodes.batch.origin import select_rows_lazily
from episodes.columns import Columns
from episodes.errors import InvalidArgument
from episodes.tracks.nested import map_leaves

__all__ = ["after", "check_sees_rollouts", "rows_of", "shuffled", "steps_of_rollout"]

_NEW = "new_"  # what the names of columns after a transition begin with


def rows_of(columns: Mapping[str, Any], rows: Any) -> dict[str, Any]:
    """The rows, by index, mask or slice, of columns of nested tensors."""
    taken = {name: map_leaves(lambda leaf: leaf[rows], column) for name, column in columns.items()}
    return TrainBatch(taken, select_rows_lazily(getattr(columns, "came", None), rows))


def shuffled(
    columns: Mapping[str, Any], num_rows: int, size: int, generator: torch.Generator, device: torch.device
) -> Iterator[dict[str, Any]]:
    """All rows once, in random order, `size` at a time.

    Rows that are left over and fewer than half of that join the last ones: a step on a handful is mostly noise.
    """
    order = torch.randperm(num_rows, generator=generator).to(device)
    mixed = rows_of(columns, order)
    starts = range(0, max(num_rows - size // 2, 1), size)
    for start, stop in zip(starts, [*starts[1:], num_rows], strict=True):
        yield rows_of(mixed, slice(start, stop))


def after(minibatch: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that a policy sees after the transitions: "obs" is "new_obs", and so on."""
    return {name.removeprefix(_NEW): column for name, column in minibatch.items() if name.startswith(_NEW)}


def check_sees_rollouts(policy: Policy, algorithm: str) -> None:
    """Refuse a policy with a memory, or of spaces that a rollout's rows of floats cannot be made into."""
    seen, actions = policy.observation_space, policy.action_space
    kinds = (gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)
    if not isinstance(seen, gym.spaces.Box) or not isinstance(actions, kinds) or module_of(policy).is_recurrent:
        raise InvalidArgument(
            f"{algorithm}.update_from_rollout: a block has rows of floats, and {type(policy).__name__} sees {seen}, "
            f"acts in {actions}{' and has a memory' if module_of(policy).is_recurrent else ''}: learn from "
            "episodes by update(rollout_to_episodes(...))"
        )


def steps_of_rollout(policy: Policy, steps: Any) -> dict[str, Any]:
    """Observations, actions and their log probabilities [B, ...] of a rollout's steps [B], as a policy sees them."""
    seen, actions = policy.observation_space, policy.action_space
    taken = steps["action"].reshape(-1, *(actions.shape or ()))
    return {
        Columns.OBS: steps["obs"].reshape(-1, *(seen.shape or ())),
        Columns.ACTIONS: taken if isinstance(actions, gym.spaces.Box) else taken.long(),
        Columns.ACTION_LOGP: steps["sample_log_prob"],
    }

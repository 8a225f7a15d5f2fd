"""Connector that converts actions to the form that a Gymnasium vector environment accepts."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium import spaces

from connectors.column_parts import rows_of
from connectors.connector import ColumnDict, Connector
from episodes.columns import Columns

__all__ = ["ListifyForVectorEnv"]

_BATCHED = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class ListifyForVectorEnv(Connector):
    """Connector that converts "actions_for_env" to the form of Gymnasium's batched action spaces.

    Box, Discrete, MultiDiscrete and MultiBinary need arrays [N, ...], so mostly nothing changes. Parts in other spaces
    become tuples of N actions.
    """

    reads = (Columns.ACTIONS_FOR_ENV,)
    writes = (Columns.ACTIONS_FOR_ENV,)
    changes_rows = False

    def set_input_spaces(self, observation_space: gym.Space | None, action_space: gym.Space | None) -> None:
        """Set the input spaces, and determine whether actions of this space need a conversion."""
        super().set_input_spaces(observation_space, action_space)
        self.changes_rows = action_space is not None and not _batched_as_arrays(action_space)

    def __call__(self, *, batch: ColumnDict, **kwargs: object) -> ColumnDict:
        if self.changes_rows:
            actions = batch.get(Columns.ACTIONS_FOR_ENV, batch.get(Columns.ACTIONS))
            batch[Columns.ACTIONS_FOR_ENV] = _batched(self.input_action_space, actions)
        return batch


def _batched_as_arrays(space: gym.Space) -> bool:
    """Return True if Gymnasium batches all parts of a space as arrays, so that actions can stay arrays."""
    if isinstance(space, spaces.Dict):
        return all(map(_batched_as_arrays, space.spaces.values()))
    if isinstance(space, spaces.Tuple):
        return all(map(_batched_as_arrays, space.spaces))
    return isinstance(space, _BATCHED)


def _batched(space: gym.Space | None, actions: Any) -> Any:
    """Return actions in the form in which Gymnasium batches a space: arrays, or tuples of items for spaces such as
    Text.
    """
    if isinstance(space, spaces.Dict):
        return {key: _batched(part, actions[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_batched(part, action) for part, action in zip(space.spaces, actions, strict=True))
    return actions if isinstance(space, _BATCHED) else tuple(rows_of(actions))

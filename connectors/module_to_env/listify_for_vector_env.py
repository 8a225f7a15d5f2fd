"""Connector that converts actions to the form that a Gymnasium vector environment accepts."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from connectors.column_parts import rows_of
from connectors.connector import ColumnDict, Connector
from episodes.columns import Columns
from episodes.tracks.space_kinds import kind_of, map_items
from episodes.tracks.spaces import elementary_spaces

__all__ = ["ListifyForVectorEnv"]


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
        self.changes_rows = action_space is not None and not all(
            kind_of(part).is_array for _, part in elementary_spaces(action_space)
        )

    def __call__(self, *, batch: ColumnDict, **kwargs: object) -> ColumnDict:
        if self.changes_rows:
            actions = batch.get(Columns.ACTIONS_FOR_ENV, batch.get(Columns.ACTIONS))
            batch[Columns.ACTIONS_FOR_ENV] = map_items(_batched, actions, self.input_action_space)
        return batch


def _batched(actions: Any, space: gym.Space | None) -> Any:
    """Return actions in the form in which Gymnasium batches a space that is not nested: an array, or a tuple of items
    for spaces such as Text.
    """
    return actions if kind_of(space).is_array else tuple(rows_of(actions))

"""Connector that scales or clips the policy's actions to the bounds of the environment's action space."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from connectors.connector import ColumnDict, Connector
from episodes.columns import Columns
from episodes.data_types import NestedArrays
from episodes.errors import ShapeMismatch
from episodes.tracks import nested
from episodes.tracks.casting import try_cast
from episodes.tracks.policy_box import has_policy_actions, policy_space_of, to_env_actions
from episodes.tracks.space_kinds import kind_of, map_items, map_space
from episodes.tracks.validation import checked_flag

__all__ = ["NormalizeAndClipActions"]


class NormalizeAndClipActions(Connector):
    """Connector that adds "actions_for_env" [N, ...], the policy's actions scaled or clipped to the bounds of the
    action space.

    Only Box spaces have bounds; actions in other spaces keep their values. Integers get the dtype of their space, since
    `int64(1)` is no item of `Discrete(3, dtype=np.int32)`. Episodes store the policy's actions, with the
    mapping in their action space (`episodes.PolicyBox`).

    Args:
        input_observation_space: the space of observations; a pipeline sets it.
        input_action_space: the environment's action space; a pipeline sets it.
        normalize_actions: the policy acts in [-1, 1], which is mapped to the bounds of each Box dimension. The result
            is clipped to the bounds, whatever `clip_actions` is. Dimensions without two bounds are only clipped.
        clip_actions: the policy acts in the environment's units, and actions are clipped to the bounds.
        name: the connector's name in its pipeline; the class's name by default.
    """

    reads = (Columns.ACTIONS,)
    writes = (Columns.ACTIONS_FOR_ENV,)

    def __init__(
        self,
        input_observation_space: gym.Space | None = None,
        input_action_space: gym.Space | None = None,
        *,
        normalize_actions: bool = True,
        clip_actions: bool = False,
        name: str | None = None,
    ) -> None:
        self.normalize_actions = checked_flag("normalize_actions", normalize_actions)
        self.clip_actions = checked_flag("clip_actions", clip_actions)
        self.mapping = "normalize" if normalize_actions else "clip" if clip_actions else "none"
        self._policy_space: Any = None
        self._has_units = self._has_small_ints = False
        super().__init__(input_observation_space, input_action_space, name=name)

    def set_input_spaces(self, observation_space: gym.Space | None, action_space: gym.Space | None) -> None:
        super().set_input_spaces(observation_space, action_space)
        self._policy_space = None if action_space is None else policy_space_of(action_space, self.mapping)
        self._has_units = self.mapping != "none" and has_policy_actions(self._policy_space)
        self._has_small_ints = False
        if action_space is not None:
            map_space(self._note_dtype, action_space)
        self.changes_rows = self._has_units or self._has_small_ints

    def _note_dtype(self, part: gym.Space) -> gym.Space:
        self._has_small_ints |= _has_integers(part) and part.dtype != np.int64
        return part

    def __call__(self, *, batch: ColumnDict, **kwargs: object) -> ColumnDict:
        if Columns.ACTIONS_FOR_ENV not in batch:
            actions = batch[Columns.ACTIONS]
            if self._has_small_ints:
                actions = batch[Columns.ACTIONS] = self._in_dtypes(actions)
            batch[Columns.ACTIONS_FOR_ENV] = self.to_env(actions) if self._has_units else actions
        return batch

    def to_env(self, actions: NestedArrays) -> Any:
        """Return the policy's actions [..., *item] converted to the units of the environment, [..., *item].

        Raises:
            ShapeMismatch: actions that are not nested or shaped like the action space.
        """
        try:
            return to_env_actions(self._policy_space, actions)
        except (ValueError, TypeError, LookupError) as error:
            raise self._misfit(actions, error) from error

    def _in_dtypes(self, actions: NestedArrays) -> Any:
        """Return the actions with their integers in the dtypes of the space."""
        try:
            return map_items(_in_dtype_of, actions, self.input_action_space)
        except (ValueError, TypeError, LookupError) as error:
            raise self._misfit(actions, error) from error

    def _misfit(self, actions: NestedArrays, error: Exception) -> ShapeMismatch:
        return ShapeMismatch(
            f"{self.name}: the policy's actions are {nested.describe(actions)}; give actions [N, ...] of "
            f"{self.input_action_space}: {error}"
        )


def _has_integers(space: gym.Space) -> bool:
    return kind_of(space).is_array and np.dtype(space.dtype).kind in "iu"


def _in_dtype_of(items: Any, space: gym.Space) -> Any:
    """Return integers in the dtype of their space, and other items or integers that do not fit as they are."""
    if type(items) is not np.ndarray or items.dtype == space.dtype or items.dtype.kind not in "iu":
        return items
    cast = try_cast(items, np.dtype(space.dtype)) if _has_integers(space) else None
    return items if cast is None else cast

"""Actions in the environment's units, out of actions in the policy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from connectors.connector import ColumnDict, Connector
from episodes.columns import Columns
from episodes.errors import ShapeMismatch
from episodes.tracks import nested
from episodes.tracks.validation import checked_flag

__all__ = ["NormalizeAndClipActions"]


class NormalizeAndClipActions(Connector):
    """Adds "actions_for_env" [N, ...]: "actions", brought from the policy's units into the environment's.

    With `normalize_actions` the policy acts in [-1, 1], which is spread over the bounds of each Box dimension (and
    clipped to them, whatever `clip_actions` says); with `clip_actions` alone it acts in the environment's units, and
    actions are only clipped. Dimensions without two bounds are not spread; spaces other than Box pass as they are.
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
        self._kind = _Spread if normalize_actions else _Clip if clip_actions else None
        self._leaves: Any = None
        super().__init__(input_observation_space, input_action_space, name=name)

    def set_input_spaces(self, observation_space: gym.Space | None, action_space: gym.Space | None) -> None:
        """Take new input spaces, and make what each leaf of the actions goes through."""
        super().set_input_spaces(observation_space, action_space)
        self._leaves = None if self._kind is None else _per_leaf(action_space, self._kind)
        self.changes_rows = self._leaves is not None

    def __call__(self, *, batch: ColumnDict, **kwargs: Any) -> ColumnDict:
        if Columns.ACTIONS_FOR_ENV not in batch:
            actions = batch[Columns.ACTIONS]
            batch[Columns.ACTIONS_FOR_ENV] = actions if self._leaves is None else self.to_env(actions)
        return batch

    def to_env(self, actions: Any) -> Any:
        """Actions [..., *action shape] in the environment's units, out of the policy's; ShapeMismatch for others."""
        try:
            return _apply(lambda leaf, change: change.to_env(leaf), actions, self._leaves)
        except ValueError as error:
            raise ShapeMismatch(
                f"{self.name}: the policy's actions are {nested.describe(actions)}; give actions [N, ...] of "
                f"{self.input_action_space}: {error}"
            ) from error

    def policy_action_space(self, space: gym.Space) -> gym.Space:
        """The space of the policy's actions: integer Boxes that are spread take fractions between -1 and 1."""
        return _fractional(space) if self._kind is _Spread else space

    def from_env(self, actions: Any) -> Any:
        """The inverse of `to_env` for actions within the bounds: what the policy would have had to say."""
        return _apply(lambda leaf, change: change.from_env(leaf), actions, self._leaves)


def _per_leaf(space: gym.Space | None, kind: type[_Change]) -> Any:
    """A nested value of what is done to each leaf of the space's items; None where nothing is done to any."""
    if isinstance(space, spaces.Dict):
        changes = {key: _per_leaf(part, kind) for key, part in space.spaces.items()}
        return changes if any(change is not None for change in changes.values()) else None
    if isinstance(space, spaces.Tuple):
        parts = tuple(_per_leaf(part, kind) for part in space.spaces)
        return parts if any(change is not None for change in parts) else None
    if not isinstance(space, spaces.Box) or not (space.bounded_below | space.bounded_above).any():
        return None
    return kind(space)


def _fractional(space: gym.Space) -> gym.Space:
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: _fractional(part) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([_fractional(part) for part in space.spaces])
    if not isinstance(space, spaces.Box) or np.issubdtype(space.dtype, np.floating):
        return space
    return spaces.Box(-1.0, 1.0, space.shape, np.float32)


def _apply(change_leaf: Callable[[Any, _Change], Any], actions: Any, changes: Any) -> Any:
    """The actions with their leaves changed; a None in `changes` leaves all that is under it as it is."""
    if changes is None:
        return actions
    if isinstance(changes, _Change):
        return change_leaf(actions, changes)
    if isinstance(changes, dict):
        return {key: _apply(change_leaf, actions[key], change) for key, change in changes.items()}
    pairs = zip(actions, changes, strict=True)
    return nested.rebuild(actions, [_apply(change_leaf, action, change) for action, change in pairs])


class _Change:
    """What is done to actions of one Box."""

    def __init__(self, space: spaces.Box) -> None:
        self.low, self.high, self.dtype = space.low, space.high, space.dtype
        self.is_float = np.issubdtype(space.dtype, np.floating)

    def to_env(self, actions: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def from_env(self, actions: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def in_bounds(self, actions: np.ndarray) -> np.ndarray:
        """The actions in the space's bounds and dtype."""
        if not self.is_float and actions.dtype.kind == "f":
            actions = np.rint(actions)
        return np.clip(actions, self.low, self.high).astype(self.dtype, copy=False)


class _Clip(_Change):
    """Actions cut to the bounds."""

    def to_env(self, actions: np.ndarray) -> np.ndarray:
        return self.in_bounds(actions)

    def from_env(self, actions: np.ndarray) -> np.ndarray:
        return actions


class _Spread(_Change):
    """[-1, 1] spread over the bounds: center + half_width * action; other dimensions have center 0, half width 1."""

    def __init__(self, space: spaces.Box) -> None:
        super().__init__(space)
        both = space.bounded_below & space.bounded_above
        low, high = (
            np.where(both, bound, sign).astype(np.float64) for bound, sign in ((space.low, -1), (space.high, 1))
        )
        dtype = space.dtype if self.is_float else np.float64
        self.center = ((low + high) / 2).astype(dtype)
        self.half_width = ((high - low) / 2).astype(dtype)

    def to_env(self, actions: np.ndarray) -> np.ndarray:
        return self.in_bounds(self.center + self.half_width * actions)

    def from_env(self, actions: np.ndarray) -> np.ndarray:
        width = np.where(self.half_width == 0, 1, self.half_width)
        return (actions - self.center) / width

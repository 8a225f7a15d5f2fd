"""Action spaces that also define how the policy's actions are mapped to the environment's bounded actions.

A policy often acts in units of its own, in [-1, 1] for example, and its actions are mapped to the environment's bounds
before each step. Episodes store the policy's actions, since log-probabilities belong to them. Their action space is
then the environment's, with a `PolicyBox` in place of each bounded `Box`. It stores the mapping:

    policy's action (stored)  --PolicyBox.to_env-->  action sent to the environment
                   [-1, 1]                           the Box's bounds

A plain `Box` with bounds in an episode's action space therefore means: these are the environment's own actions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, get_args

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from episodes.errors import EpisodeStateError, InvalidArgument, TrackMismatch
from episodes.tracks import nested
from episodes.tracks.space_kinds import is_box, is_dict, is_nested, map_space
from episodes.tracks.spaces import elementary_spaces

if TYPE_CHECKING:
    from episodes.data_types import Item, Items, Space

ActionMapping = Literal["normalize", "clip", "none", "recorded"]
MAPPINGS: tuple[str, ...] = get_args(ActionMapping)


class PolicyBox(spaces.Box):
    """Unbounded action space of a policy, which also defines how its actions are mapped to the
    environment's bounded `Box`.

    Args:
        env_space: the environment's `Box`.
        mapping: how the environment's action is computed from the policy's. "normalize": -1 is the lower bound and 1
            the upper bound of each dimension, and the result is clipped to the bounds. Dimensions without two finite
            bounds are only clipped. "clip": the action is clipped to the bounds. "none": the action is sent unchanged.
            "recorded": a connector computed it, and the extra model output "actions_for_env" has it.

    Raises:
        InvalidArgument: another mapping.

    >>> box = PolicyBox(spaces.Box(-3, 3, (1,)), "normalize")
    >>> box.to_env(np.array([0.5, 2.0], np.float32)[:, None]).tolist()
    [[1.5], [3.0]]
    """

    def __init__(self, env_space: spaces.Box, mapping: str) -> None:
        if not isinstance(mapping, str) or mapping not in MAPPINGS:
            raise InvalidArgument(f"PolicyBox: mapping={mapping!r}; give one of {', '.join(MAPPINGS)}")
        is_float = np.issubdtype(env_space.dtype, np.floating)
        keeps_dtype = mapping == "none" or (is_float and env_space.dtype.itemsize >= 4)
        dtype: Any = env_space.dtype if keeps_dtype else np.dtype(np.float32)
        low, high = (-np.inf, np.inf) if np.issubdtype(dtype, np.floating) else (env_space.low, env_space.high)
        super().__init__(low, high, env_space.shape, dtype.type)
        self.env_space = env_space
        self.mapping = mapping
        self._is_float = is_float
        below, above = bounded_parts(env_space)
        spread = below & above
        lowest = np.where(spread, env_space.low, -1).astype(np.float64)
        highest = np.where(spread, env_space.high, 1).astype(np.float64)
        exact = env_space.dtype if is_float else np.dtype(np.float64)
        self._center = ((lowest + highest) / 2).astype(exact)  # 0 in dimensions that are not spread
        self._half_width = ((highest - lowest) / 2).astype(exact)  # 1 in dimensions that are not spread

    def to_env(self, actions: np.ndarray) -> np.ndarray:
        """Map the policy's actions [..., *shape] to the environment's actions [..., *shape].

        Raises:
            EpisodeStateError: the mapping is "recorded".
        """
        actions = nested.as_any_array(actions)
        if self.mapping == "none":
            return actions
        if self.mapping == "recorded":
            raise EpisodeStateError(
                "these actions were mapped to the environment's by a connector, and the episode has no extra model "
                "output 'actions_for_env'; a replay buffer stores it with "
                "sample_into(extra_model_outputs=['actions_for_env'])"
            )
        if self.mapping == "normalize":
            actions = self._center + self._half_width * actions
        if not self._is_float and actions.dtype.kind == "f":
            actions = np.rint(actions)
        return np.clip(actions, self.env_space.low, self.env_space.high).astype(self.env_space.dtype, copy=False)

    def from_env(self, actions: np.ndarray) -> np.ndarray:
        """Map the environment's actions [..., *shape] to the policy's actions [..., *shape]:
        the inverse of `to_env`."""
        actions = np.asarray(actions)
        if self.mapping == "normalize":
            actions = (actions - self._center) / np.where(self._half_width == 0, 1, self._half_width)
        return actions.astype(self.dtype, copy=False)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, PolicyBox) and self.mapping == other.mapping and bool(self.env_space == other.env_space)
        )

    __hash__ = None  # type: ignore[assignment] # as gymnasium's Box

    def __repr__(self) -> str:
        return f"PolicyBox({self.env_space}, {self.mapping!r})"


def policy_space_of(space: gym.Space, mapping: str) -> gym.Space:
    """Return the policy's action space for an environment's action space: each bounded `Box` becomes a
    `PolicyBox` with `mapping`."""
    return _map_boxes(space, lambda box: PolicyBox(getattr(box, "env_space", box), mapping))


def env_space_of(space: Space | None) -> Any:
    """Return the environment's action space for a policy's action space: each `PolicyBox`
    becomes the environment's `Box`."""
    return _map_boxes(space, lambda box: getattr(box, "env_space", box))


def has_env_actions(space: gym.Space | None) -> bool:
    """Return True if actions of the space are in the environment's units: some bounded `Box` is not a `PolicyBox`."""
    return any(type(box) is not PolicyBox for box in _bounded_boxes(space))


def has_policy_actions(space: gym.Space | None) -> bool:
    """Return True if the space contains a `PolicyBox`, whose actions must be mapped before they
    are sent to the environment."""
    return any(type(box) is PolicyBox for box in _bounded_boxes(space))


def check_same_units(stored: gym.Space | None, new: gym.Space | None, label: str) -> None:
    """Raise `TrackMismatch` if actions of two spaces cannot be stored together, because one is a policy's space.

    Two equal spaces are accepted, and so are two spaces of an environment.
    """
    if stored is None or new is None or stored is new or stored == new:
        return
    if has_policy_actions(stored) or has_policy_actions(new):
        raise TrackMismatch(
            f"{label}: actions of {new}, those stored have the action_space {stored}; convert one of them by "
            "with_env_actions() or with_policy_actions()"
        )


def to_env_actions(space: gym.Space | None, actions: Item) -> Any:
    """Convert actions [..., *item] of the space `space` to the environment's actions.
    Each `PolicyBox` in it maps its part."""
    return _map_items(space, actions, PolicyBox.to_env)


def to_policy_actions(space: gym.Space | None, actions: Item) -> Any:
    """Convert the environment's actions [..., *item] to a policy's actions, which belong to `space`.
    Each `PolicyBox` in it maps its part."""
    return _map_items(space, actions, PolicyBox.from_env)


def to_env_items(space: gym.Space | None, items: Items) -> Any:
    """Convert n actions of the space `space`, given as a list or as nested arrays [n, ...],
    to the environment's actions."""
    return [to_env_actions(space, item) for item in items] if isinstance(items, list) else to_env_actions(space, items)


def _bounded_boxes(space: gym.Space | None) -> list[spaces.Box]:
    """Return all Box spaces with bounds in a nested space. The list is empty for None and for spaces without bounds."""
    return [part for _, part in elementary_spaces(space) if is_box(part) and _is_bounded(part)]


def _is_bounded(box: spaces.Box) -> bool:
    """Return True for a `PolicyBox`, and for a Box with at least one finite bound."""
    return isinstance(box, PolicyBox) or any(mask.any() for mask in bounded_parts(box))


def bounded_parts(box: spaces.Box) -> tuple[np.ndarray, np.ndarray]:
    """Return which dimensions of a Box have a lower and an upper bound, bool [*shape] each.

    The largest floats count as infinite: many environments declare `Box(-np.finfo(np.float32).max, ...)`.
    """
    below, above = box.bounded_below, box.bounded_above
    if not np.issubdtype(box.dtype, np.floating):
        return below, above
    dtype: Any = box.dtype
    largest = min(float(np.finfo(dtype).max), float(np.finfo(np.float32).max))
    return below & (box.low > -largest), above & (box.high < largest)


def without_huge_bounds(space: Space | None) -> Any:
    """Return a copy of a space with infinite bounds in place of the largest floats, or the space itself without such.

    The copy is seeded from `space`, so that its samples follow the seed.
    """

    def change(box: spaces.Box) -> spaces.Box:
        below, above = bounded_parts(box)
        if (below == box.bounded_below).all() and (above == box.bounded_above).all():
            return box
        low, high = np.where(below, box.low, -np.inf), np.where(above, box.high, np.inf)
        changed = spaces.Box(low.astype(box.dtype), high.astype(box.dtype), box.shape, box.dtype.type)  # type: ignore[union-attr]
        changed.seed(int(box.np_random.integers(2**31)))
        return changed

    return _map_boxes(space, change, lambda box: bool((box.bounded_below | box.bounded_above).any()))


def _map_boxes(
    space: Space | None, change: Callable[[spaces.Box], spaces.Box], changes: Callable[[spaces.Box], bool] = _is_bounded
) -> Any:
    """Return a copy of an action space in which each box for which `changes(box)` is True, by default each bounded
    one, is replaced by `change(box)`, or the space itself if nothing changes.
    """
    return map_space(lambda part: change(part) if is_box(part) and changes(part) else part, space)


def _map_items(space: gym.Space | None, actions: Any, change: Callable[[PolicyBox, Any], Any]) -> Any:
    """Apply `change` to the parts of nested actions whose space is a `PolicyBox`. Other parts stay as they are."""
    if isinstance(space, PolicyBox):
        return change(space, actions)
    if not is_nested(space):
        return actions
    if is_dict(space):
        return {key: _map_items(part, actions[key], change) for key, part in space.spaces.items()}
    known: Any = space
    pairs = zip(known.spaces, actions, strict=True)
    return nested.rebuild(actions, [_map_items(part, action, change) for part, action in pairs])

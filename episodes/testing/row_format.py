"""Checks of the format of one vector environment result: shapes, dtypes, bounds, flags, rewards and infos."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from episodes.testing.contract import brief
from episodes.tracks.space_kinds import SpaceKind, bounds_of, contains, kind_of, map_items, parts_of

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

# Makes the violation of the row at hand: broken(expected, found, advice="", **where).
Broken = Callable[..., Exception]


def check_observations(space: gym.Space, rows: Any, num_envs: int, broken: Broken) -> None:
    """Raise `ContractViolation` unless observations [N, ...] have the shapes, dtypes and bounds of the space.

    Args:
        space: space of one environment's observations.
    """
    _check_leaves(space, rows, num_envs, "observations", broken)
    if not _all_inside(space, rows):
        for env in range(num_envs):
            check_item(space, item_of(space, rows, env), "observations", broken, environment=env)


def _all_inside(space: gym.Space, rows: Any) -> bool:
    """Return True if a fast check proves that all N items are inside the space. False means that it is unknown."""
    if kind_of(space).is_nested:
        return all(_all_inside(part, rows[key]) for key, part in parts_of(space).items())
    bounds = bounds_of(space)
    return bounds is not None and bool(((rows >= bounds.low) & (rows <= bounds.high)).all())


def item_of(space: gym.Space, rows: Any, env: int) -> Any:
    """Return the item of environment `env` from nested arrays [N, ...]."""
    return map_items(lambda part, _: part[env], rows, space)


def check_item(space: gym.Space, item: Any, name: str, broken: Broken, **place: object) -> None:
    """Raise `ContractViolation` unless each array of a nested item is inside its subspace."""
    kind = kind_of(space)
    if kind.is_nested:
        for key, part in parts_of(space).items():
            check_item(part, item[key], f"{name}[{key!r}]", broken, **place)
    elif not contains(space, np.asarray(item) if kind.is_array else item):
        value = (
            f"{item!r}" if np.size(item) <= 8 else f"{brief(np.asarray(item))} from {np.min(item)} to {np.max(item)}"
        )
        raise broken(f"{name} inside {space}", value, "widen the space, or clip", **place)


def _check_leaves(space: gym.Space, rows: Any, num_envs: int, name: str, broken: Broken) -> None:
    """Raise an error, made by `broken`, unless `rows` have the structure, shapes and dtypes of N items of the space.

    Args:
        name: name of the rows in the error.
        broken: function from what was expected and what was given to an error.
    """
    kind, parts = kind_of(space), parts_of(space)
    if kind is SpaceKind.DICT and (not isinstance(rows, dict) or rows.keys() != parts.keys()):
        raise broken(f"{name} to be a dict with the keys {list(parts)}", brief(rows))
    if kind is SpaceKind.TUPLE and (not isinstance(rows, tuple) or len(rows) != len(parts)):
        raise broken(f"{name} to be a tuple of {len(parts)}", brief(rows))
    if kind.is_nested:
        for key, part in parts.items():
            _check_leaves(part, rows[key], num_envs, f"{name}[{key!r}]", broken)
    elif kind.is_array:
        check_array(rows, name, (num_envs, *(space.shape or ())), space.dtype, broken)
    elif not hasattr(rows, "__len__") or len(rows) != num_envs:
        raise broken(f"{name} to be {num_envs} items of {space}", brief(rows))


def check_array(value: Any, name: str, shape: tuple[int, ...], dtype: DTypeLike | None, broken: Broken) -> None:
    """Raise `ContractViolation` unless `value` is a numpy array of this shape and dtype (None: any float dtype)."""
    expected = "floating" if dtype is None else str(np.dtype(dtype))
    is_array = isinstance(value, np.ndarray)
    fits = is_array and (value.dtype.kind == "f" if dtype is None else value.dtype == dtype)
    if fits and value.shape == shape:
        return
    actual = brief(value) if is_array else f"a {type(value).__name__}"
    raise broken(f"{name} to be a numpy array {expected} {list(shape)}", actual)


def check_scalars(rewards: Any, terminateds: Any, truncateds: Any, num_envs: int, broken: Broken) -> None:
    """Raise `ContractViolation` unless rewards are finite floats [N] and both flags are separate bool arrays [N]."""
    check_array(rewards, "rewards", (num_envs,), None, broken)
    check_array(terminateds, "terminateds", (num_envs,), bool, broken)
    check_array(truncateds, "truncateds", (num_envs,), bool, broken)
    if np.shares_memory(terminateds, truncateds):
        raise broken(
            "terminateds and truncateds to be two arrays", "one", "an episode that a time limit stops did not terminate"
        )
    if not np.isfinite(rewards).all():
        env = int(np.flatnonzero(~np.isfinite(rewards))[0])
        raise broken("a finite reward", str(rewards[env]), environment=env)


def check_infos(infos: object, num_envs: int, broken: Broken, name: str = "infos") -> None:
    """Raise an error, made by `broken`, unless `infos` is in Gymnasium's form for vector environments.

    It is a dict of values for all environments, or of arrays [N, ...] with masks.
    """
    if not isinstance(infos, dict):
        raise broken(f"{name} to be a dict of arrays", brief(infos), "a list of dicts is no vector info")
    for key, value in infos.items():
        if not isinstance(key, str):
            raise broken(f"{name} to have strings for keys", repr(key))
        if isinstance(value, dict):
            if key not in ("final_obs", "_final_obs"):
                check_infos(value, num_envs, broken, f"{name}[{key!r}]")
        elif isinstance(value, np.ndarray) and value.ndim and len(value) != num_envs:
            raise broken(f"{name}[{key!r}] to have a row for each of {num_envs} environments", brief(value))
        if key.startswith("_") and key[1:] in infos:
            check_array(value, f"{name}[{key!r}]", (num_envs,), bool, broken)

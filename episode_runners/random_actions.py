"""Random, legal actions for environments whose observations have an action mask."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from numpy.typing import ArrayLike

from episodes.tracks import nested
from episodes.tracks.policy_box import without_huge_bounds
from episodes.tracks.space_kinds import SpaceKind, choices_of, is_dict, kind_of, parts_of
from episodes.tracks.spaces import stacked

MASK = "action_mask"  # key of the mask in `Dict` observations


def sample_random_actions(env: VectorEnv, observations: Any) -> Any:
    """Return random actions [N, ...] for the newest observations [N, ...] of a vector environment.
    Discrete actions obey an "action_mask" in `Dict` observations.
    """
    space = env.single_observation_space
    if not (is_dict(space) and MASK in space.spaces):
        return without_huge_bounds(env.action_space).sample()
    masks, single = observations[MASK], env.single_action_space
    if kind_of(single) is SpaceKind.DISCRETE:
        return env.action_space.sample(mask=tuple(map(_legal, np.asarray(masks))))
    single = deepcopy(single)  # the batched space takes no masks
    single.seed(int(env.action_space.np_random.integers(2**31)))
    rows = [sample_random_action(single, {MASK: nested.take(masks, i)}) for i in range(env.num_envs)]
    return stacked(rows, single)


def sample_random_action(space: spaces.Space, *sources: object) -> Any:
    """Sample a random action of a space. It obeys the "action_mask" in the first of the `sources` that has one, such as
    an observation or an info.
    """
    for source in sources:
        if isinstance(source, Mapping) and MASK in source:
            return without_huge_bounds(space).sample(mask=_mask_of(space, source[MASK]))
    return without_huge_bounds(space).sample()


def _mask_of(space: gym.Space, mask: Any) -> Any:
    """Return a mask in the form that `space.sample` takes, or None if the space has no masked actions.

    Args:
        mask: bool or int [n] for a `Discrete`, the masks of all choices concatenated for a `MultiDiscrete`, and for
            `Dict` and `Tuple` spaces a mask for each part: the masks that the policies of this library take.
    """
    match kind_of(space):
        case SpaceKind.DISCRETE:
            return _legal(mask)
        case SpaceKind.MULTI_DISCRETE:
            counts = choices_of(space).counts
            return _nested(list(map(_legal, np.split(np.asarray(mask), counts.cumsum()[:-1]))), counts.shape)
        case SpaceKind.DICT:
            return {key: _mask_of(part, mask[key]) if key in mask else None for key, part in parts_of(space).items()}
        case SpaceKind.TUPLE:
            return tuple(map(_mask_of, parts_of(space).values(), mask))
    return None


def _legal(mask: ArrayLike) -> np.ndarray:
    """Return the mask of a choice as int8 [n]. A mask that forbids all actions allows all, as in policies."""
    flags = np.asarray(mask).astype(bool).astype(np.int8)
    return flags if flags.any() else np.ones_like(flags)


def _nested(masks: list[np.ndarray], shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Return the masks of all choices of a `MultiDiscrete` as tuples, nested as its `shape`."""
    if len(shape) == 1:
        return tuple(masks)
    size = len(masks) // shape[0]
    return tuple([_nested(masks[i * size : (i + 1) * size], shape[1:]) for i in range(shape[0])])

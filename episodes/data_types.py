"""Type aliases of parameters, for all packages of the library.

A parameter that is only passed on, compared or printed is an `object`. `Any` is for parameters that no alias fits.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import gymnasium as gym
import numpy as np

if TYPE_CHECKING:
    from gymnasium.spaces import GraphInstance
    from numpy.typing import ArrayLike

NestedArrays: TypeAlias = "np.ndarray | Mapping[Any, NestedArrays] | tuple[NestedArrays, ...]"
"""An array, or dicts and tuples of arrays that share their first axis."""

Indices: TypeAlias = "ArrayLike | slice"
"""Ints, a mask of bools, or a slice, which select items of a sequence."""

Item: TypeAlias = "ArrayLike | GraphInstance | Mapping[Any, Item] | Sequence[Item]"
"""An observation, an action or an extra output: a number, text, array or tensor, or dicts and tuples of these."""

Items: TypeAlias = "NestedArrays | ArrayLike | Sequence[Item]"
"""Consecutive items, or those of N environments: arrays [n, ...] nested as an item is, or a list of items."""

NestedDtypes: TypeAlias = "np.dtype | Mapping[Any, NestedDtypes] | tuple[NestedDtypes, ...]"
"""The dtypes of arrays, nested as these are."""

Index: TypeAlias = "int | np.integer | slice | Sequence[int] | np.ndarray"
"""An index of rows: one row, or several."""

Space: TypeAlias = gym.Space[Any]
"""A Gymnasium space of any kind."""

AgentID: TypeAlias = Hashable
"""The name of an agent in its environment."""

ModuleID: TypeAlias = Hashable
"""The name of a policy (module) that acts for agents: a string in RLlib, any hashable value here."""

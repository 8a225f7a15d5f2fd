"""Names for the types of what parameters take, for all packages of the house.

A parameter that is only passed on, compared or printed is an `object`. `Any` is left for what no name fits.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import gymnasium as gym
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

NestedArrays: TypeAlias = "np.ndarray | Mapping[Any, NestedArrays] | tuple[NestedArrays, ...]"
"""An array, or dicts and tuples of arrays that share their first axis."""

Indices: TypeAlias = "ArrayLike | slice"
"""Ints, a mask of bools, or a slice, which select items of a sequence."""

Space: TypeAlias = gym.Space[Any]
"""A Gymnasium space of any kind."""

AgentID: TypeAlias = Hashable
"""The name of an agent in its environment."""

ModuleID: TypeAlias = str
"""The name of a policy (RLlib: module) that acts for agents."""

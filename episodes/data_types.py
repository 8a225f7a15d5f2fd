"""Names for the types of what parameters take, for all packages of the house.

A parameter that is only passed on, compared or printed is an `object`. `Any` is left for what no name fits.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np

NestedArrays: TypeAlias = "np.ndarray | Mapping[Any, NestedArrays] | tuple[NestedArrays, ...]"
"""An array, or dicts and tuples of arrays that share their first axis."""

Space: TypeAlias = gym.Space[Any]
"""A Gymnasium space of any kind."""

AgentID: TypeAlias = Hashable
"""The name of an agent in its environment."""

ModuleID: TypeAlias = Hashable
"""The name of a policy (module) that acts for agents: a string in RLlib, any hashable value here."""

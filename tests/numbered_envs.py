"""Environments with unique observations and episodes of different lengths."""

from __future__ import annotations

from itertools import count
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

_NUMBERS = count()


class Numbered(gym.Env):
    """Environment with observations of its index and a count of all its observations."""

    observation_space: spaces.Space = spaces.Box(-1e6, 1e6, (2,), np.float32)
    action_space: spaces.Space = spaces.Discrete(3, start=1)

    def __init__(self, number: int | None = None) -> None:
        self.number = next(_NUMBERS) % 7 if number is None else number
        self.shown = self.left = 0

    def _show(self) -> Any:
        self.shown += 1
        return np.array([self.number, self.shown], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.left = 1 + (self.shown * 7 + self.number) % 9
        return self._show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        ended = self.left == 0
        is_odd = self.shown % 2 == 0
        return self._show(), float(self.shown), ended and is_odd, ended and not is_odd, {}


class Pixels(Numbered):
    """`Numbered` with images of one channel as observations, and dicts as actions."""

    observation_space = spaces.Box(0, 255, (2, 2, 1), np.uint8)
    action_space = spaces.Dict({"move": spaces.Box(-1, 1, (2,), np.float32), "jump": spaces.Discrete(2, start=-1)})

    def _show(self) -> np.ndarray:
        number, shown = super()._show().astype(int)
        return np.array([number, shown % 251, shown // 251, 7], np.uint8).reshape(2, 2, 1)


class Goals(Numbered):
    """`Numbered` for two agents."""

    observation_space = spaces.Dict({name: spaces.Box(-1e6, 1e6, (2,), np.float32) for name in ("left", "right")})

    def _show(self) -> dict[str, np.ndarray]:
        return {"left": super()._show(), "right": -super()._show()}

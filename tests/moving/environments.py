"""Small environments for tests of connectors."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces


class Corridor(gym.Env):
    """Corridor from 0 to the right end. Each step costs 0.1, the end pays 1. The observation is the position."""

    action_space = spaces.Discrete(2)  # left, right

    def __init__(self, length: int = 5, limit: int = 20) -> None:
        self.length, self.limit = length, limit
        self.observation_space: gym.Space = spaces.Discrete(length)

    def observation(self) -> Any:
        return self.place

    def info(self) -> dict[str, Any]:
        """Return whether the agent can go left and right, and a bonus."""
        return {"action_mask": np.array([self.place > 0, True]), "bonus": float(self.place)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = self.t = 0
        return self.observation(), self.info()

    def step(self, action: Any) -> Any:
        self.place, self.t = min(max(self.place + (1 if action else -1), 0), self.length - 1), self.t + 1
        done = self.place == self.length - 1
        return self.observation(), 1.0 if done else -0.1, done, self.t >= self.limit and not done, self.info()

    def render(self) -> np.ndarray:
        frame = np.zeros((2, self.length, 3), np.uint8)
        frame[:, self.place] = 255
        return frame


class BoxCorridor(Corridor):
    """Corridor whose observation is a vector [1] with the position."""

    def __init__(self, length: int = 5, limit: int = 20) -> None:
        super().__init__(length, limit)
        self.observation_space = spaces.Box(0, length, (1,), np.float32)

    def observation(self) -> Any:
        return np.array([self.place], np.float32)


class NestedCorridor(Corridor):
    """Corridor whose observation is a Dict of the position, an image of the position, and a Tuple."""

    def __init__(self, length: int = 5, limit: int = 20) -> None:
        super().__init__(length, limit)
        picture = spaces.Box(0, 255, (length, 2), np.uint8)
        flags = spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1, (1,), np.float32)])
        self.observation_space = spaces.Dict({"place": spaces.Discrete(length), "picture": picture, "flags": flags})

    def observation(self) -> Any:
        picture = np.zeros((self.length, 2), np.uint8)
        picture[self.place] = 255
        return {"place": self.place, "picture": picture, "flags": (int(self.place > 0), np.array([0.5], np.float32))}


class PictureCorridor(Corridor):
    """Corridor whose observation is an image [4, length, 1] with a white column."""

    def __init__(self, length: int = 5, limit: int = 20) -> None:
        super().__init__(length, limit)
        self.observation_space = spaces.Box(0, 255, (4, length, 1), np.uint8)

    def observation(self) -> Any:
        picture = np.zeros((4, self.length, 1), np.uint8)
        picture[:, self.place] = 255
        return picture


class Push(gym.Env):
    """Environment whose action in [-1, 1] is added to the position. An episode has 6 steps."""

    observation_space = spaces.Box(-10, 10, (1,), np.float32)

    def __init__(self) -> None:
        self.action_space: gym.Space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place, self.t = np.zeros(1, np.float32), 0
        return self.place.copy(), {}

    def step(self, action: Any) -> Any:
        self.place, self.t = self.place + np.asarray(action, np.float32), self.t + 1
        return self.place.copy(), float(self.place[0]), False, self.t == 6, {}


class PushAndSay(Push):
    """`Push` with nested actions: a distance and a word."""

    def __init__(self) -> None:
        self.action_space = spaces.Dict({"far": spaces.Box(-1, 1, (1,), np.float32), "word": spaces.Discrete(3)})

    def step(self, action: Any) -> Any:
        observation, reward, *ending, info = super().step(action["far"])
        return observation, reward + 10 * float(action["word"]), *ending, info


class Meeting:
    """Two agents on a line of five positions, which are rewarded for a small distance. An episode has 4 env steps."""

    possible_agents = ("a", "b")

    def __init__(self, limit: int = 4) -> None:
        self.limit = limit
        self.observation_spaces = dict.fromkeys(self.possible_agents, spaces.Box(0, 4, (1,), np.float32))
        self.action_spaces = dict.fromkeys(self.possible_agents, spaces.Discrete(2))

    def _observations(self) -> dict[str, np.ndarray]:
        return {agent: np.array([place], np.float32) for agent, place in self.places.items()}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.places, self.t = {"a": 0, "b": 4}, 0
        return self._observations(), {}

    def step(self, actions: dict[str, Any]) -> Any:
        self.t += 1
        for agent, action in actions.items():
            self.places[agent] = min(max(self.places[agent] + (1 if action else -1), 0), 4)
        near = -abs(self.places["a"] - self.places["b"])
        rewards = dict.fromkeys(self.possible_agents, float(near))
        return self._observations(), rewards, {"__all__": False}, {"__all__": self.t >= self.limit}, {}


class Duel:
    """Two agents show a number at the same time, three times. The higher number wins a point from the other agent."""

    possible_agents = (0, 1)

    def __init__(self) -> None:
        self.observation_spaces = dict.fromkeys(self.possible_agents, spaces.Box(0, 3, (1,), np.float32))
        self.action_spaces = dict.fromkeys(self.possible_agents, spaces.Discrete(10))

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return {agent: np.zeros(1, np.float32) for agent in self.possible_agents}, {}

    def step(self, actions: dict[int, Any]) -> Any:
        self.t += 1
        won = float(np.sign(int(actions[0]) - int(actions[1])))
        observations = {agent: np.full(1, self.t, np.float32) for agent in self.possible_agents}
        return observations, {0: won, 1: -won}, {"__all__": self.t == 3}, {"__all__": False}, {}


class Always:
    """Policy that always takes the same action, and stores the batches of its calls."""

    def __init__(self, action: Any = 1) -> None:
        self.action = action
        self.seen: list[dict[str, Any]] = []

    def __call__(self, batch: dict[str, Any], explore: bool | None = None) -> dict[str, Any]:
        self.seen.append(dict(batch))
        num = len(next(leaf for leaf in _leaves(batch["obs"])))
        return {"actions": torch.as_tensor(self.action).expand(num, *np.shape(self.action)).clone()}


def _leaves(value: Any) -> Any:
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple):
        for part in value:
            yield from _leaves(part)
    else:
        yield value

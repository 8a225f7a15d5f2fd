"""Small environments of several agents for tests of learning."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

TARGET = 3


class Targets:
    """Each agent gets 1 in a step if it chooses the sign of its observation, else 0. Agents in `guests` come and go.

    Episodes last `length` steps. A guest is there from step 2 to step 4 of each episode.
    """

    def __init__(self, agents: tuple[str, ...] = ("a", "b"), guests: tuple[str, ...] = (), length: int = 8) -> None:
        self.possible_agents = [*agents, *guests]
        self.guests, self.length = guests, length
        self.observation_spaces = {agent: spaces.Box(-1.0, 1.0, (2,), np.float32) for agent in self.possible_agents}
        self.action_spaces = {agent: spaces.Discrete(2) for agent in self.possible_agents}
        self.generator = np.random.default_rng()

    def _observations(self) -> dict[str, np.ndarray]:
        rows = {agent: self.generator.uniform(-1, 1, 2).astype(np.float32) for agent in self.possible_agents}
        present = 2 <= self.t <= 4
        return {agent: row for agent, row in rows.items() if present or agent not in self.guests}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None:
            self.generator = np.random.default_rng(seed)
        self.t = 0
        self.seen = self._observations()
        return self.seen, {}

    def step(self, actions: dict[str, Any]) -> Any:
        rewards = {agent: float((self.seen[agent][0] > 0) == bool(action)) for agent, action in actions.items()}
        self.t += 1
        self.seen = self._observations()
        leaving = {agent: True for agent in self.guests if self.t == 4 and agent in self.seen}
        terminateds = {**leaving, "__all__": False}
        return self.seen, rewards, terminateds, {"__all__": self.t == self.length}, {}


class TicTacToe:
    """Tic-tac-toe of "x" and "o", who move in turn. The winner gets 1 and the loser -1; a draw gives 0.

    An observation is the board [9] (1: own stone, -1: the other's) and an action mask [9].
    """

    possible_agents = ("x", "o")
    lines = np.array([[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]])

    def __init__(self) -> None:
        space = spaces.Dict(
            {"board": spaces.Box(-1, 1, (9,), np.float32), "action_mask": spaces.Box(0, 1, (9,), np.int8)}
        )
        self.observation_spaces = dict.fromkeys(self.possible_agents, space)
        self.action_spaces = dict.fromkeys(self.possible_agents, spaces.Discrete(9))

    def _seen(self, agent: str) -> dict[str, np.ndarray]:
        sign = 1.0 if agent == "x" else -1.0
        return {"board": (sign * self.board).astype(np.float32), "action_mask": (self.board == 0).astype(np.int8)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.board, self.mover = np.zeros(9), "x"
        return {"x": self._seen("x")}, {}

    def step(self, actions: dict[str, Any]) -> Any:
        mover, waiting = self.mover, "o" if self.mover == "x" else "x"
        self.board[int(actions[mover])] = 1.0 if mover == "x" else -1.0
        has_won = bool((np.abs(self.board[self.lines].sum(1)) == 3).any())
        if has_won or not (self.board == 0).any():
            rewards = {mover: float(has_won), waiting: -float(has_won)}
            return (
                {player: self._seen(player) for player in (mover, waiting)},
                rewards,
                {"__all__": True},
                {"__all__": False},
                {},
            )
        self.mover = waiting
        return {waiting: self._seen(waiting)}, {mover: 0.0, waiting: 0.0}, {"__all__": False}, {"__all__": False}, {}


class TwoPoles:
    """Two independent CartPoles of at most 200 steps. The episode ends when both poles have fallen."""

    possible_agents = ("left", "right")

    def __init__(self) -> None:
        self.poles = {agent: gym.make("CartPole-v1", max_episode_steps=200) for agent in self.possible_agents}
        self.observation_spaces = {agent: pole.observation_space for agent, pole in self.poles.items()}
        self.action_spaces = {agent: pole.action_space for agent, pole in self.poles.items()}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.standing = set(self.possible_agents)
        seeds = {agent: None if seed is None else 2 * seed + i for i, agent in enumerate(self.possible_agents)}
        return {agent: pole.reset(seed=seeds[agent])[0] for agent, pole in self.poles.items()}, {}

    def step(self, actions: dict[str, Any]) -> Any:
        steps = {agent: self.poles[agent].step(action) for agent, action in actions.items()}
        observations, rewards, terminateds, truncateds = (
            {agent: step[i] for agent, step in steps.items()} for i in range(4)
        )
        self.standing -= {agent for agent in steps if terminateds[agent] or truncateds[agent]}
        is_over = not self.standing
        return observations, rewards, {**terminateds, "__all__": is_over}, {**truncateds, "__all__": False}, {}

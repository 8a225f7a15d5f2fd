"""`Together`: Gymnasium environments of single agents as one environment of several agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym


class Together:
    """Environment in which each agent acts in its own Gymnasium environment, until that ends."""

    metadata: dict[str, Any] = {}

    def __init__(self, envs: Mapping[Any, gym.Env]) -> None:
        self.envs, self.possible_agents, self.agents = envs, list(envs), list(envs)

    def observation_space(self, agent: Any) -> gym.Space:
        return self.envs[agent].observation_space

    def action_space(self, agent: Any) -> gym.Space:
        return self.envs[agent].action_space

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = list(self.possible_agents)
        rows = {agent: env.reset(seed=seed) for agent, env in self.envs.items()}
        return tuple({agent: row[i] for agent, row in rows.items()} for i in range(2))

    def step(self, actions: dict[Any, Any]) -> Any:
        rows = {agent: self.envs[agent].step(actions[agent]) for agent in self.agents}
        self.agents = [agent for agent, row in rows.items() if not (row[2] or row[3])]
        return tuple({agent: row[i] for agent, row in rows.items()} for i in range(5))

    def close(self) -> None:
        """Do nothing, since no resource is open."""

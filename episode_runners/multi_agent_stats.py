"""`MultiAgentCollectStats`: statistics of one call of `sample`, by agent and by module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from episodes.multi_agent import MultiAgentEpisode

__all__ = ["MultiAgentCollectStats"]


@dataclass(frozen=True, slots=True)
class MultiAgentCollectStats:
    """Statistics of one call of a multi-agent `sample`: steps, duration, and returns of the episodes that ended.

    Episodes count as a whole, also if earlier calls returned their first chunks.

    Attributes:
        num_env_steps: env steps sampled.
        num_agent_steps: agent steps sampled.
        seconds: duration of the call.
        returns: returns of the whole episodes, summed over agents, float [k].
        lengths: lengths of the whole episodes in env steps, int [k].
        agent_returns: returns of each agent in these episodes.
        module_returns: returns of the agents of each module in these episodes.
        module_steps: agent steps sampled, by module.
    """

    num_env_steps: int = 0
    num_agent_steps: int = 0
    seconds: float = 0.0
    returns: np.ndarray = field(default_factory=lambda: np.zeros(0))
    lengths: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    agent_returns: dict[Any, list[float]] = field(default_factory=dict)
    module_returns: dict[Any, list[float]] = field(default_factory=dict)
    module_steps: dict[Any, int] = field(default_factory=dict)

    @property
    def num_episodes(self) -> int:
        """Number of whole episodes that ended in the call."""
        return len(self.returns)

    @property
    def steps_per_second(self) -> float:
        """Sampled env steps per second. NaN before the first call."""
        return self.num_env_steps / self.seconds if self.seconds else float("nan")

    @property
    def mean_return(self) -> float:
        """Mean over the ended episodes of the return summed over agents. NaN if no episode ended."""
        return float(self.returns.mean()) if len(self.returns) else float("nan")

    def as_dict(self) -> dict[str, float]:
        """Return the statistics as a dict of numbers for a logger."""
        numbers: dict[str, float] = {
            "num_env_steps": self.num_env_steps,
            "num_agent_steps": self.num_agent_steps,
            "num_episodes": self.num_episodes,
            "seconds": self.seconds,
            "steps_per_second": self.steps_per_second,
            "mean_return": self.mean_return,
            "mean_length": float(self.lengths.mean()) if len(self.lengths) else float("nan"),
        }
        numbers |= mean_returns(self.agent_returns, self.module_returns)
        numbers |= {f"num_steps/module/{module_id}": float(num) for module_id, num in self.module_steps.items()}
        return numbers

    def __repr__(self) -> str:
        steps = f"{self.num_env_steps} env steps, {self.num_agent_steps} agent steps"
        whole = f"{self.num_episodes} episodes ended, mean return {self.mean_return:g}"
        return f"MultiAgentCollectStats({steps}, {whole}, {self.steps_per_second:,.0f} env steps/s)"


def mean_returns(
    agent_returns: Mapping[Any, Sequence[float]], module_returns: Mapping[Any, Sequence[float]]
) -> dict[str, float]:
    """Return the mean return of each agent and of each module as numbers for a logger."""
    by_kind = {"agent": agent_returns, "module": module_returns}
    return {
        f"mean_return/{kind}/{name}": float(np.mean(values))
        for kind, returns in by_kind.items()
        for name, values in returns.items()
    }


class ReturnCounter:
    """Counter of returns in one environment: of the ongoing episode, summed over its chunks, and of ended episodes."""

    def __init__(self) -> None:
        self.so_far: dict[Any, float] = {}  # agent -> return in earlier chunks
        self.ended: list[tuple[float, int, dict[Any, float], dict[Any, Any]]] = []

    def add(self, chunk: MultiAgentEpisode) -> None:
        """Add the rewards of an episode chunk, pending rewards included, to the return of each agent.

        If the chunk ends the episode, its returns are stored in `ended`, and the next episode starts from 0.
        """
        for agent_id, reward in chunk.get_returns().items():
            self.so_far[agent_id] = self.so_far.get(agent_id, 0.0) + reward
        if chunk.is_done:
            modules = {agent_id: chunk.module_for(agent_id) for agent_id in self.so_far}
            self.ended.append((sum(self.so_far.values()), chunk.env_t, self.so_far, modules))
            self.so_far = {}


def stats_of(chunks: list[MultiAgentEpisode], counters: list[ReturnCounter], seconds: float) -> MultiAgentCollectStats:
    """Return the statistics of one call of `sample`, and remove the ended episodes from the return counters.

    Args:
        chunks: the sampled chunks.
        counters: the return counter of each environment copy.
        seconds: duration of the call.
    """
    ended = [entry for counter in counters for entry in counter.ended]
    for counter in counters:
        counter.ended = []
    by_agent: dict[Any, list[float]] = {}
    by_module: dict[Any, list[float]] = {}
    for _, _, returns, modules in ended:
        for agent_id, value in returns.items():
            by_agent.setdefault(agent_id, []).append(value)
            by_module.setdefault(modules[agent_id], []).append(value)
    steps: dict[Any, int] = {}
    for chunk in chunks:
        for agent_episode in chunk.agent_episodes.values():
            steps[agent_episode.module_id] = steps.get(agent_episode.module_id, 0) + len(agent_episode)
    return MultiAgentCollectStats(
        num_env_steps=sum(map(len, chunks)),
        num_agent_steps=sum(steps.values()),
        seconds=seconds,
        returns=np.array([entry[0] for entry in ended], np.float64),
        lengths=np.array([entry[1] for entry in ended], np.int64),
        agent_returns=by_agent,
        module_returns=by_module,
        module_steps=steps,
    )

"""Counts of sampled episodes and steps, under RLlib's keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ray.rllib.utils.metrics import (
    NUM_AGENT_STEPS_SAMPLED,
    NUM_AGENT_STEPS_SAMPLED_LIFETIME,
    NUM_ENV_STEPS_SAMPLED,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    NUM_EPISODES,
    NUM_EPISODES_LIFETIME,
    NUM_MODULE_STEPS_SAMPLED,
    NUM_MODULE_STEPS_SAMPLED_LIFETIME,
)

from episodes.multi_agent import MultiAgentEpisode

if TYPE_CHECKING:
    from episodes.single_agent import SingleAgentEpisode

__all__ = ["EpisodeCounts", "log_multi_agent_steps"]


class EpisodeCounts:
    """Counter of returns and steps of episodes that are sampled in chunks, for RLlib's metrics.

    Attributes:
        keeps_chunks: whether the earlier chunks of ongoing episodes are stored, for callbacks.
    """

    def __init__(self) -> None:
        self.keeps_chunks = False
        self._ongoing: dict[Any, Totals] = {}  # by episode id
        self._ended: list[tuple[Any, ...]] = []

    def add(self, chunks: Sequence[Any], seconds_per_step: float) -> int:
        """Count the chunks of one call of `sample`, and return how many episodes ended.

        Args:
            chunks: the chunks.
            seconds_per_step: mean duration of a step of all environments in this call.
        """
        ongoing: dict[Any, Totals] = {}  # a chunk that is missing in this call never continues
        num_before = len(self._ended)
        for chunk in chunks:
            totals = ongoing.get(chunk.id_) or self._ongoing.get(chunk.id_) or Totals()
            totals.add(chunk, seconds_per_step)
            if chunk.is_done:
                self._ended.append(totals.arguments(chunk))
                continue
            if self.keeps_chunks:
                totals.chunks.append(chunk)
            ongoing[chunk.id_] = totals
        self._ongoing = ongoing
        return len(self._ended) - num_before

    def chunks_before(self, episode_id: str) -> list[Any]:
        """Return the chunks that were already counted for an ongoing episode."""
        return list(self._ongoing[episode_id].chunks) if episode_id in self._ongoing else []

    def take(self) -> list[tuple[Any, ...]]:
        """Return the arguments of RLlib's `_log_episode_metrics` for each episode that ended since the last call."""
        ended, self._ended = self._ended, []
        return ended


class Totals:
    """Totals of one episode over the chunks so far: return, duration and steps, also by agent and module."""

    def __init__(self) -> None:
        self.value = self.seconds = 0.0
        self.chunks: list[Any] = []
        self.agents: dict[str, float] = {}
        self.modules: dict[Any, float] = {}
        self.agent_steps: dict[str, int] = {}

    def add(self, chunk: SingleAgentEpisode | MultiAgentEpisode, seconds_per_step: float) -> None:
        """Add the rewards, duration and steps of the episode's next chunk."""
        self.seconds += len(chunk) * seconds_per_step
        if not isinstance(chunk, MultiAgentEpisode):
            self.value += float(chunk.get_return())
            return
        for agent_id, value in chunk.get_returns().items():
            name, module_id = str(agent_id), chunk.module_for(agent_id)
            self.value += value
            self.agents[name] = self.agents.get(name, 0.0) + value
            self.modules[module_id] = self.modules.get(module_id, 0.0) + value
        for agent_id, episode in chunk.agent_episodes.items():
            self.agent_steps[str(agent_id)] = self.agent_steps.get(str(agent_id), 0) + len(episode)

    def arguments(self, last: SingleAgentEpisode | MultiAgentEpisode) -> tuple[Any, ...]:
        """Return the arguments of RLlib's `_log_episode_metrics`, given the last chunk of the episode."""
        if isinstance(last, MultiAgentEpisode):
            return last.env_t, self.value, self.seconds, self.agents, self.modules, self.agent_steps
        return last.t, self.value, self.seconds


def log_multi_agent_steps(log: Callable[..., None], chunks: Sequence[MultiAgentEpisode], num_episodes: int) -> None:
    """Log the numbers of env, agent and module steps in chunks by RLlib's function `log`.

    Args:
        log: the `log_value` of a metrics logger of RLlib.
        chunks: the chunks of one `sample`.
        num_episodes: the number of episodes that ended.
    """
    agents: dict[str, int] = {}
    modules: dict[Any, int] = {}
    for chunk in chunks:
        for agent_id, episode in chunk.agent_episodes.items():
            agents[str(agent_id)] = agents.get(str(agent_id), 0) + len(episode)
            modules[episode.module_id] = modules.get(episode.module_id, 0) + len(episode)
    num_steps = sum(map(len, chunks))
    log(NUM_ENV_STEPS_SAMPLED, num_steps, reduce="sum")
    log(NUM_ENV_STEPS_SAMPLED_LIFETIME, num_steps, reduce="lifetime_sum", with_throughput=True)
    log(NUM_EPISODES, num_episodes, reduce="sum")
    log(NUM_EPISODES_LIFETIME, num_episodes, reduce="lifetime_sum")
    for key, lifetime_key, counts in (
        (NUM_AGENT_STEPS_SAMPLED, NUM_AGENT_STEPS_SAMPLED_LIFETIME, agents),
        (NUM_MODULE_STEPS_SAMPLED, NUM_MODULE_STEPS_SAMPLED_LIFETIME, modules),
    ):
        for name, num in counts.items():
            log((key, name), num, reduce="sum")
            log((lifetime_key, name), num, reduce="lifetime_sum")

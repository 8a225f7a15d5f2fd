"""Splitting of multi-agent episodes into the steps of each module, for the replay buffers of the modules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from episodes.multi_agent import MultiAgentEpisode
from episodes.pack import EpisodePack
from episodes.replay.adding import add_pack, end_stored
from episodes.replay.env_steps import AgentModule, EnvSteps
from episodes.replay.ring.linked_ring import LinkedRing
from episodes.single_agent import SingleAgentEpisode


class EpisodePart:
    """Contiguous env steps of a multi-agent episode, with the agents' steps grouped by module (policy) for writing.

    Args:
        episode: chunk with these env steps.
        agent_modules: pairs of an agent and its module, as keys in their order. Those of the episode are added.

    Attributes:
        num_agents: number of agents of each module, agents without a step included.
        agents: of each module, the agents that have a step, and their chunks.
        ended: of each module, the chunks without steps of agents that ended.
        packs: of each module, a pack of these chunks. Assigned before `write`.
    """

    def __init__(self, episode: MultiAgentEpisode, agent_modules: dict[AgentModule, None]) -> None:
        self._episode = episode
        self.num_agents: Counter[Hashable] = Counter()
        self.agents: dict[Hashable, list[tuple[Hashable, SingleAgentEpisode]]] = {}
        self.ended: dict[Hashable, list[SingleAgentEpisode]] = {}
        self.packs: dict[Hashable, EpisodePack] = {}
        self._begins: tuple[int, dict[Hashable, int]] | None = None  # its first row, and its first steps by module
        self._steps: dict[Hashable, tuple[int, np.ndarray]] = {}
        for agent_id, agent_episode in episode.agent_episodes.items():
            module_id = episode.module_for(agent_id)
            self.num_agents[module_id] += 1
            if len(agent_episode):
                agent_modules[agent_id, module_id] = None
                self.agents.setdefault(module_id, []).append((agent_id, agent_episode))
            elif agent_episode.is_done:
                self.ended.setdefault(module_id, []).append(agent_episode)

    def write(self, rings: Mapping[Hashable, LinkedRing], env_steps: EnvSteps) -> None:
        """Write the agents' steps to the rings of their modules, and the indices of these steps to `env_steps`.

        A repeated call has no further effect.
        """
        episode = self._episode
        if self._begins is None:
            self._begins = env_steps.head, {module_id: rings[module_id].head for module_id in self.agents}
        row, heads = self._begins
        times = {module_id: self._times(module_id) for module_id in self.agents}
        orders = {module_id: t.argsort(kind="stable") for module_id, t in times.items()}
        if self.agents and not self._steps:
            rows = {m: row + np.maximum(t[orders[m]] - episode.env_t_started, 0) for m, t in times.items()}
            self._steps = {module_id: (heads[module_id], rows[module_id]) for module_id in rows}
        env_steps.append(row, episode.id_, episode.env_t_started, episode.env_t, self._steps)
        for module_id, agents in self.agents.items():
            ring = rings[module_id]
            ring.flush_staged()
            if ring.head == heads[module_id]:
                add_pack(ring, self.packs[module_id], orders[module_id] if len(agents) > 1 else None)
            numbers, start = heads[module_id] + orders[module_id].argsort(), 0
            for agent_id, agent_episode in agents:
                indices = numbers[start : start + len(agent_episode)]
                env_steps.put(episode.id_, (agent_id, module_id), _acting_steps(episode, agent_id), indices)
                start += len(agent_episode)
        for module_id, ended in self.ended.items():
            names = ("t_started", "is_terminated", "is_truncated")
            columns = (np.array([getattr(each, name) for each in ended]) for name in names)
            end_stored(rings[module_id], [each.id_ for each in ended], *columns)
        for module_id, number in env_steps.oldest_steps().items():
            rings[module_id].evict_before(number)
        env_steps.forget_evicted()

    def _times(self, module_id: Hashable) -> np.ndarray:
        """Return the env steps at which each of a module's agents acted, concatenated over agents, int64 [k]."""
        return np.concatenate([_acting_steps(self._episode, agent_id) for agent_id, _ in self.agents[module_id]])


def assign_packs(module_id: Hashable, pack: EpisodePack, parts: Sequence[EpisodePart]) -> None:
    """Split a pack of one module's chunks among `parts`: each `EpisodePart` gets a pack of the chunks of its agents."""
    start = 0
    for part in parts:
        stop = start + len(part.agents.get(module_id, ()))
        if stop > start:
            part.packs[module_id] = pack[start:stop]
        start = stop


def _acting_steps(episode: MultiAgentEpisode, agent_id: Hashable) -> np.ndarray:
    """Return the env steps at which an agent took its complete steps, without the lookback, int64 [k]."""
    line = episode.agents.timeline(agent_id)
    lookback = line.episode.lookback
    return np.asarray(line.action_times, np.int64)[lookback : lookback + len(line.episode)]

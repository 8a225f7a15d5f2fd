"""`MultiAgentEpisodeReplayBuffer`: episodes of several agents, drawn module by module or all agents at once."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from threading import RLock
from typing import Any, Literal

import numpy as np

from episodes.batch import Batch
from episodes.columns import Columns
from episodes.errors import EpisodeStateError, InvalidArgument, UnknownKey
from episodes.multi_agent import MultiAgentEpisode
from episodes.pack import EpisodePack
from episodes.replay.adding import add_pack, check_pack
from episodes.replay.buffer import EpisodeReplayBuffer
from episodes.replay.draw_options import check_counts, is_int
from episodes.replay.env_steps import EnvSteps
from episodes.replay.history import BoundViews
from episodes.replay.locking import locked
from episodes.replay.ring.episode_table import NONE
from episodes.replay.samples_per_insert import SampleCounts, SamplesPerInsert
from episodes.single_agent import SingleAgentEpisode


class MultiAgentEpisodeReplayBuffer(SampleCounts):
    """Holds the newest `capacity` env steps of the multi-agent episodes and chunks that are added.

    Each module has an `EpisodeReplayBuffer` of its own (in `modules`) for the steps of its agents, with room for
    `capacity` steps of each agent that it has when it is first seen. A step belongs to the env step at which the agent
    acted; an action that still waits for its next observation comes with the chunk in which that arrives. When an env
    step makes way, so do the agents' steps that came with it: none that does not count any more is drawn.

    Args:
        capacity: in env steps.
        seed: of the one generator that every draw uses.
        limit: as of `EpisodeReplayBuffer`. A draw of n counts as n steps, here and in each module that it is from;
            those of modules are counted by `modules[module_id]`.
    """

    def __init__(
        self, capacity: int = 10_000, *, seed: int | None = None, limit: SamplesPerInsert | None = None
    ) -> None:
        if not is_int(capacity) or capacity < 1:
            raise InvalidArgument(f"capacity={capacity!r}: give an int, a buffer needs room for at least one env step")
        self.capacity = int(capacity)
        self.limit = limit
        self._piece = max(
            capacity // 16, 1
        )  # env steps added at once: agent after agent, so the oldest go piece by piece
        self.generator = np.random.default_rng(seed)
        self.lock = RLock()
        self.modules: dict[Hashable, EpisodeReplayBuffer] = {}
        self._module_of: dict[Hashable, Hashable] = {}
        self._env_steps = EnvSteps(capacity)

    def __len__(self) -> int:
        """The number of env steps that are there."""
        return len(self._env_steps)

    def __repr__(self) -> str:
        modules = ", ".join(f"{module_id}: {len(buffer)} agent steps" for module_id, buffer in self.modules.items())
        size = f"{len(self)} of {self.capacity} env steps, {self.counts}"
        return f"{type(self).__name__}({size}; {modules or 'no modules'})"

    @property
    def num_added(self) -> int:
        """The number of env steps ever added."""
        return self._env_steps.head

    @property
    def nbytes(self) -> int:
        """Bytes of all tracks and links."""
        clocks = sum(numbers.nbytes for numbers in self._env_steps.numbers.values())
        return clocks + sum(buffer.nbytes for buffer in self.modules.values())

    @property
    def agent_ids(self) -> list[Hashable]:
        """The agents that ever acted."""
        return list(self._module_of)

    @locked
    def clear(self) -> None:
        """Forget everything but the generator's state."""
        self.modules.clear()
        self._module_of.clear()
        self._env_steps = EnvSteps(self.capacity)

    # --- adding ------------------------------------------------------------------------------------------------

    @locked
    def add(self, episodes: MultiAgentEpisode | Sequence[MultiAgentEpisode]) -> None:
        """Add whole episodes or chunks; an episode's chunks come in order.

        Raises:
            InvalidArgument: an agent was of another module before.
            ChunkMismatch, TrackMismatch, ShapeMismatch: as `EpisodeReplayBuffer.add`. The episodes before are added,
                this one is not.
        """
        for episode in [episodes] if isinstance(episodes, MultiAgentEpisode) else episodes:
            if len(episode) <= self._piece:
                self._add(episode)
                continue
            for start in range(0, len(episode), self._piece):
                self._add(episode.slice(slice(start, start + self._piece), len_lookback_buffer=0))

    def _add(self, episode: MultiAgentEpisode) -> None:
        by_module: dict[Hashable, list[tuple[Hashable, SingleAgentEpisode]]] = {}
        for agent_id, own in episode.agent_episodes.items():
            by_module.setdefault(self._checked_module(episode, agent_id), []).append((agent_id, own))
        packs, buffers = {}, {}
        for module_id, agents in by_module.items():
            buffer = self.modules.get(module_id) or self._new_buffer(len(agents))
            agents[:] = [(agent_id, own) for agent_id, own in agents if len(own)]
            if agents:
                packs[module_id] = EpisodePack.from_episodes([own for _, own in agents])
                check_pack(buffer.ring, packs[module_id])
            buffers[module_id] = buffer
        self.modules |= buffers
        times = {
            module_id: np.concatenate([_acting_steps(episode, agent_id) for agent_id, _ in by_module[module_id]])
            for module_id in packs
        }
        orders = {module_id: t.argsort(kind="stable") for module_id, t in times.items()}
        steps = {module_id: (self.modules[module_id].ring.head, t[orders[module_id]]) for module_id, t in times.items()}
        self._env_steps.append(episode.id_, episode.env_t_started, episode.env_t, steps)
        for module_id, pack in packs.items():
            numbers = self.modules[module_id].ring.head + orders[module_id].argsort()
            add_pack(self.modules[module_id].ring, pack, orders[module_id] if len(by_module[module_id]) > 1 else None)
            start = 0
            for agent_id, own in by_module[module_id]:
                self._module_of[agent_id] = module_id
                own_steps = numbers[start : start + len(own)]
                self._env_steps.put(episode.id_, agent_id, _acting_steps(episode, agent_id), own_steps)
                start += len(own)
        for module_id, number in self._env_steps.oldest_steps().items():
            self.modules[module_id].ring.evict_before(number)

    def _checked_module(self, episode: MultiAgentEpisode, agent_id: Hashable) -> Hashable:
        module_id = episode.module_for(agent_id)
        before = self._module_of.get(agent_id, module_id)
        if before != module_id:
            raise InvalidArgument(
                f"episode {episode.id_}: agent {agent_id!r} is of module {module_id!r} and was of {before!r}; "
                "an agent stays with one module in a buffer"
            )
        return module_id

    def _new_buffer(self, num_agents: int) -> EpisodeReplayBuffer:
        buffer = self._module_buffer((self.capacity + self._piece) * num_agents)
        buffer.generator = self.generator
        return buffer

    def _module_buffer(self, capacity: int) -> EpisodeReplayBuffer:
        """An empty buffer for a module's steps."""
        return EpisodeReplayBuffer(capacity)

    # --- draws -------------------------------------------------------------------------------------------------

    @locked
    def sample(
        self,
        n: int,
        *,
        module_ids: Sequence[Hashable] | None = None,
        views: Mapping[Hashable, BoundViews] | None = None,
        **options: Any,
    ) -> dict[Hashable, Batch]:
        """`n` transitions of each module, drawn independently: each of its agents' steps is equally likely.

        Args:
            module_ids: of these modules; of all that have steps when None.
            views: what each module sees of its observations, by module; without any, what is stored.
            options: as `EpisodeReplayBuffer.sample` takes them: `n_step`, `gamma`, `keys`, `include_infos`.
        """
        views = views or {}
        chosen = self._chosen(module_ids)
        if module_ids is None:
            chosen = [module_id for module_id in chosen if len(self.modules[module_id])]
            if not chosen:
                raise self._empty()
        drawn = {
            module_id: self._buffer(module_id).sample(n, views=views.get(module_id), **options) for module_id in chosen
        }
        self.num_sampled += n
        return drawn

    @locked
    def sample_synchronized(
        self,
        n: int,
        *,
        module_ids: Sequence[Hashable] | None = None,
        n_step: int | tuple[int, int] = 1,
        gamma: float = 0.99,
        views: Mapping[Hashable, BoundViews] | None = None,
        include_infos: bool | Literal["columns"] = False,
        keys: Sequence[str] | None = None,
    ) -> dict[Hashable, Batch]:
        """What all agents did at `n` env steps: `{agent_id: Batch}`, row i of each from the same env step.

        Each env step at which somebody acted is equally likely. Where an agent did not act, its row is zeros, its
        index -1, and its `loss_mask` [n] False.

        Args:
            module_ids: only agents of these modules are given; env steps are drawn in the same way.
            views: what each module sees of its observations, by module; without any, what is stored.
        """
        check_counts(n=n)
        rows, chosen = self._draw_rows(n), set(self._chosen(module_ids))
        batches: dict[Hashable, Batch] = {}
        for agent_id, module_id in self._module_of.items():
            if module_id in chosen:
                numbers = self._env_steps.numbers[agent_id][rows]
                there = numbers != NONE
                options: dict[str, Any] = {"n_step": n_step, "gamma": gamma, "views": (views or {}).get(module_id)}
                batch = self.modules[module_id].at(numbers, keys=keys, include_infos=include_infos, **options)
                batch[Columns.LOSS_MASK] = there
                batches[agent_id] = batch
        for module_id in chosen:
            self.modules[module_id].num_sampled += n
        self.num_sampled += n
        return batches

    def _draw_rows(self, n: int) -> np.ndarray:
        """Positions [n] of drawn env steps."""
        tails = {agent_id: self.modules[module_id].ring.tail for agent_id, module_id in self._module_of.items()}
        rows = self._random_rows(n)
        while len(missed := np.flatnonzero(~self._env_steps.usable(rows, tails))):
            if len(missed) == n:
                usable = self._env_steps.usable(np.arange(len(self)), tails)
                if not usable.any():
                    raise self._empty()
            rows[missed] = self._random_rows(len(missed))
        return rows

    def _random_rows(self, n: int) -> np.ndarray:
        if not len(self):
            raise self._empty()
        return (self.generator.random(n) * len(self)).astype(np.int64)

    def _empty(self) -> EpisodeStateError:
        return EpisodeStateError("nothing is stored to draw from; add(episodes) first")

    def _chosen(self, module_ids: Sequence[Hashable] | None) -> Sequence[Hashable]:
        if not self.modules:
            raise self._empty()
        for module_id in module_ids or ():
            self._buffer(module_id)
        return list(self.modules) if module_ids is None else module_ids

    def _buffer(self, module_id: Hashable) -> EpisodeReplayBuffer:
        if module_id not in self.modules:
            raise UnknownKey(f"no module {module_id!r}; there are {list(self.modules)}")
        return self.modules[module_id]

    # --- state -------------------------------------------------------------------------------------------------

    @locked
    def get_state(self) -> dict[str, Any]:
        """Everything that is stored and the generator's state, as a dict of plain values and arrays of its own."""
        modules = {module_id: (b.capacity, b.get_state()) for module_id, b in self.modules.items()}
        return {
            "capacity": self.capacity,
            "modules": modules,
            "module_of": dict(self._module_of),
            "env_steps": self._env_steps.get_state(),
            "generator": self.generator.bit_generator.state,
            "num_sampled": self.num_sampled,
        }

    @locked
    def set_state(self, state: dict[str, Any]) -> None:
        """Go on, bit for bit, where `get_state` was called. Errors: `InvalidArgument` for another capacity."""
        if state["capacity"] != self.capacity:
            raise InvalidArgument(
                f"a state of a buffer with capacity={state['capacity']}, this one has capacity={self.capacity}; "
                "make a buffer of that capacity"
            )
        self.clear()
        for module_id, (capacity, own) in state["modules"].items():
            self.modules[module_id] = self._new_buffer(capacity // (self.capacity + self._piece))
            self.modules[module_id].set_state(own)
        self._module_of = dict(state["module_of"])
        self._env_steps.set_state(state["env_steps"])
        self.generator.bit_generator.state = state["generator"]
        self.num_sampled = state["num_sampled"]

    @locked
    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.lock = RLock()
        for buffer in self.modules.values():
            buffer.generator = self.generator


def _acting_steps(episode: MultiAgentEpisode, agent_id: Hashable) -> np.ndarray:
    """The env steps [k] at which the agent took the actions of its k completed steps in this chunk."""
    line = episode.agents.timeline(agent_id)
    lookback = line.episode.lookback
    return np.asarray(line.acted, np.int64)[lookback : lookback + len(line.episode)]

"""Replay buffer of multi-agent episodes, sampled per module or per env step."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from threading import RLock
from typing import Any, Literal, NamedTuple

import numpy as np

from episodes.batch import Batch
from episodes.batch.sampling_checks import check_counts, reach_of, unknown_steps
from episodes.columns import Columns
from episodes.errors import EpisodeStateError, InvalidArgument, TrackMismatch, UnknownKey
from episodes.format_versions import REPLAY_STATE, PickleVersion, check_mark
from episodes.history import BoundViews
from episodes.multi_agent import MultiAgentEpisode
from episodes.pack import EpisodePack
from episodes.replay.adding import as_sequence, check_pack, step_tracks_of
from episodes.replay.buffer import EpisodeReplayBuffer, check_state_format, checked_capacity
from episodes.replay.context_steps import ADVICE, are_complete
from episodes.replay.env_steps import AgentModule, EnvSteps
from episodes.replay.locking import locked
from episodes.replay.multi_agent_parts import EpisodePart, assign_packs
from episodes.replay.ring.episode_table import NONE
from episodes.replay.samples_per_insert import SampleCounts, SamplesPerInsert, checked_limit
from episodes.tracks.notebook_repr import notebook_repr
from episodes.tracks.validation import checked_generator, checked_items, checked_mapping, reading_state


class MultiAgentEpisodeReplayBuffer(SampleCounts):
    """Replay buffer of the newest `capacity` env steps of multi-agent episodes, with a buffer for each module.

    Each module has an `EpisodeReplayBuffer` (in `modules`) for the steps of its agents, with room for `capacity` steps
    of each agent that it has when it first occurs. A step belongs to the env step at which the agent acted. A pending
    action is added with the chunk that has its next observation. When an env step is evicted, so are the agents' steps
    of it.

    Args:
        capacity: maximum number of env steps.
        seed: seed of the random generator. None for a random seed.
        limit: limits how often steps are sampled, as in `EpisodeReplayBuffer`. Sampling n steps counts n here and in
            each module that they are from (`modules[module_id].num_sampled`).

    Attributes:
        lock: reentrant lock that every call holds.
        num_sampled: number of steps sampled so far.

    Raises:
        InvalidArgument: an argument is out of range.
        WrongType: `limit` is not a `SamplesPerInsert`.
    """

    _repr_html_ = notebook_repr("episodes.inspect.html", "multi_agent_replay")

    def __init__(
        self, capacity: int = 10_000, *, seed: int | None = None, limit: SamplesPerInsert | None = None
    ) -> None:
        self.capacity = checked_capacity(capacity)
        self.limit = checked_limit(limit)
        self._part_size = max(self.capacity // 16, 1)  # env steps that are added at once, and so evicted at once
        self.generator = checked_generator(seed)
        self.lock = RLock()
        self._held = _Contents({}, {}, EnvSteps(self.capacity))
        self._work: tuple[Callable[[], None], ...] = ()

    @property
    def _stored(self) -> _Contents:
        """Contents of the buffer, read after an interrupted `add` has been completed."""
        if self._work:
            with self.lock:
                self._finish()
        return self._held

    @property
    def modules(self) -> dict[Hashable, EpisodeReplayBuffer]:
        """Replay buffer of each module (policy) by module id, with the steps that agents took with this module."""
        return self._stored.modules

    @property
    def _agent_modules(self) -> dict[AgentModule, None]:
        return self._stored.agent_modules

    @property
    def _env_steps(self) -> EnvSteps:
        return self._stored.env_steps

    def __len__(self) -> int:
        """Return the number of stored env steps."""
        return len(self._env_steps)

    def __repr__(self) -> str:
        modules = ", ".join(f"{module_id}: {len(buffer)} agent steps" for module_id, buffer in self.modules.items())
        size = f"{len(self)} of {self.capacity} env steps, {self.counts}"
        return f"{type(self).__name__}({size}; {modules or 'no modules'})"

    @property
    def num_added(self) -> int:
        """Number of env steps added so far, evicted steps included."""
        return self._env_steps.head

    @property
    def nbytes(self) -> int:
        """Memory size in bytes of all modules' buffers and of the env step table, without infos and policy versions."""
        clocks = sum(numbers.nbytes for numbers in self._env_steps.numbers.values())
        return clocks + sum(buffer.nbytes for buffer in self.modules.values())

    @property
    def agent_ids(self) -> list[Hashable]:
        """Ids of all agents that have acted in added episodes."""
        return list(dict.fromkeys(agent_id for agent_id, _ in self._agent_modules))

    @locked
    def clear(self) -> None:
        """Remove all stored steps, and the buffers of all modules. The random generator keeps its state."""
        self.__dict__.update(_work=(), _held=_Contents({}, {}, EnvSteps(self.capacity)))

    # --- adding ------------------------------------------------------------------------------------------------

    @locked
    def add(self, episodes: MultiAgentEpisode | Iterable[MultiAgentEpisode]) -> None:
        """Add multi-agent episodes or chunks of episodes to the buffer.

        Args:
            episodes: an episode, or a sequence of them.

        Raises:
            ChunkMismatch, TrackMismatch, ShapeMismatch: as `EpisodeReplayBuffer.add`.
            InvalidArgument: there is not enough memory for `capacity` steps of each agent.
            WrongType: `episodes` is something else.
        """
        episodes_to_add = as_sequence(episodes, MultiAgentEpisode)
        contents, agent_modules = self._stored, dict(self._agent_modules)
        parts = [EpisodePart(part, agent_modules) for episode in episodes_to_add for part in self._parts(episode)]
        try:
            buffers = self._checked_buffers(parts)
            self._check_memory(buffers, agent_modules)
        except MemoryError as error:
            raise InvalidArgument(
                f"add: {error or 'not enough memory'}; a buffer with capacity={self.capacity} has room for "
                f"{self.capacity} steps of each of {len(agent_modules)} pairs of agent and module; give a smaller "
                "capacity, or add the agents' episodes to an EpisodeReplayBuffer, whose capacity is that of all agents "
                "together"
            ) from None
        rings = {module_id: buffer.flush_ring() for module_id, buffer in buffers.items()}
        writes = (partial(part.write, rings, contents.env_steps) for part in parts)
        self._work = (partial(contents.add_modules, buffers, agent_modules), *writes)
        self._finish()

    def _parts(self, episode: MultiAgentEpisode) -> list[MultiAgentEpisode]:
        if len(episode) <= self._part_size:
            return [episode]
        starts = range(0, len(episode), self._part_size)
        return [  # the first part keeps the lookback; the others continue it
            episode.slice(slice(start, start + self._part_size), len_lookback_buffer=0 if start else None)
            for start in starts
        ]

    def _checked_buffers(self, parts: list[EpisodePart]) -> dict[Hashable, EpisodeReplayBuffer]:
        """Validate the parts of added episodes, and return the replay buffer of each module by module id, with new
        buffers for new modules. All buffers have their arrays, so that no later write needs more memory.

        Each part also gets its pack for each module. The contents of the buffers are not changed.

        Raises:
            MemoryError: there is not enough memory for the arrays.
            TrackMismatch: a track is ragged, or does not fit the stored steps of its module.
        """
        buffers = dict(self.modules)
        for part in parts:
            for module_id, num_agents in part.num_agents.items():
                if module_id not in buffers:
                    buffers[module_id] = self._new_buffer(num_agents)
        for module_id, buffer in buffers.items():
            chunks = [chunk for part in parts for _, chunk in part.agents.get(module_id, ())]
            if chunks:
                pack = EpisodePack.from_episodes(chunks)
                if pack.columns.ragged_kinds():
                    raise TrackMismatch(
                        f"the tracks {list(pack.columns.ragged_kinds())} are ragged: buffers of multi-agent episodes "
                        "store items of one shape; pad the items, or store each agent's episodes in an "
                        "EpisodeReplayBuffer"
                    )
                check_pack(buffer.flush_ring(), pack)
                buffer.flush_ring().create_missing(
                    pack.observations, step_tracks_of(pack), pack.facts.policy_versions is not None
                )
                assign_packs(module_id, pack, parts)
        return buffers

    def _check_memory(
        self, buffers: Mapping[Hashable, EpisodeReplayBuffer], agent_modules: Mapping[AgentModule, None]
    ) -> None:
        """Raise `MemoryError` if the buffers and the env step table, when they are full, need more than the machine's
        memory. The system often reserves more than it has, and ends the process later.
        """
        table = self.capacity * np.dtype(np.int64).itemsize * len(agent_modules)
        needed, there_is = table + sum(buffer.nbytes for buffer in buffers.values()), machine_memory()
        if needed > there_is:
            raise MemoryError(f"{needed / 2**30:,.1f} GiB are needed, the machine has {there_is / 2**30:,.1f} GiB")

    def _finish(self) -> None:
        """Execute the writes that an `add` has planned but not yet completed."""
        while self._work:
            self._work[0]()
            self._work = self._work[1:]

    def _new_buffer(self, num_agents: int) -> EpisodeReplayBuffer:
        buffer = self._module_buffer((self.capacity + self._part_size) * num_agents)
        buffer.generator = self.generator
        return buffer

    def _module_buffer(self, capacity: int) -> EpisodeReplayBuffer:
        """Return an empty replay buffer for the steps of one module (policy). Subclasses override it."""
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
        """Sample `n` transitions of each module, and return a dict from module id to `Batch`.

        Args:
            n: number of transitions per module.
            module_ids: modules to sample from. None for all modules with steps.
            views: functions that compute the policy's input columns, by module id. Without them, stored observations.
            options: further arguments of `EpisodeReplayBuffer.sample`: `n_step`, `gamma`, `keys`, `include_infos`,
                `max_age`.

        Raises:
            EpisodeStateError: no steps are stored.
            UnknownKey: there is no such module or column.
            WrongType: `views` is not a dict by module.
        """
        views = {} if views is None else checked_mapping("views", views, "of bound views by module id")
        chosen = self._checked_module_ids(module_ids)
        if module_ids is None:
            chosen = [module_id for module_id in chosen if len(self.modules[module_id])]
            if not chosen:
                raise self._empty()
        for module_id in chosen:  # before the first module is sampled, which moves the generator
            buffer = self._buffer(module_id)
            buffer.checked_sample_keys(n, **options)
            if not len(buffer):
                raise buffer.empty_error()
        with self._undo_at_error():
            drawn = {m: self._buffer(m).sample(n, views=views.get(m), **options) for m in chosen}
        self.num_sampled += n
        return drawn

    @contextmanager
    def _undo_at_error(self) -> Iterator[None]:
        """Context manager that restores the random generator and the counts of sampled steps if the work in it fails,
        such as in a view of a later module.
        """
        before = self.generator.bit_generator.state
        counts = [(buffer, buffer.num_sampled) for buffer in self.modules.values()]
        try:
            yield
        except BaseException:
            self.generator.bit_generator.state = before
            for buffer, num_sampled in counts:
                buffer.num_sampled = num_sampled
            raise

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
        """Sample `n` env steps, and return the transitions of all agents at these env steps, by agent id.

        Each env step at which an agent acted has the same probability. If an agent did not act there, its row is zeros,
        its index -1, and its `loss_mask` [n] False. If agents change their modules from episode to episode, give
        `module_ids` with one module of each agent.

        Args:
            n: number of env steps.
            module_ids: only agents of these modules are returned. The env steps are sampled in the same way.
            n_step: as for `EpisodeReplayBuffer.sample`.
            gamma: discount factor.
            views: functions that compute the policy's input columns, by module id. Without them, stored observations.
            include_infos: as for `EpisodeReplayBuffer.sample`.
            keys: as for `EpisodeReplayBuffer.sample`.

        Raises:
            InvalidArgument: an agent has acted for several of the modules.
            EpisodeStateError: no steps are stored.
            UnknownKey: there is no such module or column.
            WrongType: `views` is not a dict by module.
        """
        views = {} if views is None else checked_mapping("views", views, "of bound views by module id")
        check_counts(n=n)
        chosen = set(self._checked_module_ids(module_ids))
        agent_modules = [agent_module for agent_module in self._agent_modules if agent_module[1] in chosen]
        if len({agent_id for agent_id, _ in agent_modules}) < len(agent_modules):
            raise InvalidArgument(
                "sample_synchronized: an agent has acted for several modules; give module_ids with one module of each "
                f"agent (agents and modules: {agent_modules})"
            )
        reaches: dict[AgentModule, int | None] = {}
        for agent_id, module_id in agent_modules:
            buffer = self.modules[module_id]
            if len(buffer):
                columns = buffer.checked_sample_keys(n, n_step, gamma, include_infos, keys)
                reaches[agent_id, module_id] = reach_of(views.get(module_id), columns)
        batches: dict[Hashable, Batch] = {}
        with self._undo_at_error():
            rows = self._draw_rows(n, reaches)
            for agent_id, module_id in agent_modules:
                numbers = self._env_steps.numbers[agent_id, module_id][rows]
                has_acted = numbers != NONE
                options: dict[str, Any] = {"n_step": n_step, "gamma": gamma, "views": views.get(module_id)}
                batch = self.modules[module_id].at(numbers, keys=keys, include_infos=include_infos, **options)
                batch[Columns.LOSS_MASK] = has_acted
                batches[agent_id] = batch
        for module_id in chosen:
            self.modules[module_id].num_sampled += n
        self.num_sampled += n
        return batches

    def _draw_rows(self, n: int, reaches: Mapping[AgentModule, int | None]) -> np.ndarray:
        """Sample `n` env steps at which all acting agents' steps are stored, and return their table rows, int64 [n].

        Args:
            n: number of env steps.
            reaches: for each agent and module, the number of steps before its step that must be known, None for all.

        Raises:
            EpisodeStateError: there is no such env step.
        """
        table, needed = self._env_steps, {key: reach for key, reach in reaches.items() if reach != 0}
        tails = {agent_module: self.modules[agent_module[1]].flush_ring().tail for agent_module in self._agent_modules}

        def usable(rows: np.ndarray) -> np.ndarray:
            result = table.usable(rows, tails)
            for (agent_id, module_id), reach in needed.items():
                numbers = table.numbers[agent_id, module_id][rows]
                acted, buffer = result & (numbers != NONE), self.modules[module_id]
                result[acted] = are_complete(buffer.flush_ring(), numbers[acted] % buffer.capacity, reach)
            return result

        before = self.generator.bit_generator.state
        rows = self._random_rows(n)
        while len(missed := np.flatnonzero(~usable(rows))):
            if len(missed) == n and not usable(np.arange(len(self))).any():
                self.generator.bit_generator.state = before
                if not table.usable(np.arange(len(self)), tails).any():
                    raise self._empty()
                numbers = [reach for reach in needed.values() if reach is not None]
                reach = max(numbers) if len(numbers) == len(needed) else None
                raise EpisodeStateError(f"no env step can be sampled: no agent step has {unknown_steps(reach, ADVICE)}")
            rows[missed] = self._random_rows(len(missed))
        return rows

    def _random_rows(self, n: int) -> np.ndarray:
        if not len(self):
            raise self._empty()
        return (self.generator.random(n) * len(self)).astype(np.int64)

    def _empty(self) -> EpisodeStateError:
        return EpisodeStateError("nothing is stored to sample from; add(episodes) first")

    def _checked_module_ids(self, module_ids: Sequence[Hashable] | None) -> Sequence[Hashable]:
        """Return the modules to sample from: all for None.

        Raises:
            EpisodeStateError: the buffer is empty.
            UnknownKey: there is no such module.
        """
        if not self.modules:
            raise self._empty()
        if module_ids is None:
            return list(self.modules)
        module_ids = checked_items("module_ids", module_ids, "ids of modules")
        for module_id in module_ids:
            self._buffer(module_id)
        return module_ids

    def _buffer(self, module_id: Hashable) -> EpisodeReplayBuffer:
        if not isinstance(module_id, Hashable) or module_id not in self.modules:
            raise UnknownKey(f"no module {module_id!r}; there are {list(self.modules)}")
        return self.modules[module_id]

    # --- state -------------------------------------------------------------------------------------------------

    @locked
    def get_state(self) -> dict[str, Any]:
        """Return a checkpoint: all stored steps and the random generator's state, as a dict of copies."""
        modules = {module_id: (b.capacity, b.get_state()) for module_id, b in self.modules.items()}
        return {
            "format": REPLAY_STATE,
            "capacity": self.capacity,
            "modules": modules,
            "seats": list(self._agent_modules),
            "env_steps": self._env_steps.get_state(),
            "generator": self.generator.bit_generator.state,
            "num_sampled": self.num_sampled,
        }

    @locked
    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the buffer from a dict that `get_state` returned. After an error, the buffer is unchanged.

        Raises:
            InvalidArgument: the state has another capacity.
            StateMismatch: the state has another format version, or is malformed.
        """
        with reading_state(type(self)):
            check_state_format(state, self)
            if state["capacity"] != self.capacity:
                raise InvalidArgument(
                    f"a state of a buffer with capacity={state['capacity']}, this one has capacity={self.capacity}; "
                    "make a buffer of that capacity"
                )
            restored = self._build_contents(state)
        self.__dict__.update(restored)

    def _build_contents(self, state: dict[str, Any]) -> dict[str, Any]:
        """Validate a checkpoint from `get_state`, and return the attributes to set on the buffer, by name."""
        contents = _Contents({}, dict.fromkeys(map(tuple, state["seats"])), EnvSteps(self.capacity))
        contents.env_steps.set_state(state["env_steps"])
        generator = deepcopy(self.generator)
        for module_id, (capacity, buffer_state) in state["modules"].items():
            contents.modules[module_id] = buffer = self._module_buffer(capacity)
            buffer.set_state(buffer_state)
            buffer.generator = generator
        generator.bit_generator.state = state["generator"]
        return {"_held": contents, "_work": (), "generator": generator, "num_sampled": state["num_sampled"]}

    @locked
    def __getstate__(self) -> dict[str, Any]:
        version = PickleVersion(type(self).__name__)
        return {"format": version, **self.__dict__, "lock": None, "_held": self._stored}

    def __setstate__(self, state: dict[str, Any]) -> None:
        check_mark(state.get("format"), type(self).__name__)
        self.__dict__.update({name: value for name, value in state.items() if name != "format"})
        self.lock = RLock()
        for buffer in self.modules.values():
            buffer.generator = self.generator


def machine_memory() -> float:
    """Return the size of this machine's memory in bytes, or infinity if the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no `sysconf`
        return float("inf")


class _Contents(NamedTuple):
    """Contents of a multi-agent buffer: a replay buffer per module, and the table of env steps."""

    modules: dict[Hashable, EpisodeReplayBuffer]
    agent_modules: dict[AgentModule, None]  # the agents with their modules, as keys in the order in which they came
    env_steps: EnvSteps

    def add_modules(self, modules: dict[Hashable, EpisodeReplayBuffer], agent_modules: dict[AgentModule, None]) -> None:
        """Add the replay buffers of new modules, and the new (agent, module) pairs."""
        self.modules.update(modules)
        self.agent_modules.update(agent_modules)

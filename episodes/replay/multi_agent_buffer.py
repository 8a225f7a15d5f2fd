"""`MultiAgentEpisodeReplayBuffer`: episodes of several agents, drawn module by module or all agents at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from threading import RLock
from typing import Any, Literal, NamedTuple

import numpy as np

from episodes.batch import Batch
from episodes.batch.sampling_checks import check_counts
from episodes.columns import Columns
from episodes.errors import EpisodeError, EpisodeStateError, InvalidArgument, StateMismatch, UnknownKey
from episodes.multi_agent import MultiAgentEpisode
from episodes.pack import EpisodePack
from episodes.replay.adding import as_sequence, check_pack
from episodes.replay.buffer import MALFORMED, EpisodeReplayBuffer, checked_capacity
from episodes.replay.env_steps import EnvSteps
from episodes.replay.locking import locked
from episodes.replay.multi_agent_parts import EpisodePart, assign_packs
from episodes.replay.replay_history import BoundViews
from episodes.replay.ring.episode_table import NONE
from episodes.replay.samples_per_insert import SampleCounts, SamplesPerInsert, checked_limit
from episodes.tracks.notebook_repr import notebook_repr
from episodes.tracks.validation import checked_generator, checked_items, checked_mapping


class MultiAgentEpisodeReplayBuffer(SampleCounts):
    """Holds the newest `capacity` env steps of the multi-agent episodes and chunks that are added.

    Each module has an `EpisodeReplayBuffer` of its own (in `modules`) for the steps of its agents, with room for
    `capacity` steps of each agent that it has when it is first seen. A step belongs to the env step at which the agent
    acted; an action that still waits for its next observation comes with the chunk in which that arrives. When an env
    step makes way, so do the agents' steps that came with it: none that does not count any more is drawn. A call
    that is broken off, by Ctrl-C or for want of memory, has done all or nothing.

    Args:
        capacity: in env steps.
        seed: of the one generator that every draw uses.
        limit: as of `EpisodeReplayBuffer`. A draw of n counts as n steps, here and in each module that it is from;
            those of modules are counted by `modules[module_id]`.
    """

    _repr_html_ = notebook_repr("episodes.inspect.html", "multi_agent_replay")

    def __init__(
        self, capacity: int = 10_000, *, seed: int | None = None, limit: SamplesPerInsert | None = None
    ) -> None:
        self.capacity = checked_capacity(capacity)
        self.limit = checked_limit(limit)
        self._piece = max(
            self.capacity // 16, 1
        )  # env steps added at once: agent after agent, so the oldest go piece by piece
        self.generator = checked_generator(seed)
        self.lock = RLock()
        self._held = _Contents({}, {}, EnvSteps(self.capacity))
        self._work: tuple[Callable[[], None], ...] = ()

    @property
    def _stored(self) -> _Contents:
        """What is there, all of it written."""
        if self._work:
            with self.lock:
                self._finish()
        return self._held

    @property
    def modules(self) -> dict[Hashable, EpisodeReplayBuffer]:
        """The buffer of each module that was seen."""
        return self._stored.modules

    @property
    def _module_of(self) -> dict[Hashable, Hashable]:
        return self._stored.module_of

    @property
    def _env_steps(self) -> EnvSteps:
        return self._stored.env_steps

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
        """Drop everything but the generator's state."""
        self.__dict__.update(_work=(), _held=_Contents({}, {}, EnvSteps(self.capacity)))

    # --- adding ------------------------------------------------------------------------------------------------

    @locked
    def add(self, episodes: MultiAgentEpisode | Sequence[MultiAgentEpisode]) -> None:
        """Add whole episodes or chunks; an episode's chunks come in order.

        Raises:
            InvalidArgument: an agent was of another module before.
            ChunkMismatch, TrackMismatch, ShapeMismatch: as `EpisodeReplayBuffer.add`. The buffer stays as it was.
            WrongType: what is added is none of these.
        """
        given = as_sequence(episodes, MultiAgentEpisode)
        held, module_of = self._stored, dict(self._module_of)
        pieces = [EpisodePart(part, module_of) for episode in given for part in self._parts(episode)]
        buffers = self._checked_buffers(pieces)
        rings = {module_id: buffer.get_ring() for module_id, buffer in buffers.items()}
        writes = (partial(piece.write, rings, held.env_steps) for piece in pieces)
        self._work = (partial(held.add_modules, buffers, module_of), *writes)
        self._finish()

    def _parts(self, episode: MultiAgentEpisode) -> list[MultiAgentEpisode]:
        if len(episode) <= self._piece:
            return [episode]
        starts = range(0, len(episode), self._piece)
        return [episode.slice(slice(start, start + self._piece), len_lookback_buffer=0) for start in starts]

    def _checked_buffers(self, pieces: list[EpisodePart]) -> dict[Hashable, EpisodeReplayBuffer]:
        """The buffers of all modules, those of new ones too, when what the pieces bring fits there; they get it."""
        buffers = dict(self.modules)
        for piece in pieces:
            for module_id, num_agents in piece.num_agents.items():
                if module_id not in buffers:
                    buffers[module_id] = self._new_buffer(num_agents)
        for module_id, buffer in buffers.items():
            chunks = [own for piece in pieces for _, own in piece.agents.get(module_id, ())]
            if chunks:
                pack = EpisodePack.from_episodes(chunks)
                check_pack(buffer.get_ring(), pack)
                assign_packs(module_id, pack, pieces)
        return buffers

    def _finish(self) -> None:
        """Do what was decided: `_work`, of which each may be broken off anywhere, and is then called again."""
        while self._work:
            self._work[0]()
            self._work = self._work[1:]

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
        views = {} if views is None else checked_mapping("views", views, "of bound views by module id")
        check_counts(n=n)
        chosen = set(self._checked_module_ids(module_ids))
        for module_id in chosen:
            if len(self.modules[module_id]):
                self.modules[module_id].checked_sample_keys(n, n_step, gamma, include_infos, keys)
        rows = self._draw_rows(n)
        batches: dict[Hashable, Batch] = {}
        for agent_id, module_id in self._module_of.items():
            if module_id in chosen:
                numbers = self._env_steps.numbers[agent_id][rows]
                there = numbers != NONE
                options: dict[str, Any] = {"n_step": n_step, "gamma": gamma, "views": views.get(module_id)}
                batch = self.modules[module_id].at(numbers, keys=keys, include_infos=include_infos, **options)
                batch[Columns.LOSS_MASK] = there
                batches[agent_id] = batch
        for module_id in chosen:
            self.modules[module_id].num_sampled += n
        self.num_sampled += n
        return batches

    def _draw_rows(self, n: int) -> np.ndarray:
        """Positions [n] of drawn env steps."""
        tails = {agent_id: self.modules[module_id].get_ring().tail for agent_id, module_id in self._module_of.items()}
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

    def _checked_module_ids(self, module_ids: Sequence[Hashable] | None) -> Sequence[Hashable]:
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
        """Go on, bit for bit, where `get_state` was called; when that cannot be, the buffer stays as it was.

        Raises:
            InvalidArgument: another capacity.
        """
        try:
            if state["capacity"] != self.capacity:
                raise InvalidArgument(
                    f"a state of a buffer with capacity={state['capacity']}, this one has capacity={self.capacity}; "
                    "make a buffer of that capacity"
                )
            restored = self._build_contents(state)
        except MALFORMED as error:
            if isinstance(error, EpisodeError):
                raise
            raise StateMismatch(
                f"no state of a {type(self).__name__} ({error!r}); give what get_state returned"
            ) from error
        self.__dict__.update(restored)

    def _build_contents(self, state: dict[str, Any]) -> dict[str, Any]:
        """What `set_state` puts in place, all at once."""
        held = _Contents({}, dict(state["module_of"]), EnvSteps(self.capacity))
        held.env_steps.set_state(state["env_steps"])
        generator = deepcopy(self.generator)
        for module_id, (capacity, own) in state["modules"].items():
            held.modules[module_id] = buffer = self._module_buffer(capacity)
            buffer.set_state(own)
            buffer.generator = generator
        generator.bit_generator.state = state["generator"]
        return {"_held": held, "_work": (), "generator": generator, "num_sampled": state["num_sampled"]}

    @locked
    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"lock": None, "_held": self._stored}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.lock = RLock()
        for buffer in self.modules.values():
            buffer.generator = self.generator


class _Contents(NamedTuple):
    """What such a buffer holds."""

    modules: dict[Hashable, EpisodeReplayBuffer]
    module_of: dict[Hashable, Hashable]
    env_steps: EnvSteps

    def add_modules(self, modules: dict[Hashable, EpisodeReplayBuffer], module_of: dict[Hashable, Hashable]) -> None:
        """Modules and agents are there from now on."""
        self.modules.update(modules)
        self.module_of.update(module_of)

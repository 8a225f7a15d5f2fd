"""`EpisodeReplayBuffer`: episodes kept and drawn again, at the cost of one gather a track."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from episodes.batch import Batch
from episodes.batch.batch import batch_of
from episodes.columns import Columns
from episodes.errors import EpisodeStateError, InvalidArgument, ShapeMismatch, StateMismatch, StepOutOfRange
from episodes.pack import EpisodePack
from episodes.replay import walks
from episodes.replay.adding import add_pack
from episodes.replay.batch_columns import checked_keys, columns_of, followed, states_before
from episodes.replay.history import BoundViews
from episodes.replay.read_episodes import episode_at
from episodes.replay.read_packs import entries_in_order, packs_of
from episodes.replay.recorder import ReplayRecorder
from episodes.replay.ring.episode_table import NONE
from episodes.replay.ring.saving import ring_state, set_ring_state
from episodes.replay.ring.step_ring import LinkedRing, chosen_outputs
from episodes.replay.ring.track_ring import Allocator
from episodes.replay.walks import Extents, Windows
from episodes.returns.checks import check_fraction
from episodes.single_agent import SingleAgentEpisode
from episodes.storage import EpisodeDataset, EpisodeWriter

INDICES = "indices"


class EpisodeReplayBuffer:
    """Holds the newest `capacity` steps of the episodes and chunks that are added, and draws from them uniformly.

    Steps lie in rings, in order of arrival; an observation is stored once, whoever refers to it (one of at most 16
    bytes lies beside its steps as well, for faster draws). When the buffer is full the oldest steps make way: an
    episode that loses its beginning goes on as a chunk with a later `t_started`. A chunk continues its episode by `id_`
    and `t_started`, however short it is.

    Args:
        capacity: in steps.
        seed: of the one generator that every draw uses.
        path: a directory for memory-mapped files, for what does not fit into memory; in memory when None.

    >>> buffer = EpisodeReplayBuffer(1000, seed=0)
    >>> buffer.add([SingleAgentEpisode.from_arrays(np.arange(4.0), [0, 1, 0], [1.0, 1.0, 1.0], terminated=True)])
    >>> batch = buffer.sample(32, n_step=2)
    >>> len(buffer), batch.obs.shape, sorted(set(batch.n_step.tolist()))
    (3, (32,), [1, 2])
    """

    def __init__(self, capacity: int, *, seed: int | None = None, path: str | Path | None = None) -> None:
        if not isinstance(capacity, (int, np.integer)) or capacity < 1:
            raise InvalidArgument(f"capacity={capacity!r}: give an int, a buffer needs room for at least one step")
        self.capacity = int(capacity)
        self.generator = np.random.default_rng(seed)
        self._path = path
        self.ring = LinkedRing(self.capacity, Allocator(path))
        self._spaces: tuple[Any, Any] = (None, None)

    def __len__(self) -> int:
        """The number of steps that are there."""
        return len(self.ring)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({len(self)} of {self.capacity} steps, {self.num_episodes} episodes, "
            f"{self.nbytes} bytes)"
        )

    @property
    def num_episodes(self) -> int:
        """The number of episodes that have steps here."""
        return len(self.ring.table)

    @property
    def num_added(self) -> int:
        """The number of steps ever added."""
        return self.ring.head - self.ring.skipped

    @property
    def nbytes(self) -> int:
        """Bytes of all tracks and links."""
        return self.ring.nbytes

    def add(
        self, episodes: SingleAgentEpisode | Sequence[SingleAgentEpisode], *, keys: Collection[str] | None = None
    ) -> None:
        """Add episodes, chunks, one of them, or a pack. Their lookbacks are not stored: they are of earlier chunks.

        Of an episode longer than the capacity, the last steps are kept. Chunks of an episode come in order; one whose
        predecessor is no longer there begins anew at its `t_started`.

        Args:
            keys: the extra model outputs that are stored; all by default.

        Raises:
            ChunkMismatch: a chunk does not begin where its episode stops.
            TrackMismatch, ShapeMismatch: items are of another kind than those stored. The buffer stays as it was.
            UnknownKey: an extra model output that there is not.
        """
        if isinstance(episodes, SingleAgentEpisode):
            episodes = [episodes]
        if not len(episodes):
            return
        pack = EpisodePack.from_episodes(episodes)
        if keys is not None:
            pack = pack.replace(extra_model_outputs=chosen_outputs(pack.extra_model_outputs, keys))
        add_pack(self.ring, pack)
        self._spaces = (pack.observation_space or self._spaces[0], pack.action_space or self._spaces[1])

    def recorder(
        self,
        num_envs: int,
        *,
        autoreset_mode: AutoresetMode | str,
        observation_space: spaces.Space | None = None,
        action_space: spaces.Space | None = None,
        len_lookback_buffer: int = 0,
        keys: Collection[str] | None = None,
    ) -> ReplayRecorder:
        """A recorder that writes the rows of a vector environment straight into this buffer.

        Args:
            observation_space, action_space: of one environment; observations and actions get their dtypes.
            len_lookback_buffer: how far back the newest rows are at hand, for who acts on them.
            keys: the extra model outputs that are stored; all by default.
        """
        options: dict[str, Any] = {"len_lookback_buffer": len_lookback_buffer, "keys": keys}
        recorder = ReplayRecorder(self.ring, num_envs, autoreset_mode, observation_space, action_space, **options)
        self._spaces = (observation_space or self._spaces[0], action_space or self._spaces[1])
        return recorder

    def clear(self) -> None:
        """Forget all steps. What kind of steps they are stays, and so does the generator's state."""
        self.ring.clear()

    # --- draws -------------------------------------------------------------------------------------------------

    def sample(
        self,
        n: int,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        views: BoundViews | None = None,
        include_infos: bool = False,
        keys: Sequence[str] | None = None,
    ) -> Batch:
        """`n` transitions, each stored step equally likely: a `Batch` of columns [n, ...].

        Args:
            n_step: rewards are discounted sums of up to n steps of the episode, `new_obs` and the endings are those
                after the last of them, and the column `n_step` [n] says how many they are. Near an ending they are
                fewer; bootstrap with gamma ** n_step unless `terminateds`.
            views: what the module sees of the observations, such as `runner.env_to_module.views`: instead of `obs` and
                `new_obs` there are all columns that they make, and a `new_<column>` of each.
            keys: which columns, of `obs`, `new_obs`, `actions`, `rewards`, `terminateds`, `truncateds` (the default),
                the extra model outputs, `infos`, `t`, `eps_id`, `agent_id` and `module_id`.

        `indices` are step numbers: they stay those of these steps. `weights` are 1. Errors: `EpisodeStateError` when
        nothing is stored, `UnknownKey` for a column that there is not.
        """
        if n < 1 or n_step < 1:
            _check_positive(n=n, n_step=n_step)
        check_fraction("gamma", gamma)
        slots, weights = self._draw(n)
        return self._transitions(slots, weights, n_step, gamma, views, checked_keys(self.ring, keys, include_infos))

    def at(
        self,
        indices: np.ndarray,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        views: BoundViews | None = None,
        include_infos: bool = False,
        keys: Sequence[str] | None = None,
    ) -> Batch:
        """The transitions of the steps with these numbers [n], as `sample` gives them; zeros in tracks where it is -1.

        Raises:
            StepOutOfRange: a step is not there.
        """
        _check_positive(n_step=n_step)
        check_fraction("gamma", gamma)
        numbers = np.asarray(indices, np.int64)
        if numbers.ndim != 1:
            raise ShapeMismatch(f"indices of shape {numbers.shape}; give step numbers [n]")
        gone = (numbers != NONE) & ((numbers < self.ring.tail) | (numbers >= self.ring.head))
        if gone.any():
            there = f"{self.ring.tail}..{self.ring.head - 1}" if len(self) else "none"
            raise StepOutOfRange(f"step {int(numbers[gone][0])}: the steps that are there have numbers {there}")
        slots = np.where(numbers == NONE, self.capacity, numbers % self.capacity)
        weights = np.ones(len(slots), np.float32)
        batch = self._transitions(slots, weights, n_step, gamma, views, checked_keys(self.ring, keys, include_infos))
        batch[INDICES] = numbers.copy()
        return batch

    def _draw(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Positions [n] of drawn steps, and their importance weights."""
        size = len(self.ring)
        if not size:
            raise self._empty()
        slots = (self.generator.random(n) * size).astype(np.int64)
        if size < self.capacity and (first := self.ring.tail % self.capacity):
            slots = (slots + first) % self.capacity  # the oldest were evicted before there was need to
        return slots, _ones(n, np.float32).copy()

    def _empty(self) -> EpisodeStateError:
        return EpisodeStateError("nothing is stored to draw from; add(episodes) first")

    def _transitions(
        self,
        slots: np.ndarray,
        weights: np.ndarray,
        n_step: int,
        gamma: float,
        views: BoundViews | None,
        keys: Sequence[str],
    ) -> Batch:
        ring = self.ring
        if n_step == 1:
            columns = columns_of(ring, keys, slots, slots, views=views)
            columns[Columns.N_STEP] = _ones(len(slots), np.int32).copy()
        else:
            last, sums = followed(ring, slots, n_step, gamma)
            columns = columns_of(ring, keys, slots, last, sums, views)
            columns[Columns.N_STEP] = sums[Columns.N_STEP]
        columns[Columns.WEIGHTS] = weights
        columns[INDICES] = ring.slot_numbers(slots)
        return batch_of(columns)

    def sample_sequences(
        self,
        batch_size: int,
        length: int,
        *,
        burn_in: int = 0,
        lookback: int = 0,
        boundary: str = "pad",
        views: BoundViews | None = None,
        keys: Sequence[str] | None = None,
        include_infos: bool = False,
    ) -> Batch:
        """Sequences of successive steps, zero-padded: a `Batch` of columns [B, W, ...].

        W is lookback + burn_in + length. Each stored step is equally likely to be the first to learn from. A sequence
        never leaves its episode.

        Args:
            burn_in: up to so many steps before that one come first, to warm up a recurrent state; `loss_mask` is
                False on them.
            lookback: so many columns more on the left, for context; zeros where the episode begins later.
            boundary: what happens where an episode ends too soon: `"pad"` leaves the sequence shorter, `"stop"` moves
                it back so that it stops with the episode, and is shorter only where the episode is.
            views: as `sample` takes them.

        `loss_mask` [B, W] is True on the steps to learn from, `seq_lens` [B] counts burn-in and those, `indices`
        [B, W] are step numbers (-1 on padding), `weights` is [B]. If there is a `state_out`, `state_in` [B, ...] is
        that of the step before column `lookback`, zeros at the episode's beginning.
        """
        _check_positive(batch_size=batch_size, length=length)
        if burn_in < 0 or lookback < 0:
            raise InvalidArgument(f"burn_in={burn_in}, lookback={lookback}: give at least 0")
        if boundary not in ("pad", "stop"):
            raise InvalidArgument(f"boundary={boundary!r}: give 'pad' or 'stop'")
        keys = checked_keys(self.ring, keys, include_infos)
        drawn, weights = self._draw(batch_size)
        slots, extents = drawn, self._extents(drawn)
        if boundary == "stop":
            slots, extents = self._moved_back(slots, extents, length)
        found = walks.windows(self.ring.links, slots, extents, length, burn_in, lookback)
        columns = self._sequences(found, lookback, views, keys)
        columns[Columns.WEIGHTS] = weights
        columns[INDICES] = self._sequence_indices(self.ring.slot_numbers(drawn), columns[INDICES])
        return batch_of(columns)

    def _sequence_indices(self, drawn: np.ndarray, window: np.ndarray) -> np.ndarray:
        """The column `indices`, of the numbers of the drawn steps [B] and those of all steps [B, W]."""
        return window

    def _extents(self, slots: np.ndarray) -> Extents:
        ring = self.ring
        entry, t = ring.links.entry[slots], ring.links.t[slots]
        return Extents(t - ring.links.t[ring.table.first.take(entry)], ring.t_next(entry) - t)

    def _moved_back(self, slots: np.ndarray, extents: Extents, length: int) -> tuple[np.ndarray, Extents]:
        back = np.minimum(np.maximum(length - extents.onward, 0), extents.before)
        if back.any():
            path = walks.walk(self.ring.links.previous, slots, int(back.max()))
            slots = np.stack(path)[back, np.arange(len(slots))]
        return slots, Extents(extents.before - back, extents.onward + back)

    def _sequences(
        self, found: Windows, lookback: int, views: BoundViews | None, keys: Sequence[str]
    ) -> dict[str, Any]:
        ring, slots = self.ring, found.slots
        columns = columns_of(ring, keys, slots, slots, views=views)
        indices = ring.slot_numbers(slots)
        indices[~found.there] = NONE
        columns[Columns.LOSS_MASK] = found.learned
        columns[Columns.SEQ_LENS] = found.stops - lookback
        columns[INDICES] = indices
        if Columns.STATE_OUT in ring.tracks:
            columns[Columns.STATE_IN] = states_before(ring, slots[:, lookback])
        return columns

    # --- whole episodes ----------------------------------------------------------------------------------------

    def sample_episodes(self, n: int) -> list[SingleAgentEpisode]:
        """`n` of the stored episodes, each equally likely, with repetition; of each, the steps that are there.

        Episodes whose steps lie in a row are views: nothing is copied, and they show what is stored there now, so
        read them before their steps are evicted, or copy them. The others are gathered.
        """
        _check_positive(n=n)
        order = self.ring.table.order
        if not order:
            raise self._empty()
        picked = (self.generator.random(n) * len(order)).astype(np.int64)
        return [self._episode(order[i]) for i in picked.tolist()]

    def iter_episodes(self) -> Iterator[SingleAgentEpisode]:
        """All stored episodes, the one with the oldest step first; views where `sample_episodes` gives views."""
        for entry in entries_in_order(self.ring).tolist():
            yield self._episode(entry)

    def iter_packs(self, num_steps: int = 1 << 16) -> Iterator[EpisodePack]:
        """All stored episodes as packs of at most `num_steps` steps (an episode that is longer has one of its own).

        The episode with the oldest step comes first. The packs are copies: they stay as they are when steps are
        evicted.
        """
        _check_positive(num_steps=num_steps)
        return packs_of(self.ring, self._spaces, num_steps)

    def to_dataset(self, path: str | Path | EpisodeWriter) -> None:
        """Write all stored episodes to a data set on disk, new or there already, or by a writer that is open.

        What is stored of an episode is one chunk: one that lost its beginning has a later `t_started`, one that goes on
        is cut. The buffer stays as it is. Errors: those of `EpisodeWriter` and its `add`.
        """
        with nullcontext(path) if isinstance(path, EpisodeWriter) else EpisodeWriter(path) as writer:
            for pack in self.iter_packs():
                writer.add(pack)

    @classmethod
    def from_dataset(
        cls, dataset: EpisodeDataset | str | Path, capacity: int | None = None, *, seed: int | None = None
    ) -> Self:
        """A buffer of the episodes of a data set (or of its path), added in order.

        Room is for all of their steps unless a `capacity` is given; if it is smaller, the last ones stay. Errors:
        `InvalidArgument` for episodes without a step and no capacity; those of `add`.
        """
        episodes = dataset if isinstance(dataset, EpisodeDataset) else EpisodeDataset(dataset)
        if capacity is None and not episodes.num_steps:
            raise InvalidArgument(f"{episodes!r} has no steps; give the buffer's capacity")
        buffer = cls(episodes.num_steps if capacity is None else capacity, seed=seed)
        for pack in episodes.packs():
            buffer.add(pack)
        return buffer

    def _episode(self, entry: int) -> SingleAgentEpisode:
        return episode_at(self.ring, entry, *self._spaces)

    # --- state -------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Everything that is stored and the generator's state, as a dict of plain values and arrays of its own."""
        return {
            "ring": ring_state(self.ring),
            "generator": self.generator.bit_generator.state,
            "spaces": self._spaces,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on, bit for bit, where `get_state` was called.

        Raises:
            InvalidArgument: another capacity.
            StateMismatch: the state of a buffer with priorities.
        """
        if "priorities" in state:
            raise StateMismatch("a state with priorities; restore it into a PrioritizedEpisodeReplayBuffer")
        self._set_state(state)

    def _set_state(self, state: dict[str, Any]) -> None:
        set_ring_state(self.ring, state["ring"])
        self.generator.bit_generator.state = state["generator"]
        self._spaces = state["spaces"]

    def __getstate__(self) -> dict[str, Any]:
        """What is copied and pickled. A copy lies in memory; recorders go on with the buffer that they were made by."""
        return {**self.__dict__, "ring": None, "_path": None, "generator": None, "_state": self.get_state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        own = state.pop("_state")
        self.__dict__.update(state)
        self.ring = LinkedRing(self.capacity, Allocator(None))
        self.generator = np.random.default_rng()
        self.set_state(own)


@lru_cache(maxsize=16)
def _ones(n: int, dtype: type) -> np.ndarray:
    """Ones [n]; to be copied, which is cheaper than making them."""
    return np.ones(n, dtype)


def _check_positive(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise InvalidArgument(f"{name}={count}: give at least 1")

"""`EpisodePack`: many episodes as one set of columns; an episode of a pack is a view of it.

Each track of all episodes is one array, and offsets say where an episode begins. The pack is what the vector recorder
produces, the replay buffer keeps, files store, sockets carry and learners read. Nothing is copied per episode.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, overload

import numpy as np
from gymnasium import spaces

from episodes.errors import InvalidArgument, StepOutOfRange, TrackMismatch, WrongType
from episodes.pack.from_episodes import pack_arguments, random_ids, sums_of_parts
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import ArrayTrack, nested
from episodes.tracks.indexing import ranges
from episodes.tracks.infos import Infos
from episodes.tracks.infos.columns import ColumnInfos
from episodes.tracks.infos.kinds import EmptyInfos, ListInfos
from episodes.tracks.track import frozen


class EpisodePack(Sequence[SingleAgentEpisode]):
    """An immutable sequence of finished episodes, columnar inside. Its arrays are read-only.

    Step tracks hold `offsets[i + 1] - offsets[i]` = L_i + T_i rows for episode i, observations and infos one more.

    Args:
        observations: nested arrays [sum(L_i + T_i + 1), ...].
        actions: nested arrays [sum(L_i + T_i), ...]; likewise `rewards` [sum(L_i + T_i)] and each extra model output.
        lengths: T_i, [n].
        infos: `Infos` (or a list of dicts) with a row for each observation; all empty when None.
        lookbacks: L_i, [n]; all 0 when None.
        ids: the episodes' ids [n]; random when None.
        terminated, truncated: flags [n]; False when None.
        agent_ids, module_ids, multi_agent_episode_ids: values [n], or None where no episode has one.
        custom_data: a dict (or None) for each episode, or None.

    Errors: `TrackMismatch` names the track whose number of rows does not go with `lengths`.
    """

    def __init__(
        self,
        *,
        observations: Any,
        actions: Any,
        rewards: np.ndarray,
        lengths: Any,
        infos: Infos | Sequence[dict[str, Any]] | None = None,
        extra_model_outputs: Mapping[str, Any] | None = None,
        lookbacks: Any = None,
        ids: Any = None,
        t_started: Any = None,
        terminated: Any = None,
        truncated: Any = None,
        agent_ids: Any = None,
        module_ids: Any = None,
        multi_agent_episode_ids: Any = None,
        custom_data: Sequence[dict[str, Any] | None] | None = None,
        observation_space: spaces.Space | None = None,
        action_space: spaces.Space | None = None,
    ) -> None:
        self.lengths = _per_episode(lengths, np.int64)  # [n]
        num = len(self.lengths)
        self.lookbacks = _per_episode(np.zeros(num) if lookbacks is None else lookbacks, np.int64)  # [n]
        self.offsets = _offsets(self.lengths + self.lookbacks)  # [n + 1]
        self.observations = frozen(observations)
        self.actions = frozen(actions)
        self.rewards: np.ndarray = frozen(rewards)
        self.extra_model_outputs = {key: frozen(value) for key, value in (extra_model_outputs or {}).items()}
        rows = int(self.offsets[-1]) + num
        self.infos = (
            infos if isinstance(infos, Infos) else ListInfos.of(infos) if infos is not None else EmptyInfos(rows)
        )
        self.ids = _ids(num, ids)  # [n] str
        self.t_started = _per_episode(np.zeros(num) if t_started is None else t_started, np.int64)  # [n]
        self.terminated = _per_episode(np.zeros(num) if terminated is None else terminated, bool)  # [n]
        self.truncated = _per_episode(np.zeros(num) if truncated is None else truncated, bool)  # [n]
        self.agent_ids = _objects(agent_ids)  # [n] or None
        self.module_ids = _objects(module_ids)  # [n] or None
        self.multi_agent_episode_ids = _objects(multi_agent_episode_ids)  # [n] or None
        self.custom_data = custom_data if custom_data is not None and any(custom_data) else None
        self.observation_space = observation_space
        self.action_space = action_space
        self._check_rows()

    def _check_rows(self) -> None:
        steps, num = int(self.offsets[-1]), len(self)
        by_step = (self.actions, self.rewards, *self.extra_model_outputs.values())
        sizes = {len(leaf) for column in by_step for leaf in nested.leaves(column)}
        observed = {len(leaf) for leaf in nested.leaves(self.observations)}
        if sizes != {steps} or observed != {steps + num}:
            raise self._track_of_other_length(steps)
        if len(self.infos) != steps + len(self):
            raise TrackMismatch(
                f"pack: {len(self.infos)} infos for {steps + len(self)} observations; there is one for each"
            )
        for name in ("lookbacks", "ids", "t_started", "terminated", "truncated", *_OPTIONAL):
            column = getattr(self, name)
            if column is not None and len(column) != num:
                raise TrackMismatch(f"pack: {len(column)} {name} for {num} episodes; give one for each")

    def _track_of_other_length(self, steps: int) -> TrackMismatch:
        wanted = {path: steps + len(self) * (path.split("/", 1)[0] == "observations") for path in self.tracks}
        path, array = next((path, array) for path, array in self.tracks.items() if len(array) != wanted[path])
        return TrackMismatch(
            f"pack: track {path!r} has {len(array)} rows, the episodes' lengths ask for {wanted[path]}"
        )

    @classmethod
    def from_episodes(cls, episodes: Sequence[SingleAgentEpisode]) -> EpisodePack:
        """The episodes as a pack (itself when it is one): one concatenate per track; the episodes stay as they are.

        Errors: `TrackMismatch` for episodes whose tracks differ in keys, structure or item shape; `WrongType` for
        what is no single-agent episode.
        """
        if isinstance(episodes, EpisodePack):
            return episodes
        if isinstance(episodes, SingleAgentEpisode):
            raise WrongType("a pack is made of a list of episodes; give [episode]")
        episodes = list(episodes)
        if not episodes:
            raise InvalidArgument("a pack needs at least one episode: an empty list says nothing of shapes and spaces")
        other = next((episode for episode in episodes if not isinstance(episode, SingleAgentEpisode)), None)
        if other is not None:
            raise WrongType(
                f"a pack holds single-agent episodes, not a {type(other).__name__}; pack_agents packs those of "
                "multi-agent episodes, and unpack_agents makes them whole again"
            )
        return cls(**pack_arguments(episodes))

    @classmethod
    def concat(cls, packs: Sequence[EpisodePack]) -> EpisodePack:
        """The packs' episodes as one pack: one concatenate per track."""
        packs = list(packs)
        if len(packs) == 1:
            return packs[0]
        if not packs:
            raise InvalidArgument("EpisodePack.concat needs at least one pack")
        first = packs[0]
        for pack in packs[1:]:
            _check_same_tracks(first, pack)
        join = lambda name: nested.concatenate([getattr(pack, name) for pack in packs])  # noqa: E731
        extra = [pack.extra_model_outputs for pack in packs]
        return cls(
            observations=join("observations"),
            actions=join("actions"),
            rewards=join("rewards"),
            extra_model_outputs={key: nested.concatenate([outputs[key] for outputs in extra]) for key in extra[0]},
            infos=Infos.concat([pack.infos for pack in packs]),
            custom_data=[data for pack in packs for data in pack.custom_data or [None] * len(pack)],
            observation_space=first.observation_space,
            action_space=first.action_space,
            **{name: join(name) for name in _PER_EPISODE},
            **{name: _joined_objects([getattr(pack, name) for pack in packs], packs) for name in _OPTIONAL},
        )

    # --- sequence --------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, index: int) -> SingleAgentEpisode: ...
    @overload
    def __getitem__(self, index: slice) -> EpisodePack: ...
    def __getitem__(self, index: int | slice) -> SingleAgentEpisode | EpisodePack:
        """Episode i, or the pack of a slice of episodes; views either way (a slice with a step copies)."""
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step == 1:
                return self._range(start, max(start, stop))
            return self.select(np.arange(start, stop, step))
        if not isinstance(index, (int, np.integer)):
            raise WrongType(
                f"pack[{index!r}]: give an int or a slice; pack.select(indices) takes an integer or boolean array"
            )
        i = int(index) + len(self) if index < 0 else int(index)
        if not 0 <= i < len(self):
            raise StepOutOfRange(f"pack[{index}]: there are episodes 0..{len(self) - 1}")
        return self._episode(i)

    def __iter__(self) -> Iterator[SingleAgentEpisode]:
        return map(self._episode, range(len(self)))

    def _episode(self, i: int) -> SingleAgentEpisode:
        begin, end = self._bounds[i], self._bounds[i + 1]
        lookback = int(self.lookbacks[i])
        observed = nested.take(self.observations, slice(begin + i, end + i + 1))
        track = lambda column: ArrayTrack(nested.take(column, slice(begin, end)), lookback)  # noqa: E731
        return SingleAgentEpisode._make(
            id_=self.ids[i] if self.ids.dtype == object else str(self.ids[i]),
            observations=ArrayTrack(observed, lookback),
            actions=track(self.actions),
            rewards=ArrayTrack(self.rewards[begin:end], lookback),
            infos=self.infos.view(begin + i, end + i + 1),
            extra_model_outputs={key: track(column) for key, column in self.extra_model_outputs.items()},
            lookback=lookback,
            t_started=int(self.t_started[i]),
            terminated=bool(self.terminated[i]),
            truncated=bool(self.truncated[i]),
            observation_space=self.observation_space,
            action_space=self.action_space,
            agent_id=None if self.agent_ids is None else self.agent_ids[i],
            module_id=None if self.module_ids is None else self.module_ids[i],
            multi_agent_episode_id=None if self.multi_agent_episode_ids is None else self.multi_agent_episode_ids[i],
            custom_data=dict(self.custom_data[i] or {}) if self.custom_data is not None else {},
        )

    def _range(self, start: int, stop: int) -> EpisodePack:
        begin, end = self._bounds[start], self._bounds[stop]
        steps = slice(begin, end)
        observed = slice(begin + start, end + stop)
        return self._picked(slice(start, stop), steps, observed, self.infos.view(observed.start, observed.stop))

    def select(self, indices: Any) -> EpisodePack:
        """The pack of the episodes that an integer array, a list or a boolean mask picks; one gather per track."""
        try:
            picked = np.arange(len(self))[np.asarray(indices)]
        except IndexError as error:
            raise StepOutOfRange(f"pack.select: {error}; there are episodes 0..{len(self) - 1}") from None
        sizes = np.diff(self.offsets)[picked]
        steps = ranges(self.offsets[:-1][picked], sizes)
        observed = ranges(self.observation_offsets[:-1][picked], sizes + 1)
        return self._picked(picked, steps, observed, self.infos.take(observed))

    def replace(self, **changed: Any) -> EpisodePack:
        """This pack with other columns or metadata, under the names that the constructor takes."""
        return EpisodePack(**{**{name: getattr(self, name) for name in _ARGUMENTS}, **changed})

    def _picked(self, which: Any, steps: Any, observed: Any, infos: Infos) -> EpisodePack:
        take = lambda name: None if (column := getattr(self, name)) is None else column[which]  # noqa: E731
        custom = self.custom_data
        return EpisodePack(
            observations=nested.take(self.observations, observed),
            actions=nested.take(self.actions, steps),
            rewards=self.rewards[steps],
            extra_model_outputs={key: nested.take(column, steps) for key, column in self.extra_model_outputs.items()},
            infos=infos,
            custom_data=None if custom is None else [custom[i] for i in np.arange(len(self))[which]],
            observation_space=self.observation_space,
            action_space=self.action_space,
            **{name: take(name) for name in (*_PER_EPISODE, *_OPTIONAL)},
        )

    # --- columns ---------------------------------------------------------------------------------------------

    @cached_property
    def _bounds(self) -> list[int]:
        return self.offsets.tolist()

    @cached_property
    def tracks(self) -> dict[str, np.ndarray]:
        """Every array by path, such as `observations/camera` or `extra_model_outputs/vf_preds`."""
        columns = {"observations": self.observations, "actions": self.actions, "rewards": self.rewards}
        flat = {path: array for name, column in columns.items() for path, array in nested.flatten(column, name).items()}
        for key, column in self.extra_model_outputs.items():
            flat |= nested.flatten(column, f"extra_model_outputs/{nested.escape(key)}")
        return flat

    @cached_property
    def observation_offsets(self) -> np.ndarray:
        """Where each episode's observation rows (and infos) begin, [n + 1]."""
        return _frozen(self.offsets + np.arange(len(self) + 1))

    @cached_property
    def row_owners(self) -> np.ndarray:
        """The episode of each observation row, int [sum(L_i + T_i + 1)]."""
        return _frozen(np.repeat(np.arange(len(self)), np.diff(self.observation_offsets)))

    @property
    def num_steps(self) -> int:
        """The number of steps of all episodes, lookbacks not counted."""
        return int(self.lengths.sum())

    @property
    def nbytes(self) -> int:
        """The bytes of all tracks."""
        return sum(array.nbytes for array in self.tracks.values())

    def step_rows(self) -> slice | np.ndarray:
        """The rows [num_steps] of the real steps in step tracks; all of them, as a slice, without lookbacks."""
        if not self.lookbacks.any():
            return slice(None)
        return ranges(self.offsets[:-1] + self.lookbacks, self.lengths)

    def observation_rows(self, shift: int = 0) -> np.ndarray:
        """The rows [num_steps] of the observations before each real step (`shift=0`) or after it (`shift=1`)."""
        return self._observed_rows + shift if shift else self._observed_rows

    @cached_property
    def _observed_rows(self) -> np.ndarray:
        return _frozen(ranges(self.observation_offsets[:-1] + self.lookbacks, self.lengths))

    def all_observation_rows(self) -> slice | np.ndarray:
        """The rows [num_steps + n] of the T + 1 real observations per episode; a slice without lookbacks."""
        if not self.lookbacks.any():
            return slice(None)
        return ranges(self.observation_offsets[:-1] + self.lookbacks, self.lengths + 1)

    def returns(self) -> np.ndarray:
        """The undiscounted return [n] of each episode."""
        return sums_of_parts(self.rewards, self.offsets[:-1] + self.lookbacks, self.offsets[1:])

    # --- state -----------------------------------------------------------------------------------------------

    def __reduce_ex__(self, protocol: Any) -> Any:
        """One buffer per track, out of band with protocol 5; what is per episode goes in band."""
        state = {name: getattr(self, name) for name in ("observations", "actions", "rewards", "extra_model_outputs")}
        inband = {name: _in_band(getattr(self, name)) for name in (*_PER_EPISODE, *_OPTIONAL)}
        state |= {name: getattr(self, name) for name in ("custom_data", "observation_space", "action_space")}
        return _unpickled, (state, ColumnInfos.of(self.infos), inband)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EpisodePack):
            return NotImplemented
        return len(self) == len(other) and all(a.equals(b) for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        mean = f"{self.returns().mean():g}" if len(self) else "none"
        ended = f"{int(self.terminated.sum())} terminated, {int((self.truncated & ~self.terminated).sum())} truncated"
        what = f"{len(self)} episodes, {self.num_steps} steps, mean return {mean}"
        return f"EpisodePack({what}, {ended}, {self.nbytes} bytes)"


_PER_EPISODE = ("lengths", "lookbacks", "ids", "t_started", "terminated", "truncated")
_OPTIONAL = ("agent_ids", "module_ids", "multi_agent_episode_ids")
_ARGUMENTS = (
    *("observations", "actions", "rewards", "extra_model_outputs", "infos", "custom_data"),
    *("observation_space", "action_space"),
    *_PER_EPISODE,
    *_OPTIONAL,
)


def _offsets(sizes: np.ndarray) -> np.ndarray:
    offsets = np.zeros(len(sizes) + 1, np.int64)
    sizes.cumsum(out=offsets[1:])
    return _frozen(offsets)


def _frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def _per_episode(values: Any, dtype: Any) -> np.ndarray:
    if type(values) is list:
        return _frozen(np.array(values, dtype))
    array = np.asarray(values) if dtype is None else np.asarray(values).astype(dtype, copy=False)
    return frozen(array)


def _ids(num: int, ids: Any) -> np.ndarray:
    if ids is None:
        return _frozen(random_ids(num))
    if not isinstance(ids, list) or all(type(id_) is str for id_ in ids):
        return _per_episode(ids, None)
    array = np.empty(num, object)
    array[:] = ids
    return _frozen(array)


def _objects(values: Any) -> np.ndarray | None:
    if values is None or list(values).count(None) == len(values):
        return None
    array = np.empty(len(values), object)
    array[:] = values
    return _frozen(array)


def _joined_objects(columns: list[np.ndarray | None], packs: list[EpisodePack]) -> list[Any] | None:
    if all(column is None for column in columns):
        return None
    whole = [[None] * len(pack) if column is None else column for column, pack in zip(columns, packs, strict=True)]
    return [value for column in whole for value in column]


def _check_same_tracks(first: EpisodePack, other: EpisodePack) -> None:
    mine = {path: array.shape[1:] if len(array) else None for path, array in first.tracks.items()}
    theirs = {path: array.shape[1:] if len(array) else None for path, array in other.tracks.items()}
    both = [path for path in mine if mine[path] is not None and theirs.get(path) is not None]
    if mine.keys() != theirs.keys() or any(mine[path] != theirs[path] for path in both):
        raise TrackMismatch(f"packs with other tracks cannot be joined: {mine} beside {theirs}")


def _in_band(array: np.ndarray | None) -> Any:
    if array is None:
        return None
    return array.tolist() if array.dtype == object else (array.dtype.str, array.tobytes())


def _from_band(band: Any) -> Any:
    return np.frombuffer(band[1], band[0]) if isinstance(band, tuple) else band


def _unpickled(state: dict[str, Any], infos: Infos, inband: dict[str, Any]) -> EpisodePack:
    return EpisodePack(infos=infos, **state, **{name: _from_band(band) for name, band in inband.items()})

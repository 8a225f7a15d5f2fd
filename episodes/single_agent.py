"""`SingleAgentEpisode`: T actions and rewards, T + 1 observations, read through getters.

It grows as lists; `to_numpy` makes each track one read-only array.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from copy import deepcopy
from time import perf_counter
from typing import Any, Self

import numpy as np
from gymnasium import spaces

from episodes import indexing, nested, reading
from episodes import spaces as space_items
from episodes.columns import Columns
from episodes.errors import ChunkMismatch, EpisodeStateError, InvalidArgument, ShapeMismatch, TrackMismatch, WrongType
from episodes.getters import TrackGetters
from episodes.infos import EmptyInfos, Infos, ListInfos, same_info
from episodes.tracks import ArrayTrack, ListTrack, Track


class SingleAgentEpisode(TrackGetters):
    """One chunk of one agent's episode in one environment.

    All given data becomes lookback with `len_lookback_buffer="auto"`, as in RLlib: the episode then starts at the
    last observation. `from_arrays` makes a finished episode of arrays, without a lookback.

    Args:
        observations: a list of L + T + 1 items; likewise `infos`. Nested items (dicts, tuples) are welcome.
        actions: a list of L + T items; likewise `rewards` and each of `extra_model_outputs`.
        t_started: the environment step of this chunk's first observation; 0 when nothing is said.
        len_lookback_buffer: L, how many of the given items lie before step 0.

    Errors: `TrackMismatch` when the lengths do not go together, `InvalidArgument` for a lookback that is not there.

    >>> episode = SingleAgentEpisode()
    >>> episode.add_env_reset(np.zeros(4))
    >>> episode.add_env_step(np.ones(4), 1, 0.5, terminated=True)
    >>> len(episode), episode.get_return(), episode.get_observations(-1).tolist()
    (1, 0.5, [1.0, 1.0, 1.0, 1.0])
    """

    __slots__ = (
        "_duration",
        "_item_shape",
        "_last_time",
        "_open",
        "agent_id",
        "custom_data",
        "is_terminated",
        "is_truncated",
        "module_id",
        "multi_agent_episode_id",
        "t_started",
    )

    def __init__(
        self,
        id_: str | None = None,
        *,
        observations: Sequence[Any] | None = None,
        observation_space: spaces.Space | None = None,
        infos: Sequence[dict[str, Any]] | None = None,
        actions: Sequence[Any] | None = None,
        action_space: spaces.Space | None = None,
        rewards: Sequence[Any] | None = None,
        terminated: bool = False,
        truncated: bool = False,
        extra_model_outputs: Mapping[str, Sequence[Any]] | None = None,
        t_started: int | None = None,
        len_lookback_buffer: int | str = "auto",
        agent_id: Any = None,
        module_id: Any = None,
        multi_agent_episode_id: str | None = None,
    ) -> None:
        num_given = len(rewards) if rewards is not None else 0
        lookback = (
            num_given if len_lookback_buffer == "auto" else min(_checked_lookback(len_lookback_buffer), num_given)
        )
        observed = [] if observations is None else list(observations)
        self._set(
            id_=uuid.uuid4().hex if id_ is None else id_,
            observations=ListTrack(observed, lookback),
            actions=ListTrack([] if actions is None else list(actions), lookback),
            rewards=ListTrack([] if rewards is None else list(rewards), lookback),
            infos=list(infos) if infos is not None else [{} for _ in observed],
            extra_model_outputs={k: ListTrack(list(v), lookback) for k, v in (extra_model_outputs or {}).items()},
            lookback=lookback,
            t_started=t_started or 0,
            terminated=bool(terminated),
            truncated=bool(truncated),
            observation_space=observation_space,
            action_space=action_space,
            agent_id=agent_id,
            module_id=module_id,
            multi_agent_episode_id=multi_agent_episode_id,
            custom_data={},
        )
        if observed or num_given or actions is not None or extra_model_outputs:
            self.validate()

    def _set(
        self,
        *,
        id_: Any,
        observations: Track,
        actions: Track,
        rewards: Track,
        infos: list[dict[str, Any]] | Infos,
        extra_model_outputs: dict[str, Track],
        lookback: int,
        t_started: int,
        terminated: bool,
        truncated: bool,
        observation_space: spaces.Space | None,
        action_space: spaces.Space | None,
        agent_id: Any,
        module_id: Any,
        multi_agent_episode_id: Any,
        custom_data: dict[str, Any],
    ) -> None:
        """Set every attribute: the one place that does, so that no way of making an episode forgets one."""
        self.id_ = id_
        self.observations = observations
        self.actions = actions
        self.rewards = rewards
        self.infos = infos
        self.extra_model_outputs = extra_model_outputs
        self.lookback = lookback
        self.t_started = t_started
        self.is_terminated = terminated
        self.is_truncated = truncated
        self.observation_space = observation_space
        self.action_space = action_space
        self.agent_id = agent_id
        self.module_id = module_id
        self.multi_agent_episode_id = multi_agent_episode_id
        self.custom_data = custom_data
        self._item_shape: Any = None
        self._duration = 0.0
        self._last_time: float | None = None
        growing = type(observations) is ListTrack
        self._open = growing and not (terminated or truncated) and bool(observations.items)

    @classmethod
    def _make(cls, **attributes: Any) -> Self:
        """An episode of the attributes that `_set` takes."""
        episode = cls.__new__(cls)
        episode._set(**attributes)
        return episode

    def _successor(self, **changed: Any) -> Self:
        """An episode with this one's identity, spaces and custom data, and the other attributes that are given."""
        return self._make(
            id_=self.id_,
            agent_id=self.agent_id,
            module_id=self.module_id,
            multi_agent_episode_id=self.multi_agent_episode_id,
            observation_space=self.observation_space,
            action_space=self.action_space,
            custom_data=dict(self.custom_data),
            **changed,
        )

    @classmethod
    def from_arrays(
        cls,
        observations: Any,
        actions: Any,
        rewards: Any,
        *,
        infos: Sequence[dict[str, Any]] | None = None,
        terminated: bool = False,
        truncated: bool = False,
        extra_model_outputs: Mapping[str, Any] | None = None,
        id_: str | None = None,
        t_started: int = 0,
        agent_id: Any = None,
        module_id: Any = None,
        multi_agent_episode_id: str | None = None,
        observation_space: spaces.Space | None = None,
        action_space: spaces.Space | None = None,
        custom_data: Mapping[str, Any] | None = None,
    ) -> Self:
        """A finished episode of the arrays, which it views and does not copy; it has no lookback.

        Args:
            observations: nested arrays [T + 1, ...]; likewise T + 1 `infos`.
            actions: nested arrays [T, ...]; likewise `rewards` [T] and each of `extra_model_outputs`.

        Errors: `TrackMismatch` when the lengths do not go together.

        >>> SingleAgentEpisode.from_arrays(np.zeros((3, 2)), [0, 1], [1.0, 1.0], terminated=True, id_="a")
        SingleAgentEpisode(a: 2 steps, return 2, terminated)
        """
        observed = _array_track(observations)
        episode = cls._make(
            id_=uuid.uuid4().hex if id_ is None else id_,
            observations=observed,
            actions=_array_track(actions),
            rewards=_array_track(rewards),
            infos=ListInfos.of(infos) if infos is not None else EmptyInfos(len(observed)),
            extra_model_outputs={key: _array_track(value) for key, value in (extra_model_outputs or {}).items()},
            lookback=0,
            t_started=t_started,
            terminated=bool(terminated),
            truncated=bool(truncated),
            observation_space=observation_space,
            action_space=action_space,
            agent_id=agent_id,
            module_id=module_id,
            multi_agent_episode_id=multi_agent_episode_id,
            custom_data=dict(custom_data or {}),
        )
        episode.validate()
        return episode

    # --- growing ---------------------------------------------------------------------------------------------

    def add_env_reset(self, observation: Any, infos: dict[str, Any] | None = None) -> None:
        """Begin with the reset observation. `EpisodeStateError` when the episode was reset already."""
        if self.is_reset or self.is_done:
            raise EpisodeStateError(
                f"episode {self.id_}: add_env_reset after a reset; make a new episode for a new reset"
            )
        self.observations.items.append(observation)  # type: ignore[union-attr]
        self.infos.append({} if infos is None else infos)  # type: ignore[union-attr]
        self._item_shape = reading.shape_of(observation)
        self._last_time = perf_counter()
        self._open = True

    def add_env_step(
        self,
        observation: Any,
        action: Any,
        reward: Any,
        infos: dict[str, Any] | None = None,
        *,
        terminated: bool = False,
        truncated: bool = False,
        extra_model_outputs: Mapping[str, Any] | None = None,
    ) -> None:
        """Add one step: the action taken, and the reward and observation that it led to. O(1), nothing is copied.

        Errors, each leaving the episode as it was: `EpisodeStateError` before the reset, after the end, or once
        finalized; `ShapeMismatch` for an observation of another shape; `TrackMismatch` for an extra model output
        that starts late or stops early.
        """
        if not self._open:
            raise self._refusal("add_env_step")
        if type(observation) is not np.ndarray or observation.shape != self._item_shape:
            self._check_observation(observation)
        extra = self.extra_model_outputs
        if extra_model_outputs:
            if extra_model_outputs.keys() != extra.keys():
                extra = self._start_extra(extra_model_outputs)
            for key, value in extra_model_outputs.items():
                extra[key].items.append(value)  # type: ignore[union-attr]
        elif extra:
            raise self._extra_mismatch({})
        self.observations.items.append(observation)  # type: ignore[union-attr]
        self.actions.items.append(action)  # type: ignore[union-attr]
        self.rewards.items.append(reward)  # type: ignore[union-attr]
        self.infos.append({} if infos is None else infos)  # type: ignore[union-attr]
        if terminated or truncated:
            self.is_terminated, self.is_truncated, self._open = bool(terminated), bool(truncated), False
        now = perf_counter()
        if self._last_time is not None:
            self._duration += now - self._last_time
        self._last_time = now

    def _refusal(self, call: str) -> EpisodeStateError:
        if self.is_done:
            ending = "terminated" if self.is_terminated else "truncated"
            return EpisodeStateError(
                f"episode {self.id_}: {call} after the end ({ending} at t={self.t}); make a new episode"
            )
        if self.is_numpy:
            return EpisodeStateError(
                f"episode {self.id_}: {call} on a finalized episode; go on with its successor: cut()"
            )
        return EpisodeStateError(f"episode {self.id_}: {call} before the reset; call add_env_reset(observation) first")

    def _check_observation(self, observation: Any) -> None:
        if self._item_shape is None:
            self._item_shape = reading.shape_of(self.observations.get(-1))
        shape = reading.shape_of(observation)
        if shape != self._item_shape:
            raise ShapeMismatch(
                f"episode {self.id_}: the observation of step {len(self)} has shape {shape}, those before it have "
                f"{self._item_shape}; all observations of an episode have one shape"
            )

    def _start_extra(self, given: Mapping[str, Any]) -> dict[str, Track]:
        if self.extra_model_outputs or self.rewards.items:  # type: ignore[union-attr]
            raise self._extra_mismatch(given)
        for key in given:
            self.extra_model_outputs[key] = ListTrack([], 0)
        return self.extra_model_outputs

    def _extra_mismatch(self, given: Mapping[str, Any]) -> TrackMismatch:
        known = self.extra_model_outputs
        late, missing = [k for k in given if k not in known], [k for k in known if k not in given]
        what = f"{late} would start late" if late else f"{missing} would stop early"
        return TrackMismatch(
            f"episode {self.id_}: extra model outputs: {what}, at step {len(self)}; every step so far has {list(known)}, "
            "and so must this one"
        )

    def to_numpy(self) -> Self:
        """Finalize in place: each track becomes one read-only array (nested where its items are); returns itself.

        A track takes its space's dtype when it has one, else numpy's promotion over all items. Idempotent.
        Errors: `ShapeMismatch` names the first item that differs; `EpisodeStateError` before the reset.
        """
        if not self.is_numpy:
            columns = self.arrays()
            self.observations, self.actions, self.rewards = columns[:3]
            self.extra_model_outputs = dict(columns[3])
            self.infos = ListInfos.of(self.infos)
            self._open = False
        return self

    finalize = to_numpy

    def arrays(self) -> tuple[ArrayTrack, ArrayTrack, ArrayTrack, dict[str, ArrayTrack]]:
        """The observations, actions, rewards and extra outputs as finished tracks; the episode stays as it is."""
        if not self.is_reset:
            raise EpisodeStateError(
                f"episode {self.id_}: it has no observation yet; call add_env_reset(observation) first"
            )
        if self.actions.total:
            actions = self.actions.finalize("actions", space_items.dtypes_of(self.action_space))
        else:
            actions = ArrayTrack.of(space_items.empty_items(self.action_space))
        return (
            self.observations.finalize("observations", space_items.dtypes_of(self.observation_space)),
            actions,
            self.rewards.finalize("rewards"),
            {key: track.finalize(f"extra_model_outputs[{key!r}]") for key, track in self.extra_model_outputs.items()},
        )

    # --- cutting and joining ---------------------------------------------------------------------------------

    def __getitem__(self, slice_: slice) -> Self:
        """The sub-episode of the steps `[a:b]`; as `slice`."""
        if not isinstance(slice_, slice):
            raise WrongType(
                f"episode[{slice_!r}]: an episode is sliced by steps, episode[a:b]; read one item with a getter"
            )
        return self.slice(slice_)

    def slice(self, slice_: slice, *, len_lookback_buffer: int | None = None) -> Self:
        """The sub-episode of the steps of a slice, clipped as Python clips; views, not copies, once finalized.

        Ids, spaces, `custom_data` and infos stay, and so does the ending when the slice reaches the last step.

        Args:
            len_lookback_buffer: how many items before the slice to keep, as far as they are there; this episode's
                own lookback when None.
        """
        start, stop = indexing.chunk_bounds(slice_, len(self))
        wanted = self.lookback if len_lookback_buffer is None else _checked_lookback(len_lookback_buffer)
        first, last = self.lookback + start, self.lookback + stop
        lookback = min(wanted, first)
        first -= lookback
        ends = stop == len(self)
        infos = self.infos[first : last + 1]
        return self._successor(
            observations=self.observations.view(first, last + 1, lookback),
            actions=self.actions.view(first, last, lookback),
            rewards=self.rewards.view(first, last, lookback),
            infos=infos,
            extra_model_outputs={k: track.view(first, last, lookback) for k, track in self.extra_model_outputs.items()},
            lookback=lookback,
            t_started=self.t_started + start,
            terminated=ends and self.is_terminated,
            truncated=ends and self.is_truncated,
        )

    def cut(self, len_lookback_buffer: int = 0) -> Self:
        """The successor chunk, which goes on growing where this one stops.

        It has the same ids, `t_started = self.t`, this chunk's last observation as its first, and the last
        `len_lookback_buffer` steps (as far as they are there) as its lookback.

        Errors: `EpisodeStateError` when there is nothing to go on with: ended, or not reset.
        """
        if self.is_done or not self.is_reset:
            raise self._refusal("cut")
        lookback = min(_checked_lookback(len_lookback_buffer), self.lookback + len(self))
        total = self.lookback + len(self)
        carried = lambda track: ListTrack(track.item_list(total - lookback, total), lookback)  # noqa: E731
        successor = self._successor(
            observations=ListTrack(self.observations.item_list(total - lookback, total + 1), lookback),
            actions=carried(self.actions),
            rewards=carried(self.rewards),
            infos=list(self.infos[total - lookback : total + 1]),
            extra_model_outputs={key: carried(track) for key, track in self.extra_model_outputs.items()},
            lookback=lookback,
            t_started=self.t,
            terminated=False,
            truncated=False,
        )
        successor._item_shape = self._item_shape
        successor._last_time = self._last_time
        return successor

    def concat_episode(self, other: SingleAgentEpisode) -> None:
        """Append the chunk that follows this one, in place: the inverse of `cut`. The other's lookback is dropped.

        Errors: `ChunkMismatch` unless `other` has the same id and begins where this one stops, with its last
        observation; `EpisodeStateError` when this one has ended; `TrackMismatch` for an extra model output that only
        one of them has. Each leaves the episode as it was.
        """
        self._check_follows(other)
        theirs = (
            other.arrays()
            if self.is_numpy
            else (other.observations, other.actions, other.rewards, other.extra_model_outputs)
        )
        extra = self._joined_extra(theirs[3])
        self.observations = self.observations.joined(theirs[0], 1)
        self.actions = self.actions.joined(theirs[1])
        self.rewards = self.rewards.joined(theirs[2])
        self.extra_model_outputs = {key: mine.joined(other_track) for key, (mine, other_track) in extra.items()}
        others_infos = other.infos[other.lookback + 1 :]
        if isinstance(self.infos, list):
            self.infos.extend(others_infos)
        else:
            self.infos = Infos.concat(
                [self.infos, others_infos if isinstance(others_infos, Infos) else ListInfos.of(others_infos)]
            )
        self.is_terminated, self.is_truncated = other.is_terminated, other.is_truncated
        self._open = not (self.is_numpy or self.is_done)
        self.custom_data.update(other.custom_data)
        self._duration += other._duration
        self._last_time = other._last_time

    def _check_follows(self, other: SingleAgentEpisode) -> None:
        if self.is_done or not self.is_reset:
            raise self._refusal("concat_episode")
        if other.id_ != self.id_:
            raise ChunkMismatch(
                f"episode {self.id_}: a chunk of episode {other.id_} does not follow it; join chunks of one id"
            )
        if other.t_started != self.t:
            raise ChunkMismatch(
                f"episode {self.id_}: a chunk that begins at t={other.t_started} does not follow one that stops at t={self.t}; "
                "join chunks in order, none left out"
            )
        if not nested.equal(self.get_observations(-1), other.get_observations(0)):
            raise ChunkMismatch(
                f"episode {self.id_}: the chunk's first observation is not the one at which this one stops (t={self.t})"
            )

    def _joined_extra(self, theirs: Mapping[str, Track]) -> dict[str, tuple[Track, Track]]:
        """The pairs of tracks to join, by key."""
        mine = self.extra_model_outputs
        if not self.rewards.total:
            blank = ArrayTrack(np.zeros(0)) if self.is_numpy else None
            return {key: (blank or ListTrack([], 0), track) for key, track in theirs.items()}
        if mine.keys() != theirs.keys() and any(len(track) for track in theirs.values()):
            raise TrackMismatch(
                f"episode {self.id_}: extra model outputs {list(theirs)} of the chunk from t={self.t} beside {list(mine)} "
                "before it; all chunks of an episode have the same keys"
            )
        return {key: (track, theirs.get(key, track.view(0, 0))) for key, track in mine.items()}

    # --- state -----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def t(self) -> int:
        """The environment step at which this chunk stops: `t_started + len(self)`."""
        return self.t_started + len(self.rewards)

    @property
    def is_done(self) -> bool:
        """True when the episode terminated or was truncated; False for an ongoing or cut chunk."""
        return self.is_terminated or self.is_truncated

    @property
    def is_reset(self) -> bool:
        """True once there is a first observation."""
        return len(self.observations) > 0

    @property
    def is_numpy(self) -> bool:
        """True once finalized by `to_numpy`."""
        return type(self.observations) is ArrayTrack

    is_finalized = is_numpy

    def env_steps(self) -> int:
        """The number of environment steps: `len(self)`."""
        return len(self)

    def agent_steps(self) -> int:
        """The number of agent steps: `len(self)`."""
        return len(self)

    def get_return(self) -> float:
        """The undiscounted sum of the rewards from step 0 of this chunk on."""
        rewards = self.rewards.get()
        return float(rewards.sum() if isinstance(rewards, np.ndarray) else sum(rewards))

    def get_duration_s(self) -> float:
        """The seconds from the first observation to the last step, while this object grew."""
        return self._duration

    def validate(self) -> None:
        """Raise `TrackMismatch` unless there are L + T actions, rewards and extra outputs, L + T + 1 observations and infos."""
        steps = self.rewards.total
        lengths = {"observations": self.observations.total, "infos": len(self.infos), "actions": self.actions.total}
        lengths |= {f"extra_model_outputs[{key!r}]": track.total for key, track in self.extra_model_outputs.items()}
        for name, length in lengths.items():
            wanted = steps + (name in ("observations", "infos"))
            if length != wanted:
                raise TrackMismatch(
                    f"episode {self.id_}: {length} {name} beside {steps} rewards; there must be {wanted} (one more observation "
                    "and info than rewards, as many of all else)"
                )

    def get_data_dict(self) -> dict[str, Any]:
        """The T steps as columns: `obs` (without the last), `actions`, `rewards`, flags, `t`, `eps_id`, infos, extra outputs."""
        steps = len(self)
        flags = np.zeros((2, steps), bool)
        flags[:, -1:] = [[self.is_terminated], [self.is_truncated]]
        columns = {
            Columns.OBS: self.get_observations(slice(0, steps)),
            Columns.ACTIONS: self.get_actions(),
            Columns.REWARDS: self.get_rewards(),
            Columns.TERMINATEDS: flags[0],
            Columns.TRUNCATEDS: flags[1],
            Columns.T: np.arange(self.t_started, self.t),
            Columns.EPS_ID: np.full(steps, self.id_),
            Columns.INFOS: self.get_infos(slice(0, steps)),
        }
        if not self.is_numpy:
            columns = {
                key: column.tolist() if isinstance(column, np.ndarray) else column for key, column in columns.items()
            }
        return columns | {key: track.get() for key, track in self.extra_model_outputs.items()}

    def get_state(self) -> dict[str, Any]:
        """The whole episode as a dict of plain values and arrays; it shares no memory with the episode."""
        state = {name: getattr(self, name) for name in _STATE}
        state["observations"] = self.observations.items_or_arrays()
        state["actions"] = self.actions.items_or_arrays()
        state["rewards"] = self.rewards.items_or_arrays()
        state["extra_model_outputs"] = {key: track.items_or_arrays() for key, track in self.extra_model_outputs.items()}
        state["infos"] = list(self.infos)
        return deepcopy(state) | {"is_numpy": self.is_numpy, "duration_s": self._duration}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """The episode of a `get_state`; it shares no memory with the state."""
        copied = deepcopy(dict(state))
        finished, duration = copied.pop("is_numpy"), copied.pop("duration_s")
        lookback = copied["lookback"]
        track = lambda data: ArrayTrack.of(data, lookback) if finished else ListTrack(data, lookback)  # noqa: E731
        for name in ("observations", "actions", "rewards"):
            copied[name] = track(copied[name])
        copied["extra_model_outputs"] = {key: track(data) for key, data in copied["extra_model_outputs"].items()}
        if finished:
            copied["infos"] = ListInfos.of(copied["infos"])
        copied |= {"terminated": copied.pop("is_terminated"), "truncated": copied.pop("is_truncated")}
        episode = cls._make(**copied)
        episode._duration = duration
        return episode

    def equals(self, other: object) -> bool:
        """True when both are the same chunk of the same episode: ids, tracks, lookback, infos, ending, custom data."""
        if not isinstance(other, SingleAgentEpisode) or self.is_numpy != other.is_numpy:
            return False
        names = [name for name in _STATE if name != "custom_data"]
        if any(getattr(self, name) != getattr(other, name) for name in names):
            return False
        mine, theirs = self.extra_model_outputs, other.extra_model_outputs
        tracks = [(getattr(self, name), getattr(other, name)) for name in ("observations", "actions", "rewards")]
        return (
            mine.keys() == theirs.keys()
            and all(a.same_items(b) for a, b in [*tracks, *((mine[key], theirs[key]) for key in mine)])
            and same_info(list(self.infos), list(other.infos))
            and same_info(self.custom_data, other.custom_data)
        )

    def __repr__(self) -> str:
        begin = f" from t={self.t_started}" if self.t_started else ""
        ending = "terminated" if self.is_terminated else "truncated" if self.is_truncated else "ongoing"
        agent = "" if self.agent_id is None else f", agent {self.agent_id}"
        steps = "1 step" if len(self) == 1 else f"{len(self)} steps"
        return f"SingleAgentEpisode({str(self.id_)[:8]}: {steps}{begin}{agent}, return {self.get_return():g}, {ending})"


_STATE = (
    "id_",
    "agent_id",
    "module_id",
    "multi_agent_episode_id",
    "observation_space",
    "action_space",
    "custom_data",
    "lookback",
    "t_started",
    "is_terminated",
    "is_truncated",
)


def _array_track(data: Any) -> ArrayTrack:
    return ArrayTrack.of(nested.map_leaves(np.asarray, data))


def _checked_lookback(length: Any) -> int:
    if not isinstance(length, (int, np.integer)) or length < 0:
        raise InvalidArgument(f"len_lookback_buffer={length!r}: give the number of items, 0 or more")
    return int(length)

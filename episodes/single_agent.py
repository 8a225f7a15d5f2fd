"""`SingleAgentEpisode`: T actions and rewards, T + 1 observations, read through getters.

It grows as lists; `to_numpy` makes each track one read-only array.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any, Self

import numpy as np
from gymnasium import spaces

from episodes import indexing, nested, reading
from episodes import spaces as space_items
from episodes.episode_state import EpisodeState
from episodes.errors import ChunkMismatch, EpisodeStateError, InvalidArgument, ShapeMismatch, TrackMismatch, WrongType
from episodes.infos import EmptyInfos, Infos, ListInfos
from episodes.tracks import ArrayTrack, ListTrack, Track


class SingleAgentEpisode(EpisodeState):
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

    __slots__ = ()

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
        items = self.observations.items  # type: ignore[union-attr]
        items.append(observation)
        self.observations.uniform = len(items) == 1  # type: ignore[union-attr]
        self.infos.append({} if infos is None else infos)  # type: ignore[union-attr]
        self._item_shape = reading.shape_of(observation)
        self._began = perf_counter()

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
        add_observation, add_action, add_reward, add_info, extra = self._grow or self._growing("add_env_step")
        try:
            if observation.shape != self._item_shape:
                self._check_observation(observation)
        except AttributeError:
            self._check_observation(observation)
        if extra_model_outputs:
            if len(extra_model_outputs) != len(extra):
                extra = self._start_extra(extra_model_outputs)
            try:
                for key, append in extra:
                    append(extra_model_outputs[key])
            except KeyError:
                raise self._without_half_a_step(extra_model_outputs) from None
        elif extra:
            raise self._extra_mismatch({})
        add_observation(observation)
        add_action(action)
        add_reward(reward)
        add_info({} if infos is None else infos)
        if terminated or truncated:
            self.is_terminated, self.is_truncated, self._grow = bool(terminated), bool(truncated), None
            self._stop_clock()

    def _growing(self, call: str) -> tuple[Any, ...]:
        """The `append`s of observations, actions, rewards and infos, and the (key, `append`) pairs of extra outputs."""
        if self.is_done or self.is_numpy or not self.is_reset:
            raise self._refusal(call)
        lists = [track.items for track in (self.observations, self.actions, self.rewards)]  # type: ignore[union-attr]
        pairs = tuple((key, track.items.append) for key, track in self.extra_model_outputs.items())  # type: ignore[union-attr]
        self._grow = (*(items.append for items in lists), self.infos.append, pairs)  # type: ignore[union-attr]
        return self._grow

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

    def _start_extra(self, given: Mapping[str, Any]) -> tuple[Any, ...]:
        if self.extra_model_outputs or self.rewards.total:
            raise self._extra_mismatch(given)
        self.extra_model_outputs = {key: ListTrack() for key in given}
        return self._growing("add_env_step")[4]

    def _without_half_a_step(self, given: Mapping[str, Any]) -> TrackMismatch:
        """The error for a key that is not given, after what was appended for other keys is taken back."""
        for track in self.extra_model_outputs.values():
            del track.items[self.rewards.total :]  # type: ignore[union-attr]
        return self._extra_mismatch(given)

    def _extra_mismatch(self, given: Mapping[str, Any]) -> TrackMismatch:
        known = self.extra_model_outputs
        late, missing = [k for k in given if k not in known], [k for k in known if k not in given]
        what = f"{late} would start late" if late else f"{missing} would stop early"
        return TrackMismatch(
            f"episode {self.id_}: extra model outputs: {what}, at step {len(self)}; every step so far has "
            f"{list(known)}, and so must this one"
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
            self._grow = None
            self._stop_clock()
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
        num_steps = len(self.rewards)
        start, stop = indexing.chunk_bounds(slice_, num_steps)
        wanted = self.lookback if len_lookback_buffer is None else _checked_lookback(len_lookback_buffer)
        first, last = self.lookback + start, self.lookback + stop
        lookback = min(wanted, first)
        first -= lookback
        ends = stop == num_steps
        infos = self.infos
        return self._derived(
            observations=self.observations.view(first, last + 1, lookback),
            actions=self.actions.view(first, last, lookback),
            rewards=self.rewards.view(first, last, lookback),
            infos=infos.view(first, last + 1) if isinstance(infos, Infos) else infos[first : last + 1],
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
        successor = self._derived(
            observations=ListTrack(self.observations.item_list(total - lookback, total + 1), lookback),
            actions=carried(self.actions),
            rewards=carried(self.rewards),
            infos=list(self.infos[total - lookback : total + 1]),
            extra_model_outputs={key: carried(track) for key, track in self.extra_model_outputs.items()},
            lookback=lookback,
            t_started=self.t,
        )
        successor._item_shape = self._item_shape
        self._stop_clock()
        successor._began = perf_counter()
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
        extra = self._joined_extra(theirs[3], len(other))
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
        self._grow = None
        self.custom_data.update(other.custom_data)
        self._duration, self._began = self.get_duration_s() + other.get_duration_s(), None

    def _check_follows(self, other: SingleAgentEpisode) -> None:
        if self.is_done or not self.is_reset:
            raise self._refusal("concat_episode")
        if other.id_ != self.id_:
            raise ChunkMismatch(
                f"episode {self.id_}: a chunk of episode {other.id_} does not follow it; join chunks of one id"
            )
        if other.t_started != self.t:
            raise ChunkMismatch(
                f"episode {self.id_}: a chunk that begins at t={other.t_started} does not follow one that stops at "
                f"t={self.t}; join chunks in order, none left out"
            )
        if not nested.equal(self.get_observations(-1), other.get_observations(0)):
            raise ChunkMismatch(
                f"episode {self.id_}: the chunk's first observation is not the one at which this one stops (t={self.t})"
            )

    def _joined_extra(self, theirs: Mapping[str, Track], num_steps: int) -> dict[str, tuple[Track, Track]]:
        """The pairs of tracks to join, by key."""
        mine = self.extra_model_outputs
        if not self.rewards.total:
            blank = ArrayTrack(np.zeros(0)) if self.is_numpy else None
            return {key: (blank or ListTrack([], 0), track) for key, track in theirs.items()}
        if mine.keys() != theirs.keys() and num_steps:
            raise TrackMismatch(
                f"episode {self.id_}: extra model outputs {list(theirs)} of the chunk from t={self.t} beside "
                f"{list(mine)} before it; all chunks of an episode have the same keys"
            )
        return {key: (track, theirs.get(key, track.view(0, 0))) for key, track in mine.items()}


def _array_track(data: Any) -> ArrayTrack:
    return ArrayTrack.of(nested.map_leaves(np.asarray, data))


def _checked_lookback(length: Any) -> int:
    if not isinstance(length, (int, np.integer)) or length < 0:
        raise InvalidArgument(f"len_lookback_buffer={length!r}: give the number of items, 0 or more")
    return int(length)

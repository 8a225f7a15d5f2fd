"""`SingleAgentEpisode`: T actions and rewards, T + 1 observations, read through getters.

An episode is two things: its `tracks` (what happened, step by step) and its `facts` (whose it is, where it begins, how
it stops). Neither ever changes: growing appends to the lists of growing tracks, all else puts another in its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from gymnasium import spaces

from episodes.columns import check_extra_output_names
from episodes.errors import ChunkMismatch, EpisodeStateError, ShapeMismatch, TrackMismatch, WrongType
from episodes.facts.ending import Ending
from episodes.facts.facts import EpisodeFacts, HasEnding, new_id, own_data
from episodes.facts.policy_versions import VersionRuns
from episodes.facts.short_id import short_id
from episodes.single_agent.attributes import fact_of, record_of, track_of
from episodes.single_agent.getters import TrackGetters
from episodes.single_agent.state import parts_of, state_of
from episodes.tracks import Track, Tracks, action_units, indexing, nested, track_access
from episodes.tracks.casting import check_reward
from episodes.tracks.indexing import checked_lookback
from episodes.tracks.infos.dicts import infos_of
from episodes.tracks.infos.infos import EmptyInfos, same_info
from episodes.tracks.notebook_repr import notebook_repr
from episodes.tracks.spaces import as_item, as_items, is_nested

_blank: Any = object.__new__


class SingleAgentEpisode(TrackGetters, HasEnding):
    """One chunk of one agent's episode in one environment.

    All given data becomes lookback with `len_lookback_buffer="auto"`, as in RLlib: the episode then starts at the
    last observation. `from_arrays` makes a finished episode of arrays, without a lookback.

    Args:
        observations: a list of L + T + 1 items; likewise `infos`. Nested items (dicts, tuples) are welcome.
        actions: a list of L + T items; likewise `rewards` and each of `extra_model_outputs`.
        t_started: the environment step of this chunk's first observation; 0 when nothing is said.
        len_lookback_buffer: L, how many of the given items lie before step 0.

    Raises:
        TrackMismatch: the lengths do not go together.
        InvalidArgument: a lookback that is no number, 0 or more.

    >>> episode = SingleAgentEpisode()
    >>> episode.add_env_reset(np.zeros(4))
    >>> episode.add_env_step(np.ones(4), 1, 0.5, terminated=True)
    >>> len(episode), episode.get_return(), episode.get_observations(-1).tolist()
    (1, 0.5, [1.0, 1.0, 1.0, 1.0])
    """

    __slots__ = (
        "__weakref__",
        "_acted",
        "_began",
        "_duration",
        "_facts",
        "_is_cut",
        "_shape",
        "_tracks",
        "custom_data",
        "growth",
    )

    id_: Any = fact_of("id_")
    t_started: int = fact_of("t_started")
    ending: Ending = fact_of("ending")
    agent_id: Any = fact_of("agent_id")
    module_id: Any = fact_of("module_id")
    multi_agent_episode_id: Any = fact_of("multi_agent_episode_id")
    observation_space: spaces.Space | None = fact_of("observation_space")
    action_space: spaces.Space | None = fact_of("action_space")
    custom_data: dict[str, Any]
    facts = record_of("_facts", "Whose it is, where it begins and how it stops.")
    tracks = record_of("_tracks", "What happened, step by step.")
    observations: Track = track_of("observations")  # L + T + 1 items
    actions: Track = track_of("actions")  # L + T items
    rewards: Track = track_of("rewards")  # L + T items
    _repr_html_ = notebook_repr("episodes.inspect.html", "single_agent_episode")

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
        lookback = num_given if len_lookback_buffer == "auto" else min(checked_lookback(len_lookback_buffer), num_given)
        observed = () if observations is None else as_items(observations, observation_space)
        told = infos if infos is not None else [{} for _ in observed] if len(observed) else ()
        acted = () if actions is None else as_items(actions, action_space)
        paid = () if rewards is None else rewards
        whose = (new_id() if id_ is None else id_, t_started or 0, Ending.of(terminated, truncated))
        ids = (agent_id, module_id, multi_agent_episode_id)
        self._facts = EpisodeFacts.of_all((*whose, *ids, None, observation_space, action_space))
        check_extra_output_names(extra_model_outputs or (), f"episode {whose[0]}")
        self._tracks = Tracks.growing(observed, told, acted, paid, extra_model_outputs, lookback)
        self.custom_data = {}
        self.growth: Any = (
            None  # the lists that a step goes to while it grows; None after any change of facts or tracks
        )
        self._shape: Any = None  # of the observations added; a stored one may have been rewritten
        self._acted: Any = None  # the type of the newest action that was checked, or the shape of an array
        self._is_cut: bool | None = None  # True once a successor grows in its place
        self._began: float | None = None  # when this object began to grow
        self._duration = 0.0  # seconds that it grew before
        if len(observed) or num_given or actions is not None or extra_model_outputs:
            self.validate()
            self._shape = track_access.shape_of(self._tracks.observations.get(-1))

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
        policy_versions: Any = None,
        observation_space: spaces.Space | None = None,
        action_space: spaces.Space | None = None,
        custom_data: Mapping[str, Any] | None = None,
    ) -> Self:
        """A finished episode of the arrays, which it views and does not copy; it has no lookback.

        Args:
            observations: nested arrays [T + 1, ...]; likewise T + 1 `infos`.
            actions: nested arrays [T, ...]; likewise `rewards` [T] and each of `extra_model_outputs`.
            policy_versions: of the policy that acted, the number of one, or [T], one for each step (-1: unknown).

        Raises:
            TrackMismatch: the lengths do not go together.

        >>> SingleAgentEpisode.from_arrays(np.zeros((3, 2)), [0, 1], [1.0, 1.0], terminated=True, id_="a")
        SingleAgentEpisode(a: 2 steps, return 2, terminated)
        """
        observed, acted, paid = map(nested.as_arrays, (observations, actions, rewards))
        check_extra_output_names(extra_model_outputs or (), "from_arrays" if id_ is None else f"episode {id_}")
        outputs = {key: nested.as_arrays(values) for key, values in (extra_model_outputs or {}).items()}
        told = EmptyInfos(len(nested.first_leaf(observed))) if infos is None else infos_of(infos)
        tracks = Tracks.finished(observed, told, acted, paid, outputs)
        ending, ids = Ending.of(terminated, truncated), (agent_id, module_id, multi_agent_episode_id)
        facts = EpisodeFacts(
            new_id() if id_ is None else id_,
            t_started,
            ending,
            *ids,
            VersionRuns.of(policy_versions, len(tracks.rewards)),
            observation_space=observation_space,
            action_space=action_space,
        )
        episode = cls.of(facts, tracks, dict(custom_data or {}))
        episode.validate()
        return episode

    @classmethod
    def of(cls, facts: EpisodeFacts, tracks: Tracks, custom_data: dict[str, Any]) -> Self:
        """The episode of facts and tracks that are known to go together: nothing is checked or copied."""
        self = _blank(cls)
        self._facts = facts
        self._tracks = tracks
        self.custom_data = custom_data
        self.growth = self._shape = self._acted = self._began = self._is_cut = None
        self._duration = 0.0
        return self

    # --- what it is --------------------------------------------------------------------------------------------

    @property
    def extra_model_outputs(self) -> Mapping[str, Track]:
        """L + T items each, by key."""
        return MappingProxyType(self._tracks.extra)

    @extra_model_outputs.setter
    def extra_model_outputs(self, tracks: Mapping[str, Track]) -> None:
        check_extra_output_names(tracks, f"episode {self.id_}")
        self.tracks = self._tracks.with_extra(dict(tracks))

    def __len__(self) -> int:
        return len(self._tracks.rewards)

    @property
    def t(self) -> int:
        """The environment step at which this chunk stops: `t_started + len(self)`."""
        return self._facts.t_started + len(self)

    @property
    def is_reset(self) -> bool:
        """True once there is a first observation."""
        return len(self._tracks.observations) > 0

    @property
    def is_numpy(self) -> bool:
        """True once finalized by `to_numpy`."""
        return self._tracks.is_finished

    is_finalized = is_numpy

    def get_duration_s(self) -> float:
        """The seconds that it grew: from the reset to the end, the cut or `to_numpy`; until now while it grows."""
        return self._duration + (0.0 if self._began is None else perf_counter() - self._began)

    def _stop_clock(self) -> None:
        self._duration, self._began = self.get_duration_s(), None

    def validate(self) -> None:
        """Raise `TrackMismatch` unless all tracks have L + T items, observations and infos one more."""
        self._tracks.check(f"episode {self.id_}")

    # --- growing -----------------------------------------------------------------------------------------------

    def add_env_reset(self, observation: Any, infos: dict[str, Any] | None = None) -> None:
        """Begin with the reset observation. `EpisodeStateError` when the episode was reset already."""
        tracks: Any = self._tracks
        if tracks.is_finished or len(tracks.observations) or self._facts.ending.is_done:
            raise EpisodeStateError(
                f"episode {self.id_}: add_env_reset after a reset; make a new episode for a new reset"
            )
        if type(observation) is not np.ndarray:
            observation = as_item(observation, self._facts.observation_space)
        if infos is not None and type(infos) is not dict:
            self._check_mapping("infos", infos)
        self._shape = track_access.shape_of(observation, self._newest)
        tracks.observations.items.append(observation)
        tracks.observations.uniform = True
        tracks.infos.items.append({} if infos is None else infos)
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
        policy_version: int | None = None,
    ) -> None:
        """Add one step: the action taken, and the reward and observation that it led to. O(1), nothing is copied.

        Args:
            policy_version: version of the policy that acted, 0 or more. If None, that of the previous step of this
                chunk; the first step of a chunk then has no version (-1), also after `cut`.

        Raises (each leaves the episode as it was):
            EpisodeStateError: before the reset, after the end, or once finalized.
            ShapeMismatch: an observation, action or extra model output of another shape; a reward of several numbers.
            WrongType: a reward that is no real number; a flag that is none, such as "False".
            TrackMismatch: an extra model output that starts late or stops early.
            InvalidArgument: a policy version that is no number, 0 or more.
        """
        if terminated is not False or truncated is not False or policy_version is not None:
            facts = self._facts.ended(Ending.of(terminated, truncated))
            if policy_version is not None:
                facts = facts.with_version(policy_version, len(self))
            duration = self.get_duration_s()
            SingleAgentEpisode.add_env_step(
                self, observation, action, reward, infos, extra_model_outputs=extra_model_outputs
            )
            self._facts = facts
            if facts.ending.is_done:
                self.growth, self._duration, self._began = None, duration, None
            return
        if infos is not None and type(infos) is not dict:
            self._check_mapping("infos", infos)
        if extra_model_outputs is not None and type(extra_model_outputs) is not dict:
            self._check_mapping("extra_model_outputs", extra_model_outputs)
        growth = self.growth or self.growing("add_env_step")
        observed, acted, paid, told, extra = growth
        try:
            if observation.shape != self._shape:
                observation = self._checked_observation(observation)
        except AttributeError:
            observation = self._checked_observation(observation)
        if type(action) is not self._acted and (type(action) is not np.ndarray or action.shape != self._acted):
            self._acted = track_access.checked_action_shape(
                action, self._tracks.actions, self._facts.action_space, self._newest
            )
        if type(reward) is not float:
            check_reward(reward, self._newest)
        try:
            if extra_model_outputs:
                if len(extra_model_outputs) != len(extra):
                    extra = self.create_extra_tracks(extra_model_outputs)
                for key, items in extra:
                    items.append(extra_model_outputs[key])
            elif extra:
                raise self._extra_mismatch({})
            observed.append(observation)
            acted.append(action)
            paid.append(reward)
            told.append({} if infos is None else infos)
        except (KeyError, ShapeMismatch) as error:
            self._drop_incomplete_step(growth)
            raise self._extra_outputs_error(extra_model_outputs or {}, error) from None
        except BaseException:
            self._drop_incomplete_step(growth)
            raise

    def end(self, ending: Ending) -> None:
        """End the episode at its newest step; it grows no more."""
        self._facts, self.growth = self._facts.ended(ending), None
        self._stop_clock()

    def _drop_incomplete_step(self, growth: tuple[Any, ...]) -> None:
        """Remove the items of a rejected step, and the extra model outputs that began with it."""
        tracks = self._tracks
        tracks.drop_after(tracks.infos.total)
        if self.growth is not growth and not tracks.rewards.total:
            self.tracks = tracks.with_extra({})

    def growing(self, call: str) -> tuple[Any, ...]:
        """`Tracks.growth`, kept in `growth` until facts or tracks change; `EpisodeStateError` unless it grows."""
        tracks, facts = self._tracks, self._facts
        if facts.ending.is_done or tracks.is_finished or not len(tracks.observations) or self._is_cut:
            raise self._refusal(call)
        self.growth = tracks.growing_lists()
        if is_nested(facts.action_space):
            self.growth = track_access.with_nested_actions(self.growth, facts.action_space)
        return self.growth

    def _check_mapping(self, name: str, value: Any) -> None:
        if not isinstance(value, Mapping):
            raise WrongType(f"{self._newest()}: {name}={value!r}; give a dict, or None")

    def _checked_observation(self, observation: Any) -> Any:
        """The observation, of the shape of those before it, with tuples where its space has them."""
        if self._shape is None:
            self._shape = track_access.shape_of(self.observations.get(-1))
        return track_access.checked_observation(observation, self._shape, self._facts.observation_space, self._newest)

    def _newest(self) -> str:
        """Where something new belongs, for errors."""
        return f"episode {self.id_}: {f'step {len(self)}' if self.is_reset else 'the reset'}"

    def create_extra_tracks(self, given: Mapping[str, Any]) -> tuple[Any, ...]:
        """The (key, items) pairs of extra model outputs that come with the first step."""
        if self._tracks.extra or self._tracks.rewards.total:
            raise self._extra_mismatch(given)
        known = self.growth or self.growing("add_env_step")
        tracks, pairs = track_access.growing_extra(given)
        observed, acted, paid, told, _ = known
        self._tracks, self.growth = self._tracks.with_extra(tracks), (observed, acted, paid, told, pairs)
        return pairs

    def _extra_outputs_error(self, given: Mapping[str, Any], error: Exception) -> Exception:
        """The error for a key that is not given or of another shape."""
        is_odd = type(error) is ShapeMismatch
        return ShapeMismatch(f"{self._newest()}: {error}") if is_odd else self._extra_mismatch(given)

    def _extra_mismatch(self, given: Mapping[str, Any]) -> TrackMismatch:
        known = self._tracks.extra
        late, missing = [k for k in given if k not in known], [k for k in known if k not in given]
        what = f"{late} would start late" if late else f"{missing} would stop early"
        return TrackMismatch(
            f"episode {self.id_}: extra model outputs: {what}, at step {len(self)}; every step so far has "
            f"{list(known)}, and so must this one"
        )

    # --- finalizing, cutting, slicing, joining -----------------------------------------------------------------

    def with_env_actions(self) -> Self:
        """Return an episode that stores the actions sent to the environment, with the environment's action space.

        Outputs that describe the policy's own actions are left out: "action_logp", "action_prob",
        "action_dist_inputs". The episode itself is returned if it stores the environment's actions already.

        Raises:
            EpisodeStateError: a connector computed the environment's actions, and they were not recorded.
        """
        return self._with_actions(*action_units.with_env_actions(self._tracks, self._facts.action_space))

    def with_policy_actions(self, mapping: str = "normalize") -> Self:
        """Return an episode that stores the actions which a policy with this mapping would have put out.

        Learning from the environment's actions, of imported data for example, needs this if the policy acts in other
        units than the environment, as all policies do behind `module_to_env_pipeline(normalize_actions=True)`.

        Args:
            mapping: "normalize" for a policy that acts in [-1, 1], "clip" or "none" for one that acts in the
                environment's units (see `PolicyBox`).

        Raises:
            InvalidArgument: there is no action space, or another mapping.
        """
        return self._with_actions(*action_units.with_policy_actions(self._tracks, self._facts.action_space, mapping))

    def _with_actions(self, tracks: Tracks, action_space: Any) -> Self:
        if action_space is self._facts.action_space:
            return self
        return self.of(self._facts._replace(action_space=action_space), tracks, own_data(self.custom_data))

    def to_numpy(self) -> Self:
        """Finalize in place: each track becomes one read-only array (nested where its items are); returns itself.

        A track takes its space's dtype when it has one, else numpy's promotion over all items. Idempotent.

        Raises:
            ShapeMismatch: names the first item that differs.
            EpisodeStateError: before the reset.
        """
        if not self._tracks.is_finished:
            self.finish(self.finalized_tracks())
        return self

    finalize = to_numpy

    def finish(self, tracks: Tracks) -> None:
        """Put its `finalized_tracks` in the place of those that grow; it grows no more."""
        duration = self.get_duration_s()
        self._tracks, self.growth, self._duration, self._began = tracks, None, duration, None

    def finalized_tracks(self) -> Tracks:
        """Its tracks as `to_numpy` makes them; the episode stays as it is."""
        tracks, facts = self._tracks, self._facts
        if tracks.is_finished:
            return tracks
        if not tracks.observations.total:
            raise EpisodeStateError(
                f"episode {self.id_}: it has no observation yet; call add_env_reset(observation) first"
            )
        try:
            return tracks.finalized(facts.observation_space, facts.action_space, f"episode {facts.id_}")
        except (ShapeMismatch, TrackMismatch):
            track_access.check_regular(tracks.observations, facts.observation_space)
            track_access.check_regular(tracks.actions, facts.action_space)
            raise

    def __getitem__(self, slice_: slice) -> Self:
        """The sub-episode of the steps `[a:b]`; as `slice`."""
        return self.slice(slice_)

    def slice(self, slice_: slice, *, len_lookback_buffer: int | None = None) -> Self:
        """The sub-episode of the steps of a slice, clipped as Python clips; views, not copies, once finalized.

        Ids, spaces, `custom_data` (a copy) and infos stay, and so does the ending when the slice reaches the last step.

        Args:
            len_lookback_buffer: how many items before the slice to keep, as far as they are there; this episode's
                own lookback when None.
        """
        rewards = self._tracks.rewards
        num_steps, own = len(rewards), rewards.lookback
        start, stop = indexing.chunk_bounds(slice_, num_steps)
        wanted = own if len_lookback_buffer is None else checked_lookback(len_lookback_buffer)
        return self.window(start, stop, min(wanted, own + start), stop == num_steps)

    def window(self, start: int, stop: int, lookback: int, reaches_end: bool) -> Self:
        """The part of the steps [start, stop), all of which must be there, with so much lookback; views once finalized.

        Args:
            reaches_end: True when the part stops where the chunk does, and so has its ending.
        """
        facts, tracks, own = self._facts, self._tracks, self._tracks.rewards.lookback
        part = self.of(
            facts.window(facts.t_started + start, stop - start, reaches_end),
            tracks.window(own + start - lookback, own + stop, lookback),
            own_data(self.custom_data) if self.custom_data else {},
        )
        part._shape = self._shape
        return part

    def cut(self, len_lookback_buffer: int = 0) -> Self:
        """The successor chunk, which grows on where this one stops; this one grows no more once it was reset.

        It has the same ids, `t_started = self.t`, this chunk's last observation as its first, and the last
        `len_lookback_buffer` steps (as far as they are there) as its lookback; its `custom_data` is a copy. Before the
        reset, the successor is one that is not reset either.

        Raises:
            EpisodeStateError: there is nothing to go on with: the episode has ended.
        """
        if self.is_done:
            raise self._refusal("cut")
        num_steps = len(self)
        lookback = min(checked_lookback(len_lookback_buffer), self.lookback + num_steps)
        successor = self.window(num_steps, num_steps, lookback, False)
        successor._tracks = successor._tracks.as_growing()
        if self.is_reset:
            successor._began, duration = perf_counter(), self.get_duration_s()
            self._is_cut, self.growth, self._duration, self._began = True, None, duration, None
        return successor

    def as_growing(self) -> Self:
        """An episode of the same items that can grow; a finalized one's arrays are viewed item by item."""
        episode = self.of(self._facts, self._tracks.as_growing(), own_data(self.custom_data))
        episode._shape = self._shape
        return episode

    def concat_episode(self, other: SingleAgentEpisode) -> None:
        """Append the chunk that follows this one, in place: the inverse of `cut`. The other's lookback is dropped.

        Raises (each leaves the episode as it was):
            ChunkMismatch: `other` has another id, or does not begin where this one stops, with its last observation.
            EpisodeStateError: this one has ended.
            TrackMismatch: an extra model output that only one of them has.
            ShapeMismatch: this one is finalized, and items of the other have another shape.
        """
        self.check_follows(other)
        self.extend(other, self.joined_tracks(other) if self.is_numpy else None)

    def joined_tracks(self, other: SingleAgentEpisode) -> Tracks:
        """Return the tracks of this finalized episode followed by those of `other`, which passed `check_follows`."""
        return self._tracks.joined(other.finalized_tracks())

    def extend(self, other: SingleAgentEpisode, tracks: Tracks | None = None) -> None:
        """Append a chunk that passed `check_follows`. This does not fail.

        Args:
            tracks: `joined_tracks(other)` if this episode is finalized.
        """
        self.tracks = self._tracks.joined(other._tracks) if tracks is None else tracks
        self.facts = self._facts.followed_by(other._facts)
        self._shape = self._shape or other._shape
        self.custom_data.update(other.custom_data)
        self._duration, self._began = self.get_duration_s() + other.get_duration_s(), None
        self._is_cut = other._is_cut

    def check_follows(self, other: SingleAgentEpisode) -> None:
        """Raise what `concat_episode` raises unless the other chunk follows this one."""
        if self.is_done or not self.is_reset:
            raise self._refusal("concat_episode")
        if not isinstance(other, SingleAgentEpisode):
            raise WrongType(f"episode {self.id_}: concat_episode takes an episode, not a {type(other).__name__}")
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
        self._tracks.check_follows(other._tracks, f"episode {self.id_}", self.t)

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
        if self._is_cut:
            return EpisodeStateError(f"episode {self.id_}: {call} after cut(); go on with the successor that it gave")
        return EpisodeStateError(f"episode {self.id_}: {call} before the reset; call add_env_reset(observation) first")

    # --- state -------------------------------------------------------------------------------------------------

    def __reduce__(self) -> Any:
        """What pickles and copies need, and nothing of what is cached."""
        rest = (self.custom_data, self._shape, self.get_duration_s(), self._is_cut)
        return _restored, (type(self), self._facts, self._tracks, *rest)

    def get_state(self) -> dict[str, Any]:
        """The whole episode as a dict of plain values and arrays; it shares no memory with the episode."""
        state = state_of(self._facts, self._tracks, self.custom_data)
        return state | {"duration_s": self.get_duration_s(), "is_cut": bool(self._is_cut)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """The episode of a `get_state`; it shares no memory with the state."""
        episode = cls.of(*parts_of(state))
        episode._duration, episode._is_cut = state["duration_s"], state.get("is_cut")
        return episode

    def equals(self, other: object) -> bool:
        """True when both are the same chunk of the same episode: ids, tracks, lookback, infos, ending, custom data."""
        return (
            isinstance(other, SingleAgentEpisode)
            and self.is_numpy == other.is_numpy
            and self._facts == other._facts
            and self._tracks == other._tracks
            and same_info(self.custom_data, other.custom_data)
        )

    def __repr__(self) -> str:
        begin = f" from t={self.t_started}" if self.t_started else ""
        ending = "cut" if self._is_cut else "ongoing"
        ending = "terminated" if self.is_terminated else "truncated" if self.is_truncated else ending
        agent = "" if self.agent_id is None else f", agent {self.agent_id}"
        steps = "1 step" if len(self) == 1 else f"{len(self)} steps"
        return (
            f"SingleAgentEpisode({short_id(self.id_)}: {steps}{begin}{agent}, return {self.get_return():g}, {ending})"
        )


def _restored(
    cls: Any, facts: Any, tracks: Any, custom_data: Any, shape: Any, duration: float, is_cut: Any = None
) -> SingleAgentEpisode:
    episode = cls.of(facts, tracks, custom_data)
    episode._shape, episode._duration, episode._is_cut = shape, duration, is_cut
    return episode

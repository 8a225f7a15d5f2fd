"""`SingleAgentEpisode`: T + 1 observations, T actions and T rewards of one agent, growing or finished.

An episode has `tracks` (the time series) and `facts` (the metadata). Both records are immutable: growing appends to the
lists of growing tracks, and every other change replaces a record.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, SupportsFloat

import numpy as np
from gymnasium import spaces

from episodes.columns import check_extra_output_names
from episodes.errors import ChunkMismatch, EpisodeStateError, ShapeMismatch, TrackMismatch, WrongType, rejected_type
from episodes.facts.chunk_order import key_of
from episodes.facts.ending import Ending
from episodes.facts.facts import EpisodeFacts, HasEnding, checked_start, new_id, own_data
from episodes.facts.policy_versions import VersionRuns
from episodes.facts.short_id import short_id
from episodes.format_versions import PickleVersion, check_mark
from episodes.single_agent.attributes import FixedData, fact_of, record_of, track_of
from episodes.single_agent.duration import HasDuration
from episodes.single_agent.getters import TrackGetters
from episodes.single_agent.overlap import first_difference
from episodes.single_agent.state import parts_of, state_of
from episodes.tracks import Track, Tracks, action_units, indexing, nested, track_access
from episodes.tracks.casting import checked_reward
from episodes.tracks.copies import IMMUTABLE, copied
from episodes.tracks.fitting import check_fits
from episodes.tracks.indexing import checked_lookback
from episodes.tracks.infos.dicts import infos_of
from episodes.tracks.infos.infos import Infos, same_info
from episodes.tracks.levels import DEEPEST, check_levels
from episodes.tracks.notebook_repr import notebook_repr
from episodes.tracks.ragged_items import as_ragged_item, declared_kinds
from episodes.tracks.space_kinds import is_nested
from episodes.tracks.spaces import as_item, as_items
from episodes.tracks.validation import reading_state

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from episodes.data_types import AgentID, Item, Items, Space

_ARRAY: Any = np.ndarray
_blank: Any = object.__new__  # takes half the time of calling the class
_RAGGED = "ragged"  # instead of the shape of ragged observations, so that no observation has it


class SingleAgentEpisode(TrackGetters, HasDuration, HasEnding):
    """Episode of one agent, or a contiguous part (chunk) of an episode: T + 1 observations, T actions and T rewards.

    The chunk may grow from an empty one, step by step, or be created from lists. With `len_lookback_buffer="auto"` all
    given data becomes lookback, as in RLlib: step 0 is then the last observation. Use `from_arrays` to create a
    finished episode from arrays.

    Args:
        id_: id of the episode, by default a random one. All chunks of an episode have the same id.
        observations: L + T + 1 items, which may be nested (dicts and tuples).
        observation_space: space of the observations. It determines dtypes, and tuples for lists.
        infos: L + T + 1 dicts, by default empty ones.
        actions: L + T items, which may be nested.
        action_space: space of the actions.
        rewards: L + T numbers.
        terminated: True if the episode ended in a terminal state at the last step.
        truncated: True if the episode was ended from outside at the last step, for example by a time limit.
        extra_model_outputs: L + T items for each key, for example log-probabilities under "action_logp".
        t_started: env step of step 0, by default 0.
        len_lookback_buffer: L, the number of given steps before step 0, or "auto" for all.
        agent_id: id of the agent in a multi-agent episode.
        module_id: id of the module that acts for the agent.
        multi_agent_episode_id: id of the multi-agent episode that this agent belongs to.
        ragged: dtype or `RaggedKind` of each track whose items are arrays of different lengths, such as the tokens of a
            turn, by "observations", "actions" and keys of extra model outputs. If the actions are ragged, a ragged
            output has one value for each value of the action. For nested items, a dict with the dtypes of the ragged
            parts: `ragged={"observations": {"tokens": "i4"}}`.

    Raises:
        TrackMismatch: the lengths do not fit each other, or an extra model output has the name of a reserved column.
        InvalidArgument: the lookback is not an int of at least 0.
        WrongType: `ragged` is not a dict of dtypes.

    >>> episode = SingleAgentEpisode()
    >>> episode.add_env_reset(np.zeros(4))
    >>> episode.add_env_step(np.ones(4), 1, 0.5, terminated=True)
    >>> len(episode), episode.get_return(), episode.get_observations(-1).tolist()
    (1, 0.5, [1.0, 1.0, 1.0, 1.0])
    """

    __slots__ = (
        "__weakref__",
        "_action_kind",
        "_began",
        "_custom_data",
        "_duration",
        "_encoded",
        "_facts",
        "_is_cut",
        "_shape",
        "_tracks",
        "growth",
        "is_of_pack",
    )

    id_: Any = fact_of("id_", "Id of the episode, the same for all its chunks.")
    t_started: int = fact_of("t_started", "Env step of the chunk's first observation.", checked_start)
    ending: Ending = fact_of("ending", "How the chunk stops: an `Ending`.")
    agent_id: Any = fact_of("agent_id", "Id of the agent in a multi-agent episode, or None.")
    module_id: Any = fact_of("module_id", "Id of the module that acts for the agent, or None.")
    multi_agent_episode_id: Any = fact_of("multi_agent_episode_id", "Id of the multi-agent episode, or None.")
    acting_pipeline: str | None = fact_of(
        "acting_pipeline", "Rewriters and views with which the policy acted, as JSON text, or None if unknown."
    )
    observation_space: spaces.Space | None = fact_of("observation_space", "Space of the observations, or None.")
    action_space: spaces.Space | None = fact_of("action_space", "Space of the actions, or None.")
    custom_data: Any = record_of("_custom_data", "The user's own values: a dict.")
    facts = record_of("_facts", "Immutable metadata: ids, start time, ending, policy versions and spaces.")
    tracks = record_of("_tracks", "Immutable record of the time series.")
    observations: Track = track_of("observations", "Track of L + T + 1 observations.")
    actions: Track = track_of("actions", "Track of L + T actions.")
    rewards: Track = track_of("rewards", "Track of L + T rewards.")
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
        agent_id: AgentID | None = None,
        module_id: Hashable = None,
        multi_agent_episode_id: str | None = None,
        ragged: Mapping[str, Any] | None = None,
    ) -> None:
        num_given = len(rewards) if rewards is not None else 0
        lookback = num_given if len_lookback_buffer == "auto" else min(checked_lookback(len_lookback_buffer), num_given)
        all_observations: Any = () if observations is None else as_items(observations, observation_space)
        all_actions: Any = () if actions is None else as_items(actions, action_space)
        all_rewards = () if rewards is None else rewards
        infos = [{} for _ in all_observations] if infos is None else infos
        id_ = new_id() if id_ is None else id_
        check_extra_output_names(extra_model_outputs or (), f"episode {id_}")
        ending, ids = Ending.of(terminated, truncated), (agent_id, module_id, multi_agent_episode_id)
        start = 0 if t_started is None else checked_start("t_started", t_started, num_given - lookback)
        self._facts = EpisodeFacts(
            id_, start, ending, *ids, observation_space=observation_space, action_space=action_space
        )
        kinds = None if ragged is None else declared_kinds(ragged, f"episode {id_}")
        self._tracks = Tracks.growing(
            all_observations, infos, all_actions, all_rewards, extra_model_outputs, lookback, kinds
        )
        self._custom_data: dict[str, Any] = {}
        self.is_of_pack: Any = None  # True if this is a view of a pack, which no setter changes
        self.growth: Any = None  # `Tracks.growing_lists` of a growing episode; None after a change of facts or tracks
        self._shape: Any = None  # shape of added observations; a setter may store observations of another shape
        self._encoded: Any = None  # dtype of added observations that are stored as bytes, see `ListTrack.encode`
        self._action_kind: Any = None  # result of `checked_action_shape` for the newest action
        self._is_cut: bool | None = None  # True after `cut`
        self._began, self._duration = None, 0.0
        if len(all_observations) or num_given or actions is not None or extra_model_outputs:
            self.validate()
            self._shape = self._newest_shape()

    @classmethod
    def from_arrays(
        cls,
        observations: Items,
        actions: Items,
        rewards: ArrayLike,
        *,
        infos: Sequence[dict[str, Any]] | None = None,
        terminated: bool = False,
        truncated: bool = False,
        extra_model_outputs: Mapping[str, Any] | None = None,
        id_: str | None = None,
        t_started: int = 0,
        agent_id: AgentID | None = None,
        module_id: Hashable = None,
        multi_agent_episode_id: str | None = None,
        policy_versions: ArrayLike | VersionRuns | None = None,
        observation_space: spaces.Space | None = None,
        action_space: spaces.Space | None = None,
        custom_data: Mapping[str, Any] | None = None,
    ) -> Self:
        """Create a finished episode from arrays, which are not copied. The episode has no lookback.

        Args:
            observations: nested arrays [T + 1, ...].
            actions: nested arrays [T, ...].
            rewards: array [T].
            infos: T + 1 dicts, by default empty ones.
            terminated: True if the episode ended in a terminal state.
            truncated: True if the episode was ended from outside.
            extra_model_outputs: nested arrays [T, ...] by key.
            id_: id of the episode, by default a random one.
            t_started: env step of the first observation.
            agent_id: id of the agent in a multi-agent episode.
            module_id: id of the module that acts for the agent.
            multi_agent_episode_id: id of the multi-agent episode that this agent belongs to.
            policy_versions: policy version of all steps, or [T], one for each step (-1: unknown).
            observation_space: space of the observations.
            action_space: space of the actions.
            custom_data: the user's own values.

        Raises:
            TrackMismatch: the lengths do not fit each other, or an extra model output has the name of a reserved
                column.

        >>> SingleAgentEpisode.from_arrays(np.zeros((3, 2)), [0, 1], [1.0, 1.0], terminated=True, id_="a")
        SingleAgentEpisode(a: 2 steps, return 2, terminated)
        """
        observations, actions, rewards = map(nested.as_arrays, (observations, actions, rewards))
        check_extra_output_names(extra_model_outputs or (), "from_arrays" if id_ is None else f"episode {id_}")
        outputs = {key: nested.as_arrays(values) for key, values in (extra_model_outputs or {}).items()}
        columns = Infos({}, len(nested.first_leaf(observations))) if infos is None else infos_of(infos)
        tracks = Tracks.finished(observations, columns, actions, rewards, outputs)
        ending, ids = Ending.of(terminated, truncated), (agent_id, module_id, multi_agent_episode_id)
        facts = EpisodeFacts(
            new_id() if id_ is None else id_,
            checked_start("t_started", t_started, len(tracks.rewards)),
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
        """Create an episode from its metadata and its time series. Nothing is checked or copied."""
        self = _blank(cls)
        self._facts = facts
        self._tracks = tracks
        self._custom_data = custom_data
        self.growth = self._shape = self._encoded = self._action_kind = self._began = self._is_cut = self.is_of_pack = (
            None
        )
        self._duration = 0.0
        return self

    @classmethod
    def of_pack(cls, facts: EpisodeFacts, tracks: Tracks, custom_data: Mapping[str, Any]) -> Self:
        """Create an episode that is a view of a pack. Its setters raise, since they would not change the pack."""
        episode = cls.of(facts, tracks, FixedData(custom_data))
        episode.is_of_pack = True
        return episode

    def with_custom_data(self, custom_data: dict[str, Any]) -> Self:
        """Make `custom_data` the custom data of this view of a recorder, which stores its changes. Return the view."""
        self._custom_data = custom_data
        return self

    # --- properties --------------------------------------------------------------------------------------------

    @property
    def extra_model_outputs(self) -> Mapping[str, Track]:
        """Extra model outputs, such as log-probabilities: a read-only mapping from key to L + T items."""
        return MappingProxyType(self._tracks.extra)

    @extra_model_outputs.setter
    def extra_model_outputs(self, tracks: Mapping[str, Track]) -> None:
        check_extra_output_names(tracks, f"episode {self.id_}")
        self.tracks = self._tracks.with_extra(dict(tracks))

    def __len__(self) -> int:
        return len(self._tracks.rewards)

    @property
    def t(self) -> int:
        """Number of env steps from the reset to the last observation: `t_started + len(self)`."""
        return self._facts.t_started + len(self)

    @property
    def is_reset(self) -> bool:
        """True if the episode has its first observation."""
        return len(self._tracks.observations) > 0

    @property
    def is_numpy(self) -> bool:
        """True if the data of the episode are arrays, as after `to_numpy`."""
        return self._tracks.is_finished

    is_finalized = is_numpy

    def validate(self) -> None:
        """Raise an error if the tracks do not fit together, or finished ones do not fit their spaces.

        Raises:
            TrackMismatch: the numbers of observations, infos, actions, rewards and outputs do not agree.
            ShapeMismatch: finished observations or actions do not have the shapes of their space.
        """
        self._tracks.check(f"episode {self.id_}")
        if self.is_numpy:
            facts = self._facts
            self._tracks.check_shapes(facts.observation_space, facts.action_space, f"episode {self.id_}")

    # --- growing -----------------------------------------------------------------------------------------------

    def add_env_reset(self, observation: Item, infos: dict[str, Any] | None = None, *, copy: bool = True) -> None:
        """Start the episode with the observation that the environment's reset returned.

        Args:
            observation: the observation, nested or not.
            infos: the environment's info, by default an empty dict.
            copy: see `add_env_step`.

        Raises:
            EpisodeStateError: the episode was reset already, has ended or is finalized.
            ShapeMismatch: the observation is ragged, or does not have the shape of the observation space.
            WrongType: the info is not a dict.
        """
        if self._tracks.observations.ragged is None and not self.is_reset:
            item = as_item(observation, self._facts.observation_space)
            check_fits(item, self._facts.observation_space, self._place, "observations")
        self.begin(observation, infos, copy=copy)

    def begin(self, observation: Item, infos: dict[str, Any] | None, *, copy: bool) -> None:
        """Start the episode as `add_env_reset` does, with an observation that need not fit the space: a multi-agent
        runner rewrites it later. `to_numpy` checks all observations.
        """
        tracks: Any = self._tracks
        if tracks.is_finished or len(tracks.observations) or self._facts.ending.is_done:
            raise EpisodeStateError(
                f"episode {self.id_}: add_env_reset after a reset; make a new episode for a new reset"
            )
        if type(observation) is not np.ndarray:
            observation = as_item(observation, self._facts.observation_space)
        if infos is not None and type(infos) is not dict:
            self._check_mapping("infos", infos)
        if type(observation) is not np.ndarray:
            check_levels(observation, what=f"{self._place()}: the observation")
        kind = tracks.observations.ragged
        if kind is None:
            self._shape = track_access.shape_of(observation, self._place)
        else:
            observation = as_ragged_item(observation, kind, lambda: f"{self._place()}: the observation")
            self._shape = _RAGGED
        if copy is not False:
            observation, infos = copied(observation), copied(infos)
        tracks.observations.items.append(observation)
        tracks.observations.uniform = True
        tracks.infos.items.append({} if infos is None else infos)
        self._began = perf_counter()

    def add_env_step(
        self,
        observation: Any,
        action: Any,
        reward: SupportsFloat,
        infos: dict[str, Any] | None = None,
        *,
        terminated: bool = False,
        truncated: bool = False,
        extra_model_outputs: Mapping[str, Any] | None = None,
        policy_version: int | None = None,
        copy: bool = True,
    ) -> None:
        """Add one step: the action taken, and the reward and observation that the environment returned.

        All arguments are checked before anything is stored. The episode stores copies, because environments and
        policies may reuse their arrays.

        Args:
            observation: the observation after the action.
            action: the action that was taken on the previous observation.
            reward: one real number.
            infos: the environment's info, by default an empty dict.
            terminated: True if the episode ended in a terminal state.
            truncated: True if the episode was ended from outside.
            extra_model_outputs: items by key. Every step needs the same keys.
            policy_version: version of the policy that acted, 0 or more. If None, that of the previous step of this
                chunk; the first step of a chunk then has no version (-1), also after `cut`.
            copy: False to store the given arrays, dicts and lists themselves. The caller must never change them.

        Raises:
            EpisodeStateError: before the reset, after the end, after `cut`, or on a finalized episode.
            ShapeMismatch: an observation, action or extra model output has another shape, or the reward is an array.
            WrongType: the reward is not a real number, a flag is not a bool, or the info is not a dict.
            TrackMismatch: the keys of the extra model outputs differ from those of earlier steps.
            InvalidArgument: the policy version is not an int of at least 0.
        """
        if terminated is not False or truncated is not False or policy_version is not None:
            facts = self._facts.ended(Ending.of(terminated, truncated))
            if policy_version is not None:
                facts = facts.with_version(policy_version, len(self))
            SingleAgentEpisode.add_env_step(
                self, observation, action, reward, infos, extra_model_outputs=extra_model_outputs, copy=copy
            )
            self._facts = facts
            if facts.ending.is_done:
                self.growth = None
                self._stop_clock()
            return
        if infos is not None and type(infos) is not dict:
            self._check_mapping("infos", infos)
        growth = self.growth or self._start_growing()
        observations, actions, rewards, all_infos, outputs = growth
        try:
            if observation.shape != self._shape:
                observation = self._checked_observation(observation)
        except AttributeError:
            observation = self._checked_observation(observation)
        if type(action) is not self._action_kind:
            if type(action) is not _ARRAY or action.shape != self._action_kind:
                self._action_kind = track_access.checked_action_shape(
                    action, self._tracks.actions, self._facts.action_space, self._place
                )
            if copy is not False:
                action = copied(action)
        if type(reward) is not float:
            reward = checked_reward(reward, self._place)
        if copy is not False:
            if type(observation) is _ARRAY and observation.dtype is self._encoded:
                observation = observation.tobytes()
            else:
                if self._encoded is not None:
                    self._check_kind(observation)
                observation = copied(observation)
            infos = copied(infos) if infos else {}
        elif infos is None:
            infos = {}
        try:
            if extra_model_outputs:
                if len(extra_model_outputs) != len(outputs):
                    outputs = self.create_extra_tracks(extra_model_outputs)
                for key, items in outputs:
                    item = extra_model_outputs[key]
                    items.append(item if type(item) in IMMUTABLE or copy is False else copied(item))
            elif outputs:
                raise self._extra_mismatch({})
            observations.append(observation)
            actions.append(action)
            rewards.append(reward)
            all_infos.append(infos)
        except BaseException as error:
            self._drop_incomplete_step(growth)
            if extra_model_outputs is not None:
                self._check_mapping("extra_model_outputs", extra_model_outputs)
            if isinstance(error, KeyError):
                raise self._extra_mismatch(extra_model_outputs or {}) from None
            if isinstance(error, ShapeMismatch):
                raise ShapeMismatch(f"{self._place()}: {error}") from None
            raise

    def end(self, ending: Ending) -> None:
        """End the episode at its newest step with the given `Ending`, such as terminated or truncated."""
        self._facts, self.growth = self._facts.ended(ending), None
        self._stop_clock()

    def _drop_incomplete_step(self, growth: tuple[Any, ...]) -> None:
        """Remove the items that `add_env_step` had appended before it rejected the step."""
        tracks = self._tracks
        tracks.drop_after(tracks.infos.total)
        if self.growth is not growth and not tracks.rewards.total:
            self.tracks = tracks.with_extra(self._declared_extra())

    def _start_growing(self) -> tuple[Any, ...]:
        """Return the lists to which `add_env_step` appends, and let observations be stored as bytes if possible."""
        growth = self.growing("add_env_step")
        observations: Any = self._tracks.observations
        if self._facts.multi_agent_episode_id is None:
            self._encoded = observations.encode(self._shape)
        return growth

    def growing(self, call: str) -> tuple[Any, ...]:
        """Return the lists to which `add_env_step` appends, or raise an error if the episode has ended or holds arrays.

        Raises:
            EpisodeStateError: the episode does not grow.
        """
        tracks, facts = self._tracks, self._facts
        if facts.ending.is_done or tracks.is_finished or not len(tracks.observations) or self._is_cut:
            raise self._not_growing_error(call)
        self._encoded, self.growth = None, tracks.growing_lists()
        if is_nested(facts.action_space):
            self.growth = track_access.with_nested_actions(self.growth, facts.action_space)
        if tracks.observations.ragged or tracks.actions.ragged or (tracks.extra and tracks.ragged_kinds()):
            self.growth = track_access.with_ragged_conversion(self.growth, tracks)
        return self.growth

    def _check_mapping(self, name: str, value: object) -> None:
        if not isinstance(value, Mapping):
            raise WrongType(f"{self._place()}: {name}={value!r}; give a dict, or None")

    def _checked_observation(self, observation: Item) -> Any:
        """Check the observation's shape, and return it with lists converted to tuples if its space is a `Tuple`.

        Raises:
            ShapeMismatch: the observation has another shape than earlier ones.
        """
        self._encoded = None  # spaces such as `Sequence` allow other shapes
        if self._shape is None:
            self._shape = self._newest_shape()
        if self._shape == _RAGGED:  # not `is`: an unpickled text is another object
            return as_item(observation, self._facts.observation_space)  # checked when it is appended
        return track_access.checked_observation(observation, self._shape, self._facts.observation_space, self._place)

    def _check_kind(self, observation: Item) -> None:
        """Raise `ShapeMismatch` if the dtype of an observation fits neither the space nor earlier observations."""
        space = self._facts.observation_space
        if space is not None:
            check_fits(observation, space, self._place, "observations")
        else:
            track_access.check_kind(observation, np.empty(0, self._encoded), "observation", self._place)

    def _newest_shape(self) -> Any:
        observations = self._tracks.observations
        return _RAGGED if observations.ragged is not None else track_access.shape_of(observations.get(-1))

    def _place(self) -> str:
        """Return the prefix of error messages: the episode's id and the time of its next step."""
        return f"episode {self.id_}: {f'step {len(self)}' if self.is_reset else 'the reset'}"

    def create_extra_tracks(self, outputs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Create an empty list for each extra model output of the first step, and return pairs of key and list."""
        declared = self._declared_extra()
        if (
            len(declared) < len(self._tracks.extra)
            or self._tracks.rewards.total
            or not declared.keys() <= outputs.keys()
        ):
            raise self._extra_mismatch(outputs)
        check_levels(outputs, DEEPEST + 1, what="an extra model output")
        growth = self.growth or self.growing("add_env_step")
        tracks, pairs = track_access.new_growing_outputs(
            {key: first for key, first in outputs.items() if key not in declared}
        )
        observations, actions, rewards, infos, known_pairs = growth
        pairs = (*known_pairs, *pairs)
        self._tracks = self._tracks.with_extra({**declared, **tracks})
        self.growth = observations, actions, rewards, infos, pairs
        return pairs

    def _declared_extra(self) -> dict[str, Track]:
        """Return the extra model outputs declared as ragged (items of varying length), as a dict from key to track."""
        return {key: track for key, track in self._tracks.extra.items() if track.ragged is not None}

    def _extra_mismatch(self, outputs: Mapping[str, Any]) -> TrackMismatch:
        """Return the error for a step whose extra model outputs have other names than at earlier steps."""
        known = self._tracks.extra
        late, missing = [k for k in outputs if k not in known], [k for k in known if k not in outputs]
        problem = f"{late} would start late" if late else f"{missing} would stop early"
        return TrackMismatch(
            f"episode {self.id_}: extra model outputs: {problem}, at step {len(self)}; every step so far has "
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
        """Return an episode with actions rescaled to a policy's range, such as [-1, 1] for `mapping="normalize"`.

        Learning from the environment's actions, of imported data for example, needs this if the policy acts in other
        units than the environment, as all policies do behind `module_to_env_pipeline(normalize_actions=True)`.

        Args:
            mapping: "normalize" for a policy that acts in [-1, 1], "clip" or "none" for one that acts in the
                environment's units (see `PolicyBox`).

        Raises:
            InvalidArgument: there is no action space, or another mapping.
        """
        return self._with_actions(*action_units.with_policy_actions(self._tracks, self._facts.action_space, mapping))

    def _with_actions(self, tracks: Tracks, action_space: Space | None) -> Self:
        if action_space is self._facts.action_space:
            return self
        return self.of(self._facts._replace(action_space=action_space), tracks, own_data(self.custom_data))

    def to_numpy(self) -> Self:
        """Convert the data of the episode to read-only arrays in place, and return this episode. Idempotent.

        Each array is nested like its items, in the dtype of its space, or without a space in numpy's promotion of all
        items.

        Raises:
            ShapeMismatch: names the first item of another shape.
            EpisodeStateError: the episode was not reset.
        """
        if not self._tracks.is_finished:
            self.finish(self.finalized_tracks())
        return self

    finalize = to_numpy

    def finish(self, tracks: Tracks) -> None:
        """Replace the episode's lists by the arrays `tracks`, which come from `finalized_tracks`."""
        self.tracks = tracks
        self._stop_clock()

    def finalized_tracks(self) -> Tracks:
        """Return the observations, actions and other time series as arrays. The episode itself keeps its lists.

        Raises:
            EpisodeStateError: the episode has no observation.
        """
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
        """Return the part of the episode with the steps `[a:b]`, equal to `slice(slice(a, b))`."""
        return self.slice(slice_)

    def slice(self, slice_: slice, *, len_lookback_buffer: int | None = None) -> Self:
        """Return the part of the episode with the given steps, clipped as for a list. Finalized parts share memory.

        Ids, spaces, infos and a copy of `custom_data` stay. The ending stays if the slice includes the last step.

        Args:
            slice_: steps of this chunk.
            len_lookback_buffer: maximal number of items before the slice to keep, by default this episode's lookback.

        Raises:
            WrongType: `slice_` is not a slice.
            InvalidArgument: its step is not 1, or the lookback is negative or not an int.
        """
        rewards = self._tracks.rewards
        num_steps, own_lookback = len(rewards), rewards.lookback
        start, stop = indexing.chunk_bounds(slice_, num_steps)
        max_lookback = own_lookback if len_lookback_buffer is None else checked_lookback(len_lookback_buffer)
        return self.window(start, stop, min(max_lookback, own_lookback + start), stop == num_steps)

    def window(self, start: int, stop: int, lookback: int, reaches_end: bool) -> Self:
        """Return the part with the steps [start, stop), preceded by `lookback` steps as context. Arrays are not copied.

        Args:
            reaches_end: True if the part includes the chunk's last step, so that it keeps the ending.
        """
        facts, tracks, zero = self._facts, self._tracks, self._tracks.rewards.lookback  # `zero`: position of step 0
        part = self.of(
            facts.window(facts.t_started + start, stop - start, reaches_end),
            tracks.window(zero + start - lookback, zero + stop, lookback),
            own_data(self.custom_data) if self.custom_data else {},
        )
        part._shape = self._shape
        return part

    def cut(self, len_lookback_buffer: int = 0) -> Self:
        """End this part (chunk) of the episode at its newest step, and return the next chunk, to which steps are added.

        The next chunk has the same ids, `t_started = self.t`, this chunk's last observation as its first, and a copy of
        `custom_data`. This chunk grows no more. Before the reset, both chunks can still be reset.

        Args:
            len_lookback_buffer: maximal number of steps of this chunk that the next chunk keeps as lookback.

        Raises:
            EpisodeStateError: the episode has ended.
            InvalidArgument: the lookback is negative or not an int.
        """
        if self.is_done:
            raise self._not_growing_error("cut")
        num_steps = len(self)
        lookback = min(checked_lookback(len_lookback_buffer), self.lookback + num_steps)
        successor = self.window(num_steps, num_steps, lookback, False)
        successor._tracks = successor._tracks.as_growing()
        if self.is_reset:
            successor._began = perf_counter()
            self._is_cut, self.growth = True, None
            self._stop_clock()
        return successor

    def as_finished(self) -> Self:
        """Return this episode if it is finalized, else a copy with arrays. The copy has the same `custom_data` dict."""
        return self if self.is_numpy else self.of(self._facts, self.finalized_tracks(), self.custom_data)

    def as_growing(self) -> Self:
        """Return a copy of this episode to which steps can be added. Arrays of a finalized episode are not copied."""
        episode = self.of(self._facts, self._tracks.as_growing(), own_data(self.custom_data))
        episode._shape = self._shape
        return episode

    def concat_episode(self, other: SingleAgentEpisode) -> None:
        """Append the next part (chunk) of the same episode in place, without its lookback: the inverse of `cut`.

        A rejected call changes nothing.

        Raises:
            ChunkMismatch: `other` has another id, does not begin at this chunk's last step and observation, or has
                another lookback than this chunk's last steps.
            EpisodeStateError: this episode has ended, or was not reset.
            TrackMismatch: only one of the chunks has an extra model output.
            ShapeMismatch: this episode is finalized, and items of `other` have another shape.
            WrongType: `other` is not a `SingleAgentEpisode`.
        """
        self.check_follows(other)
        self.extend(other, self.joined_tracks(other) if self.is_numpy else None)

    def joined_tracks(self, later: SingleAgentEpisode) -> Tracks:
        """Return the tracks of this finalized episode, followed by the tracks of the next chunk `later`."""
        return self._tracks.joined(later.finalized_tracks())

    def extend(self, later: SingleAgentEpisode, tracks: Tracks | None = None) -> None:
        """Append the next chunk `later` in place. The caller has checked the chunk with `check_follows`.

        Args:
            tracks: `joined_tracks(later)` if this episode is finalized.
        """
        self.tracks = self._tracks.joined(later._tracks) if tracks is None else tracks
        self.facts = self._facts.followed_by(later._facts)
        self._shape = self._shape or later._shape
        self.custom_data.update(later.custom_data)
        self._add_duration(later)
        self._is_cut = later._is_cut

    def check_follows(self, later: SingleAgentEpisode) -> None:
        """Raise an error unless `later` is the next chunk of this episode and can be appended.

        Raises:
            EpisodeStateError: this episode was not reset, or has ended.
            WrongType: `later` is not a `SingleAgentEpisode`.
            ChunkMismatch: `later` has another id, another start than where this chunk stops, or other values where both
                have steps.
            TrackMismatch: `later` has other extra model outputs or ragged time series.
        """
        if self.is_done or not self.is_reset:
            raise self._not_growing_error("concat_episode")
        if not isinstance(later, SingleAgentEpisode):
            kind = rejected_type(later, SingleAgentEpisode)
            raise WrongType(f"episode {self.id_}: concat_episode takes an episode, not a {kind}")
        if later.id_ != self.id_:
            raise ChunkMismatch(
                f"episode {self.id_}: a chunk of episode {later.id_} does not follow it; join chunks of one id"
            )
        if key_of(later.facts) != key_of(self._facts):
            raise ChunkMismatch(
                f"episode {self.id_}: a chunk of agent {later.agent_id} does not follow one of agent {self.agent_id}; "
                "join chunks of one agent and one multi-agent episode"
            )
        if later.t_started != self.t:
            raise ChunkMismatch(
                f"episode {self.id_}: a chunk that begins at t={later.t_started} does not follow one that stops at "
                f"t={self.t}; join chunks in order, none left out"
            )
        if not nested.equal(self.get_observations(-1), later.get_observations(0)):
            raise ChunkMismatch(
                f"episode {self.id_}: the chunk's first observation is not the one at which this one stops (t={self.t})"
            )
        if later.lookback:
            difference = first_difference(self, later)
            if difference is not None:
                raise ChunkMismatch(
                    f"episode {self.id_}: {difference}: the lookback of the chunk at t={self.t} has other values than "
                    "the steps of this one; join chunks of one episode"
                )
        self._tracks.check_follows(later._tracks, f"episode {self.id_}", self.t)

    def _not_growing_error(self, call: str) -> EpisodeStateError:
        """Return the error for a method `call` on an episode that was not reset, has ended, or was cut or finalized."""
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
        """Return the pickled form: the episode's metadata, time series and custom data, without cached lists."""
        return _restored, (PickleVersion(type(self).__name__), *self._parts())

    def __copy__(self) -> Self:
        return _of_parts(*self._parts())

    def _parts(self) -> tuple[Any, ...]:
        """Return the arguments of `_of_parts` for an equal episode, which is no view of a pack."""
        custom_data = own_data(self._custom_data) if type(self._custom_data) is FixedData else self._custom_data
        attributes = (custom_data, self._shape, self.get_duration_s(), self._is_cut)
        return type(self), self._facts, self._tracks, *attributes

    def get_state(self) -> dict[str, Any]:
        """Return the whole episode as a dict of plain values and copied arrays."""
        state = state_of(self._facts, self._tracks, self.custom_data)
        return state | {"duration_s": self.get_duration_s(), "is_cut": bool(self._is_cut)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Create an episode from the dict that `get_state` returned. Nothing shares memory with `state`.

        Raises:
            StateMismatch: `state` is no such dict.
        """
        with reading_state(cls):
            episode = cls.of(*parts_of(state))
            episode._duration, episode._is_cut = state["duration_s"], state.get("is_cut")
            return episode

    def equals(self, episode: object) -> bool:
        """Return True if both episodes have equal metadata, time series, lookbacks and custom data.

        A growing episode is never equal to a finalized one.
        """
        return (
            isinstance(episode, SingleAgentEpisode)
            and self.is_numpy == episode.is_numpy
            and self._facts == episode._facts
            and self._tracks == episode._tracks
            and same_info(self.custom_data, episode.custom_data)
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


def _restored(version: object, *parts: Any) -> SingleAgentEpisode:
    """Return an episode from its pickled parts. Raise `UnreadableData` if they have another format version."""
    check_mark(version, "SingleAgentEpisode")
    return _of_parts(*parts)


def _of_parts(
    cls: Any,
    facts: EpisodeFacts,
    tracks: Tracks,
    custom_data: dict[str, Any] | None,
    shape: object,
    duration: float,
    is_cut: bool | None,
) -> Any:
    episode = cls.of(facts, tracks, custom_data)
    episode._shape, episode._duration, episode._is_cut = shape, duration, is_cut
    return episode

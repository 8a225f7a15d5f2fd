"""`EpisodePack`: many episodes, stored as one array for observations, one for actions, and so on.

Offsets mark where each episode begins. Packs are what the vector recorder returns, the replay buffer stores, files and
messages carry, and learners read. Nothing is copied per episode.

Two episodes, a of 3 and b of 2 steps:

    actions, rewards     a0 a1 a2    b0 b1             offsets                0  3  5
    observations         a0 a1 a2 a3 b0 b1 b2          observation_offsets    0  4  7

The steps of episode i begin at `offsets[i]`. Its observations begin at `offsets[i] + i`, since each episode before
it has one observation more than steps.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from gymnasium import spaces

from episodes.columns import Columns, check_extra_output_names
from episodes.data_types import Indices
from episodes.errors import InvalidArgument, ShapeMismatch, TrackMismatch
from episodes.facts.ending import checked_flags, codes_of
from episodes.facts.facts import (
    EpisodeFacts,
    PackFacts,
    check_starts,
    counts,
    ids_of,
    integers,
    objects,
    own_custom_data,
    own_data,
    random_ids,
)
from episodes.facts.policy_versions import UNKNOWN, VersionColumn
from episodes.format_versions import PICKLE, PickleVersion, check_mark, check_pickle
from episodes.pack import pickling
from episodes.pack.from_episodes import parts_of
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import ArrayTrack, InfoTrack, Tracks, action_units
from episodes.tracks.casting import check_kinds, is_kind_of
from episodes.tracks.field import INFOS, extra_field
from episodes.tracks.indexing import offsets_of, ranges
from episodes.tracks.infos.dicts import infos_of
from episodes.tracks.infos.infos import Infos
from episodes.tracks.notebook_repr import notebook_repr
from episodes.tracks.policy_box import env_space_of, to_env_actions
from episodes.tracks.read_only import read_only
from episodes.tracks.retained_memory import retained_nbytes
from episodes.tracks.selection import position_of, positions_of
from episodes.tracks.track import Track

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from episodes.data_types import AgentID, Items, Space


def _data(name: str) -> Any:
    """Return a property for one (nested) array of a pack, such as `observations`, which holds all episodes."""
    return property(attrgetter(f"columns.{name}.data"))


def _fact(name: str) -> Any:
    """Return a property for one metadata array of a pack, such as `ids`, with an element per episode."""
    return property(attrgetter(f"facts.{name}"))


class EpisodePack(Sequence[SingleAgentEpisode]):
    """Immutable sequence of finished episodes, stored as one read-only array for observations, one for actions, etc.

    Step tracks have `offsets[i + 1] - offsets[i]` = L_i + T_i rows for episode i, observations and infos one more.

    Args:
        observations: nested arrays [sum(L_i + T_i + 1), ...].
        actions: nested arrays [sum(L_i + T_i), ...].
        rewards: array [sum(L_i + T_i)].
        lengths: number of steps T_i of each episode, [n].
        infos: `Infos`, or a list of dicts, one per observation; empty by default.
        extra_model_outputs: nested arrays [sum(L_i + T_i), ...] by key.
        lookbacks: lookback L_i of each episode, [n], 0 by default.
        ids: ids of the episodes, [n], random by default.
        t_started: env step of each chunk's step 0, [n], 0 by default.
        terminated: flags [n], False by default.
        truncated: flags [n], False by default.
        agent_ids: values [n], or None if no episode has one.
        module_ids: values [n], or None if no episode has one.
        multi_agent_episode_ids: values [n], or None if no episode has one.
        policy_versions: policy version of each episode, [n]: an int, None or -1 if it is unknown, or `VersionRuns` if
            it changes within the episode.
        custom_data: a dict or None for each episode.
        observation_space: space of all observations.
        action_space: space of all actions.

    Raises:
        TrackMismatch: names the track whose number of rows does not fit `lengths`, or an extra model output with the
            name of a reserved column.
        ShapeMismatch: rewards are not one number per step.
        WrongType: a column holds objects, or `ids` is neither a list nor an array.
        InvalidArgument: lengths or lookbacks are not ints of at least 0, or start times are not ints.
    """

    def __init__(
        self,
        *,
        observations: Items,
        actions: Items,
        rewards: np.ndarray,
        lengths: ArrayLike,
        infos: Infos | Sequence[dict[str, Any]] | None = None,
        extra_model_outputs: Mapping[str, Any] | None = None,
        lookbacks: ArrayLike | None = None,
        ids: Sequence[Any] | np.ndarray | None = None,
        t_started: ArrayLike | None = None,
        terminated: ArrayLike | None = None,
        truncated: ArrayLike | None = None,
        agent_ids: Sequence[AgentID] | np.ndarray | None = None,
        module_ids: Sequence[Hashable] | np.ndarray | None = None,
        multi_agent_episode_ids: Sequence[Any] | np.ndarray | None = None,
        policy_versions: Sequence[Any] | np.ndarray | VersionColumn | None = None,
        custom_data: Sequence[dict[str, Any] | None] | None = None,
        observation_space: spaces.Space | None = None,
        action_space: spaces.Space | None = None,
    ) -> None:
        lengths = counts(lengths, "lengths")
        num = len(lengths)
        lookbacks = counts(np.zeros(num, np.int64) if lookbacks is None else lookbacks, "lookbacks")
        rows = int(lengths.sum() + lookbacks.sum()) + num
        if not isinstance(infos, Infos):
            infos = Infos({}, rows) if infos is None else infos_of(infos)
        flags = (np.zeros(num, bool) if flag is None else flag for flag in (terminated, truncated))
        facts = PackFacts(
            ids=ids_of(random_ids(num) if ids is None else ids),
            t_started=integers(np.zeros(num, np.int64) if t_started is None else t_started),
            endings=codes_of(*map(checked_flags, flags)),
            agent_ids=objects(agent_ids),
            module_ids=objects(module_ids),
            multi_agent_episode_ids=objects(multi_agent_episode_ids),
            policy_versions=VersionColumn.of(policy_versions),
            observation_space=observation_space,
            action_space=action_space,
            custom_data=own_custom_data(custom_data),
        )
        check_extra_output_names(extra_model_outputs or (), "pack")
        columns = Tracks.finished(observations, infos, actions, rewards, extra_model_outputs or {})
        self._set(columns, facts, lengths, lookbacks)
        self.check()
        columns.check_shapes(observation_space, action_space, "pack")

    def _set(self, columns: Tracks, facts: PackFacts, lengths: np.ndarray, lookbacks: np.ndarray) -> None:
        self.columns = columns  # the concatenated tracks of all episodes
        self.facts = facts
        self.lengths = read_only(lengths)  # [n]
        self.lookbacks = read_only(lookbacks)  # [n]

    @classmethod
    def of(cls, columns: Tracks, facts: PackFacts, lengths: np.ndarray, lookbacks: np.ndarray) -> EpisodePack:
        """Create a pack from arrays and metadata that are known to fit. Nothing is checked."""
        pack = cls.__new__(cls)
        pack._set(columns, facts, lengths, lookbacks)
        return pack

    observations = _data("observations")
    actions = _data("actions")
    rewards = _data("rewards")
    ids = _fact("ids")  # [n] str
    t_started = _fact("t_started")  # [n]
    agent_ids = _fact("agent_ids")  # [n] or None
    module_ids = _fact("module_ids")  # [n] or None
    multi_agent_episode_ids = _fact("multi_agent_episode_ids")  # [n] or None
    acting_pipelines = _fact("acting_pipelines")  # [n] or None
    observation_space = _fact("observation_space")
    action_space = _fact("action_space")
    _repr_html_ = notebook_repr("episodes.inspect.html", "pack")

    @property
    def custom_data(self) -> list[dict[str, Any]] | None:
        """Custom data of the episodes: a list of n copied dicts, or None if all are empty.

        Changes to the copies are lost. `pack.replace(custom_data=[...])` returns a pack with other custom data.
        """
        return own_custom_data(self.facts.custom_data)

    @property
    def policy_versions(self) -> np.ndarray | None:
        """Lowest and highest policy version of each episode, int64 [n, 2] (-1: unknown). None if all are unknown."""
        versions = self.facts.policy_versions
        return None if versions is None else versions.lowest_and_highest()

    def get_policy_versions(self) -> np.ndarray:
        """Return the policy version of each step without lookbacks, int64 [sum(T)], or -1 if it is unknown."""
        versions = self.facts.policy_versions
        return np.full(self.num_steps, UNKNOWN) if versions is None else versions.steps(self.lengths)

    @property
    def env_action_space(self) -> Any:
        """Action space of the environment. `action_space` differs if the stored actions are rescaled for the policy."""
        return env_space_of(self.facts.action_space)

    def get_env_actions(self) -> Any:
        """Return the actions as sent to the environment, (nested) arrays [sum(L_i + T_i), ...].

        The stored `actions` are the policy's. See `SingleAgentEpisode.get_env_actions`.

        Raises:
            EpisodeStateError: a connector computed the environment's actions, and they were not recorded.
        """
        sent = self.columns.extra.get(Columns.ACTIONS_FOR_ENV)
        return to_env_actions(self.action_space, self.actions) if sent is None else sent.data

    @property
    def infos(self) -> Infos:
        """Info dicts of all observations of all episodes, an `Infos` sequence of length sum(L_i + T_i + 1)."""
        return self.columns.infos.data

    @property
    def extra_model_outputs(self) -> dict[str, Any]:
        """Extra model outputs, such as log-probabilities, as a dict from key to nested arrays [sum(L_i + T_i), ...]."""
        return {key: track.data for key, track in self.columns.extra.items()}

    @cached_property
    def terminated(self) -> np.ndarray:
        """Flags of the episodes, bool [n]: True if the episode ended in a terminal state."""
        return read_only(self.facts.endings & 1 != 0)

    @cached_property
    def truncated(self) -> np.ndarray:
        """Flags of the episodes, bool [n]: True if the episode was ended from outside, for example by a time limit."""
        return read_only(self.facts.endings & 2 != 0)

    def check(self) -> None:
        """Raise an error if an array is longer or shorter than the episodes' `lengths` and `lookbacks` require.

        Raises:
            TrackMismatch: a column has another number of rows than `lengths` and `lookbacks` require.
            ShapeMismatch: rewards are not one number per step.
            WrongType: a column holds objects.
            InvalidArgument: a chunk begins before env step 0.
        """
        steps, num = int(self.offsets[-1]), len(self)
        for track in self.columns.all():
            expected = steps + num * track.field.more
            if _fits(track, expected):
                continue
            wrong = track.first_wrong_length(expected)
            if wrong is not None:
                path, num_rows = wrong
                raise TrackMismatch(
                    f"pack: track {path!r} has {num_rows} rows, the episodes' lengths ask for {expected}"
                )
            check_kinds(track.field, track.arrays())
        self.columns.check_lengths_of_outputs("pack")
        if self.rewards.ndim != 1:
            raise ShapeMismatch(f"pack: rewards have shape {self.rewards.shape}; give one number for each step")
        self.facts.check(num)
        check_starts(self.facts.t_started, self.lengths)
        if len(self.lookbacks) != num:
            raise TrackMismatch(f"pack: {len(self.lookbacks)} lookbacks for {num} episodes; give one for each")

    @classmethod
    def from_episodes(cls, episodes: Sequence[SingleAgentEpisode]) -> EpisodePack:
        """Create a pack from episodes by concatenating their observations, actions and other time series.

        The episodes do not change. If `episodes` is a pack, it is returned itself.

        Raises:
            TrackMismatch: tracks of the episodes differ in keys, structure or item shape.
            WrongType: a value is not a single-agent episode.
            InvalidArgument: there is no episode.
        """
        if isinstance(episodes, EpisodePack):
            return episodes
        return cls.of(*parts_of(episodes))

    @classmethod
    def concat(cls, packs: Sequence[EpisodePack]) -> EpisodePack:
        """Join several packs to one by concatenating their arrays.

        Large infos are joined when they are first read.

        Until then the infos of the packs are not freed (`retained_nbytes` counts them). That is at most a quarter more
        memory than the joined infos need; otherwise they are joined at once.

        Raises:
            TrackMismatch: packs have other extra outputs, nesting or shapes. A pack without steps fits any.
            InvalidArgument: `packs` is empty.
        """
        packs = list(packs)
        if len(packs) == 1:
            return packs[0]
        if not packs:
            raise InvalidArgument("EpisodePack.concat needs at least one pack")
        ids = [pack.ids[0] if len(pack) else "-" for pack in packs]
        try:
            parts = [pack.columns for pack in packs]
            columns = Tracks.concatenated(parts, ids, Tracks.sizes(parts)[0])
        except TrackMismatch as error:
            raise TrackMismatch(f"packs with other tracks cannot be joined: {error}") from None
        facts = PackFacts.concat([pack.facts for pack in packs])
        lengths, lookbacks = [pack.lengths for pack in packs], [pack.lookbacks for pack in packs]
        return cls.of(columns, facts, np.concatenate(lengths), np.concatenate(lookbacks))

    # --- sequence --------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, index: int) -> SingleAgentEpisode: ...
    @overload
    def __getitem__(self, index: slice) -> EpisodePack: ...
    def __getitem__(self, index: int | slice) -> SingleAgentEpisode | EpisodePack:
        """Return the episode at an index, or a pack of a slice of episodes. Only slices with a step copy arrays.

        Each read of episode i creates a new view of the pack. Its setters and its `custom_data` raise
        `EpisodeStateError`, because a change would not reach the pack: change a copy, `copy.copy(pack[i])`, and make a
        pack of the copies, or use `pack.replace(rewards=...)`, which returns another pack.

        Raises:
            StepOutOfRange: the pack has no episode with this index.
            WrongType: `index` is neither an int nor a slice.
        """
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step == 1:
                return self._range(start, max(start, stop))
            return self.select(np.arange(start, stop, step))
        return self._episode(position_of(index, len(self), "pack", "select takes arrays"))

    def __iter__(self) -> Iterator[SingleAgentEpisode]:
        return map(self._episode, range(len(self)))

    def _episode(self, i: int) -> SingleAgentEpisode:
        return SingleAgentEpisode.of_pack(*parts_of_episode(self, i))

    def _range(self, start: int, stop: int) -> EpisodePack:
        begin, end = self._bounds[start], self._bounds[stop]
        return self._picked(slice(start, stop), slice(begin, end), slice(begin + start, end + stop))

    def select(self, indices: Indices) -> EpisodePack:
        """Return a pack with copies of the episodes that an integer array, a list of indices or a boolean mask selects.

        Raises:
            StepOutOfRange: there is no episode with an index.
            WrongType: `indices` are neither ints nor bools, or not one-dimensional.
        """
        picked = positions_of(indices, len(self), "pack.select")
        sizes = np.diff(self.offsets)[picked]
        steps = ranges(self.offsets[:-1][picked], sizes)
        observed_rows = ranges(self.observation_offsets[:-1][picked], sizes + 1)
        return self._picked(picked, steps, observed_rows)

    def replace(self, **changed: Any) -> EpisodePack:
        """Return a pack with some arrays or metadata replaced, given as keyword arguments of the constructor.

        Raises:
            TrackMismatch: a column does not fit the episodes, or an extra model output has a reserved name.
            ShapeMismatch: rewards are not one number per step.
            WrongType: a column holds objects.
            InvalidArgument: lengths or lookbacks are not ints of at least 0.
        """
        columns, facts = self.columns, self.facts
        for name in ("observations", "actions", "rewards"):
            if name in changed:
                columns = columns.replaced(ArrayTrack.of(changed.pop(name), 0, getattr(columns, name).field))
        if "extra_model_outputs" in changed:
            extra = changed.pop("extra_model_outputs") or {}
            check_extra_output_names(extra, "pack")
            columns = columns._replace(
                extra={key: ArrayTrack.of(data, 0, extra_field(key)) for key, data in extra.items()}
            )
        if "infos" in changed:
            infos = changed.pop("infos")
            columns = columns.replaced(InfoTrack(infos_of(infos)))
        lengths, lookbacks = (counts(changed.pop(n, getattr(self, n)), n) for n in ("lengths", "lookbacks"))
        if "custom_data" in changed:
            changed["custom_data"] = own_custom_data(changed["custom_data"])
        if "terminated" in changed or "truncated" in changed:
            flags = (changed.pop(name, getattr(self, name)) for name in ("terminated", "truncated"))
            facts = facts._replace(endings=codes_of(*map(checked_flags, flags)))
        pack = EpisodePack.of(columns, facts.changed(**changed), lengths, lookbacks)
        pack.check()
        return pack

    def move_starts(self, num_steps: np.ndarray) -> EpisodePack:
        """Return a pack in which the first `num_steps[i]` steps of each episode i become its lookback. No copies.

        Start times and policy versions follow. Endings and ids stay.

        Raises:
            InvalidArgument: a chunk has fewer steps.
        """
        num_steps = counts(num_steps, "num_steps")
        lengths = counts(self.lengths - num_steps, "lengths")
        return EpisodePack.of(self.columns, self.facts.window(num_steps, lengths), lengths, self.lookbacks + num_steps)

    def with_env_actions(self) -> EpisodePack:
        """Return a pack that stores the actions sent to the environment, with the environment's action space.

        Outputs that describe the policy's own actions are left out: "action_logp", "action_prob",
        "action_dist_inputs". The pack itself is returned if it stores the environment's actions already.

        Raises:
            EpisodeStateError: a connector computed the environment's actions, and they were not recorded.
        """
        return self._with_actions(*action_units.with_env_actions(self.columns, self.facts.action_space))

    def with_policy_actions(self, mapping: str = "normalize") -> EpisodePack:
        """Return a pack with actions rescaled to a policy's range, such as [-1, 1] for `mapping="normalize"`.

        Learning from the environment's actions, of imported data for example, needs this if the policy acts in other
        units than the environment, as all policies do behind `module_to_env_pipeline(normalize_actions=True)`.

        Args:
            mapping: "normalize" for a policy that acts in [-1, 1], "clip" or "none" for one that acts in the
                environment's units (see `PolicyBox`).

        Raises:
            InvalidArgument: there is no action space, or another mapping.
        """
        return self._with_actions(*action_units.with_policy_actions(self.columns, self.facts.action_space, mapping))

    def _with_actions(self, columns: Tracks, action_space: Space | None) -> EpisodePack:
        if action_space is self.facts.action_space:
            return self
        facts = self.facts._replace(action_space=action_space)
        return EpisodePack.of(columns, facts, self.lengths, self.lookbacks)

    def _picked(
        self, episode_index: slice | np.ndarray, steps: slice | np.ndarray, observed_rows: slice | np.ndarray
    ) -> EpisodePack:
        """Return a pack of selected episodes with the selected rows of their time series.

        Args:
            episode_index: index of the episodes.
            steps: rows of the tracks with one item per step (actions, rewards, extra model outputs), lookback included.
            observed_rows: rows of the tracks with one item more per episode (observations, infos), lookback included.
        """
        columns = self.columns.take(steps, observed_rows)
        return EpisodePack.of(
            columns, self.facts.take(episode_index), self.lengths[episode_index], self.lookbacks[episode_index]
        )

    # --- columns ---------------------------------------------------------------------------------------------

    @cached_property
    def _bounds(self) -> list[int]:
        return self.offsets.tolist()

    @cached_property
    def tracks(self) -> dict[str, np.ndarray]:
        """Arrays of the pack, infos excluded, as a dict from path (`observations/camera`, `rewards`) to array."""
        return self.columns.arrays()

    @cached_property
    def offsets(self) -> np.ndarray:
        """First index of each episode (lookback included) in actions and rewards, and the end, int64 [n + 1]."""
        return read_only(offsets_of(self.lengths + self.lookbacks))

    @cached_property
    def observation_offsets(self) -> np.ndarray:
        """First index of each episode (lookback included) in the observations, and the end, int64 [n + 1]."""
        return read_only(self.offsets + np.arange(len(self) + 1))

    @cached_property
    def row_owners(self) -> np.ndarray:
        """For each observation in the pack, the index of its episode, int [sum(L_i + T_i + 1)]."""
        return read_only(np.repeat(np.arange(len(self)), np.diff(self.observation_offsets)))

    @cached_property
    def row_depths(self) -> np.ndarray:
        """For each observation, the number of earlier observations of its episode, int [sum(L_i + T_i + 1)]."""
        return read_only(np.arange(len(self.row_owners)) - self.observation_offsets.take(self.row_owners))

    @cached_property
    def num_steps(self) -> int:
        """Total number of steps of all episodes, without lookbacks."""
        return int(self.lengths.sum())

    @property
    def nbytes(self) -> int:
        """Memory size in bytes of the observations, actions, rewards and extra model outputs, without infos."""
        return sum(array.nbytes for array in self.tracks.values())

    @property
    def retained_nbytes(self) -> int:
        """Bytes that stay allocated while the pack exists. If its arrays are views, their whole base arrays count.

        Of a part of a pack, of one that came from a receiver or out of shared memory, that is more than `nbytes`.
        """
        return retained_nbytes([*self.tracks.values(), *self.infos.arrays()])

    def copied(self) -> EpisodePack:
        """Return a copy of the pack with separate arrays, so that larger arrays behind its views can be freed."""
        columns = self.columns.map_tracks(lambda track: track.copied())
        facts = self.facts.take(np.arange(len(self)))
        return EpisodePack.of(columns, facts, self.lengths.copy(), self.lookbacks.copy())

    def step_rows(self) -> slice | np.ndarray:
        """Return the positions of the steps (no lookbacks) in actions and rewards: int [num_steps], or a full slice."""
        if not self._has_lookback:
            return slice(None)
        return ranges(self.offsets[:-1] + self.lookbacks, self.lengths)

    @cached_property
    def _has_lookback(self) -> bool:
        return bool(np.count_nonzero(self.lookbacks))

    def observation_rows(self, shift: int = 0) -> np.ndarray:
        """Return the position of each step's observation (`shift=0`) or next one (`shift=1`), int [num_steps]."""
        return self._observed_rows + shift if shift else self._observed_rows

    @cached_property
    def _observed_rows(self) -> np.ndarray:
        if self._has_lookback:
            return read_only(ranges(self.observation_offsets[:-1] + self.lookbacks, self.lengths))
        rows = np.arange(len(self)).repeat(self.lengths)  # each earlier episode has one observation more than steps
        rows += np.arange(len(rows))
        return read_only(rows)

    def all_observation_rows(self) -> slice | np.ndarray:
        """Return the positions of the observations that are not lookback, int [num_steps + n], or a full slice."""
        if not self._has_lookback:
            return slice(None)
        return ranges(self.observation_offsets[:-1] + self.lookbacks, self.lengths + 1)

    def returns(self) -> np.ndarray:
        """Return the undiscounted return of each episode, float64 [n]."""
        return segment_sums(self.rewards, self.offsets[:-1] + self.lookbacks, self.offsets[1:])

    # --- state -----------------------------------------------------------------------------------------------

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return the pickled form of the pack. With pickle protocol 5, large arrays are out-of-band buffers.

        Spaces are pickled without the state of their random generators, and unpickled packs share equal spaces. To
        sample from a space, copy and seed it.
        """
        counts = self.lengths, self.lookbacks
        if protocol >= 5:
            return _from_pieces, (PICKLE, *pickling.to_pickle_parts(self.columns, self.facts, *counts))
        return _from_tracks, (PickleVersion("EpisodePack"), self.columns, pickling.unseeded(self.facts), *counts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EpisodePack):
            return NotImplemented
        return len(self) == len(other) and all(a.equals(b) for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        whole = (self.t_started == 0) & (self.terminated | self.truncated)
        parts = describe_counts(whole, self.returns(), self.num_steps)
        parts += [f"{int(self.terminated.sum())} terminated"]
        parts += [f"{int((self.truncated & ~self.terminated).sum())} truncated", f"{self.nbytes} bytes"]
        return f"EpisodePack({', '.join(parts)})"


def _fits(track: Track, num: int) -> bool:
    """Return True if the time series is one array of `num` items with an allowed dtype, or `num` infos."""
    data = track.data
    if type(data) is np.ndarray:
        return len(data) == num and is_kind_of(track.field, data)
    return track.field is INFOS and len(data) == num


def describe_counts(whole: np.ndarray, returns: np.ndarray, num_steps: int) -> list[str]:
    """Return the parts of a repr that count episodes and steps, such as "3 episodes", "120 steps", "mean return 1.5".

    `whole` [n] is True for episodes that were neither cut at the start nor at the end.
    """
    num, steps = int(whole.sum()), f"{num_steps} step{'s' * (num_steps != 1)}"
    with np.errstate(over="ignore", invalid="ignore"):
        mean = [f"mean return {returns[whole].mean():g}"] if num else []
    if num == len(whole):
        return [f"{num} episode{'s' * (num != 1)}", steps, *mean]
    chunks = f"{len(whole) - num} chunk{'s' * (len(whole) - num != 1)}"
    wholes = [f"{num} whole episode{'s' * (num != 1)} with {mean[0]}"] if num else []
    return [*wholes, chunks, steps]


def segment_sums(values: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """Return the sum of `values[starts[i]:stops[i]]` for each i, float64 [n]. Segments are ordered and disjoint."""
    is_filled = starts < stops
    if is_filled.all() and len(is_filled) and (starts[1:] == stops[:-1]).all():
        return _sums_from(values[: int(stops[-1])], starts)
    sums = np.zeros(len(starts))
    if is_filled.any():
        bounds = np.stack([starts[is_filled], stops[is_filled]], axis=1).reshape(-1)
        sums[is_filled] = _sums_from(values[: int(bounds[-1])], bounds[:-1])[::2]
    return sums


def _sums_from(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return the sum of each segment of `values` from one of `starts` [n] to the next start, float64 [n]."""
    with np.errstate(over="ignore", invalid="ignore"):  # infinite values give no warning
        return np.add.reduceat(values, starts, dtype=np.float64)


def parts_of_episode(pack: EpisodePack, i: int) -> tuple[EpisodeFacts, Tracks, dict[str, Any]]:
    """Return the arguments of `SingleAgentEpisode.of` for episode `i` of a pack, from 0 on.

    An episode made of them can be changed, unlike `pack[i]`. The arrays are shared.
    """
    bounds, custom = pack._bounds, pack.facts.custom_data
    tracks = pack.columns.window(bounds[i], bounds[i + 1], pack.lookbacks.item(i), i)
    return pack.facts.at(i), tracks, {} if custom is None else own_data(custom[i])


def _from_pieces(version: object, *pieces: Any) -> EpisodePack:
    check_pickle(version, "EpisodePack")
    return EpisodePack.of(*pickling.from_pickle_parts(*pieces))


def _from_tracks(version: object, *parts: Any) -> EpisodePack:
    check_mark(version, "EpisodePack")
    return EpisodePack.of(*parts)

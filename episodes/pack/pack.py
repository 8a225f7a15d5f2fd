"""`EpisodePack`: many episodes as one set of columns; an episode of a pack is a view of it.

Each track of all episodes is one array, and offsets say where an episode begins. The pack is what the vector recorder
produces, the replay buffer keeps, files store, sockets carry and learners read. Nothing is copied per episode.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any, overload

import numpy as np
from gymnasium import spaces

from episodes.columns import Columns, check_extra_output_names
from episodes.errors import InvalidArgument, ShapeMismatch, StepOutOfRange, TrackMismatch, WrongType
from episodes.facts.ending import codes_of
from episodes.facts.facts import (
    PackFacts,
    counts,
    ids_of,
    integers,
    objects,
    own_custom_data,
    own_data,
    random_ids,
)
from episodes.facts.policy_versions import UNKNOWN, VersionColumn
from episodes.pack import pickling
from episodes.pack.from_episodes import parts_of
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import ArrayTrack, InfoTrack, Tracks, action_units
from episodes.tracks.casting import check_kinds, is_kind_of
from episodes.tracks.field import INFOS, extra_field
from episodes.tracks.indexing import ranges
from episodes.tracks.infos.dicts import infos_of
from episodes.tracks.infos.infos import EmptyInfos, Infos
from episodes.tracks.nested import frozen
from episodes.tracks.notebook_repr import notebook_repr
from episodes.tracks.policy_box import env_space_of, to_env_actions
from episodes.tracks.retained_memory import retained_nbytes
from episodes.tracks.track import Track


def _data(name: str) -> Any:
    """A property over the nested arrays of a column."""
    column = attrgetter(f"columns.{name}")
    return property(lambda pack: column(pack).whole())


def _fact(name: str) -> Any:
    """A property over an array of the facts."""
    return property(attrgetter(f"facts.{name}"))


class EpisodePack(Sequence[SingleAgentEpisode]):
    """An immutable sequence of finalized episodes and chunks, columnar inside. Its arrays are read-only.

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
        policy_versions: the version of the policy that acted in each episode, [n] (None or -1: unknown; `VersionRuns`
            where it changed), or None.
        custom_data: a dict (or None) for each episode, or None.

    Raises:
        TrackMismatch: names the track whose number of rows does not go with `lengths`.
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
        policy_versions: Any = None,
        custom_data: Sequence[dict[str, Any] | None] | None = None,
        observation_space: spaces.Space | None = None,
        action_space: spaces.Space | None = None,
    ) -> None:
        lengths = counts(lengths, "lengths")
        num = len(lengths)
        lookbacks = counts(np.zeros(num, np.int64) if lookbacks is None else lookbacks, "lookbacks")
        rows = int(lengths.sum() + lookbacks.sum()) + num
        if not isinstance(infos, Infos):
            infos = EmptyInfos(rows) if infos is None else infos_of(infos)
        flags = (np.zeros(num, bool) if flag is None else flag for flag in (terminated, truncated))
        facts = PackFacts(
            ids=ids_of(random_ids(num) if ids is None else ids),
            t_started=integers(np.zeros(num, np.int64) if t_started is None else t_started),
            endings=codes_of(*flags),
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

    def _set(self, columns: Tracks, facts: PackFacts, lengths: np.ndarray, lookbacks: np.ndarray) -> None:
        self.columns = columns  # the tracks of all episodes, one after another
        self.facts = facts
        self.lengths = frozen(lengths)  # [n]
        self.lookbacks = frozen(lookbacks)  # [n]

    @classmethod
    def of(cls, columns: Tracks, facts: PackFacts, lengths: np.ndarray, lookbacks: np.ndarray) -> EpisodePack:
        """The pack of columns and facts that are known to go together."""
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
    observation_space = _fact("observation_space")
    action_space = _fact("action_space")
    _repr_html_ = notebook_repr("episodes.inspect.html", "pack")

    @property
    def custom_data(self) -> list[dict[str, Any]] | None:
        """A dict of each episode, which is a copy, as those of `pack[i]` are; None where all are empty.

        What is written to the copies is lost with them; `pack.replace(custom_data=[...])` is a pack with other ones.
        """
        return own_custom_data(self.facts.custom_data)

    @property
    def policy_versions(self) -> np.ndarray | None:
        """The lowest and the highest version of the policies that acted, [n, 2] (-1: unknown); None where all are."""
        versions = self.facts.policy_versions
        return None if versions is None else versions.lowest_and_highest()

    def get_policy_versions(self) -> np.ndarray:
        """Which version of the policy acted at each step, those of lookbacks left out, int64 [sum(T)]; -1: unknown."""
        versions = self.facts.policy_versions
        return np.full(self.num_steps, UNKNOWN) if versions is None else versions.steps(self.lengths)

    @property
    def env_action_space(self) -> Any:
        """Action space of the environment. `action_space` is the space of the stored actions, a policy's perhaps."""
        return env_space_of(self.facts.action_space)

    def get_env_actions(self) -> Any:
        """Return the actions that were sent to the environment, nested arrays [sum(L_i + T_i), ...].

        The stored `actions` are the policy's. See `SingleAgentEpisode.get_env_actions`.

        Raises:
            EpisodeStateError: a connector computed the environment's actions, and they were not recorded.
        """
        sent = self.columns.extra.get(Columns.ACTIONS_FOR_ENV)
        return to_env_actions(self.action_space, self.actions) if sent is None else sent.whole()

    @property
    def infos(self) -> Infos:
        """A row for each observation."""
        return self.columns.infos.whole()

    @property
    def extra_model_outputs(self) -> dict[str, Any]:
        """Each extra model output's nested arrays."""
        return {key: track.whole() for key, track in self.columns.extra.items()}

    @cached_property
    def terminated(self) -> np.ndarray:
        """Flags [n]."""
        return _frozen(self.facts.endings & 1 != 0)

    @cached_property
    def truncated(self) -> np.ndarray:
        """Flags [n]."""
        return _frozen(self.facts.endings & 2 != 0)

    def check(self) -> None:
        """Raise unless the columns go together.

        Raises:
            TrackMismatch: a column has other rows than `lengths` and `lookbacks` ask for.
            ShapeMismatch: rewards that are not one number a step.
            WrongType: arrays of objects.
        """
        steps, num = int(self.offsets[-1]), len(self)
        for track in self.columns.all():
            wanted = steps + num * track.field.more
            if _fits(track, wanted):
                continue
            wrong = track.first_wrong_length(wanted)
            if wrong is not None:
                path, num_rows = wrong
                raise TrackMismatch(f"pack: track {path!r} has {num_rows} rows, the episodes' lengths ask for {wanted}")
            check_kinds(track.field, track.arrays())
        if self.rewards.ndim != 1:
            raise ShapeMismatch(f"pack: rewards have shape {self.rewards.shape}; give one number for each step")
        self.facts.check(num)
        if len(self.lookbacks) != num:
            raise TrackMismatch(f"pack: {len(self.lookbacks)} lookbacks for {num} episodes; give one for each")

    @classmethod
    def from_episodes(cls, episodes: Sequence[SingleAgentEpisode]) -> EpisodePack:
        """The episodes as a pack (itself when it is one): one concatenate per track; the episodes stay as they are.

        Raises:
            TrackMismatch: the tracks of episodes differ in keys, structure or item shape.
            WrongType: what is no single-agent episode.
        """
        if isinstance(episodes, EpisodePack):
            return episodes
        return cls.of(*parts_of(episodes))

    @classmethod
    def concat(cls, packs: Sequence[EpisodePack]) -> EpisodePack:
        """The packs' episodes as one pack: one concatenate per track, large columns of infos when they are first read.

        Until then the packs' infos are not freed (`retained_nbytes` counts them), which is no more than a quarter above
        what the joined ones need; where it would be more, they are joined at once.

        Raises:
            TrackMismatch: packs with other extra outputs, nesting or shapes. One without steps goes with any.
        """
        packs = list(packs)
        if len(packs) == 1:
            return packs[0]
        if not packs:
            raise InvalidArgument("EpisodePack.concat needs at least one pack")
        whose = [pack.ids[0] if len(pack) else "-" for pack in packs]
        try:
            parts = [pack.columns for pack in packs]
            columns = Tracks.concatenated(parts, whose, Tracks.sizes(parts)[0])
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
        """Episode i, or the pack of a slice of episodes; views either way (a slice with a step copies).

        Each time episode i is another object. So what is written to it (`custom_data`, setters) stays in it, and not in
        the pack: keep the episode, or put the new values into `pack.replace(custom_data=[...])`, which is another pack.
        """
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
        bounds, custom = self._bounds, self.facts.custom_data
        tracks = self.columns.window(bounds[i], bounds[i + 1], self.lookbacks.item(i), i)
        return SingleAgentEpisode.of(self.facts.at(i), tracks, {} if custom is None else own_data(custom[i]))

    def _range(self, start: int, stop: int) -> EpisodePack:
        begin, end = self._bounds[start], self._bounds[stop]
        return self._picked(slice(start, stop), slice(begin, end), slice(begin + start, end + stop))

    def select(self, indices: Any) -> EpisodePack:
        """The pack of the episodes that an integer array, a list or a boolean mask picks; one gather per track."""
        try:
            wanted = np.asarray(indices)
            picked = np.arange(len(self))[wanted if wanted.size else wanted.astype(np.int64)]
        except IndexError as error:
            raise StepOutOfRange(f"pack.select: {error}; there are episodes 0..{len(self) - 1}") from None
        sizes = np.diff(self.offsets)[picked]
        steps = ranges(self.offsets[:-1][picked], sizes)
        observed = ranges(self.observation_offsets[:-1][picked], sizes + 1)
        return self._picked(picked, steps, observed)

    def replace(self, **changed: Any) -> EpisodePack:
        """This pack with other columns or metadata, under the names that the constructor takes."""
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
            facts = facts._replace(endings=codes_of(*flags))
        pack = EpisodePack.of(columns, facts.changed(**changed), lengths, lookbacks)
        pack.check()
        return pack

    def move_starts(self, num_steps: np.ndarray) -> EpisodePack:
        """Return this pack with the first `num_steps` [n] steps of each chunk moved to its lookback; views.

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
        """Return a pack that stores the actions which a policy with this mapping would have put out.

        Learning from the environment's actions, of imported data for example, needs this if the policy acts in other
        units than the environment, as all policies do behind `module_to_env_pipeline(normalize_actions=True)`.

        Args:
            mapping: "normalize" for a policy that acts in [-1, 1], "clip" or "none" for one that acts in the
                environment's units (see `PolicyBox`).

        Raises:
            InvalidArgument: there is no action space, or another mapping.
        """
        return self._with_actions(*action_units.with_policy_actions(self.columns, self.facts.action_space, mapping))

    def _with_actions(self, columns: Tracks, action_space: Any) -> EpisodePack:
        if action_space is self.facts.action_space:
            return self
        facts = self.facts._replace(action_space=action_space)
        return EpisodePack.of(columns, facts, self.lengths, self.lookbacks)

    def _picked(self, which: Any, steps: Any, observed: Any) -> EpisodePack:
        columns = self.columns.take(steps, observed)
        return EpisodePack.of(columns, self.facts.take(which), self.lengths[which], self.lookbacks[which])

    # --- columns ---------------------------------------------------------------------------------------------

    @cached_property
    def _bounds(self) -> list[int]:
        return self.offsets.tolist()

    @cached_property
    def tracks(self) -> dict[str, np.ndarray]:
        """Every array by path, such as `observations/camera` or `extra_model_outputs/vf_preds`."""
        return self.columns.arrays()

    @cached_property
    def offsets(self) -> np.ndarray:
        """Where each episode's rows of step tracks begin, its lookback first, [n + 1]."""
        return _offsets(self.lengths + self.lookbacks)

    @cached_property
    def observation_offsets(self) -> np.ndarray:
        """Where each episode's observation rows (and infos) begin, [n + 1]."""
        return _frozen(self.offsets + np.arange(len(self) + 1))

    @cached_property
    def row_owners(self) -> np.ndarray:
        """The episode of each observation row, int [sum(L_i + T_i + 1)]."""
        return _frozen(np.repeat(np.arange(len(self)), np.diff(self.observation_offsets)))

    @cached_property
    def row_depths(self) -> np.ndarray:
        """How many rows of its episode lie before each observation row, int [sum(L_i + T_i + 1)]."""
        return _frozen(np.arange(len(self.row_owners)) - self.observation_offsets.take(self.row_owners))

    @cached_property
    def num_steps(self) -> int:
        """The number of steps of all episodes, lookbacks not counted."""
        return int(self.lengths.sum())

    @property
    def nbytes(self) -> int:
        """The bytes of all tracks."""
        return sum(array.nbytes for array in self.tracks.values())

    @property
    def retained_nbytes(self) -> int:
        """The bytes that are not freed while this pack is held: all memory that its tracks and infos are views of.

        Of a part of a pack, of one that came from a receiver or out of shared memory, that is more than `nbytes`.
        """
        return retained_nbytes([*self.tracks.values(), *self.infos.arrays()])

    def copied(self) -> EpisodePack:
        """This pack in memory of its own: what it was a view of can be freed, and be used for the next sample."""
        columns = self.columns.map_tracks(lambda track: track.copied())
        facts = self.facts.take(np.arange(len(self)))
        return EpisodePack.of(columns, facts, self.lengths.copy(), self.lookbacks.copy())

    def step_rows(self) -> slice | np.ndarray:
        """The rows [num_steps] of the real steps in step tracks; all of them, as a slice, without lookbacks."""
        if not self._has_lookback:
            return slice(None)
        return ranges(self.offsets[:-1] + self.lookbacks, self.lengths)

    @cached_property
    def _has_lookback(self) -> bool:
        return bool(np.count_nonzero(self.lookbacks))

    def observation_rows(self, shift: int = 0) -> np.ndarray:
        """The rows [num_steps] of the observations before each real step (`shift=0`) or after it (`shift=1`)."""
        return self._observed_rows + shift if shift else self._observed_rows

    @cached_property
    def _observed_rows(self) -> np.ndarray:
        if self._has_lookback:
            return _frozen(ranges(self.observation_offsets[:-1] + self.lookbacks, self.lengths))
        rows = np.arange(len(self)).repeat(self.lengths)  # each episode before has one observation more than steps
        rows += np.arange(len(rows))
        return _frozen(rows)

    def all_observation_rows(self) -> slice | np.ndarray:
        """The rows [num_steps + n] of the T + 1 real observations per episode; a slice without lookbacks."""
        if not self._has_lookback:
            return slice(None)
        return ranges(self.observation_offsets[:-1] + self.lookbacks, self.lengths + 1)

    def returns(self) -> np.ndarray:
        """The undiscounted return [n] of each episode."""
        return segment_sums(self.rewards, self.offsets[:-1] + self.lookbacks, self.offsets[1:])

    # --- state -----------------------------------------------------------------------------------------------

    def __reduce_ex__(self, protocol: Any) -> Any:
        """One buffer per track, out of band with protocol 5; what is per episode goes in band.

        Spaces go without the state of their random numbers, and packs that are unpickled share equal ones: who wants
        to sample from a space copies and seeds it.
        """
        counts = self.lengths, self.lookbacks
        if protocol >= 5:
            return _from_pieces, pickling.to_pickle_parts(self.columns, self.facts, *counts)
        return EpisodePack.of, (self.columns, pickling.unseeded(self.facts), *counts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EpisodePack):
            return NotImplemented
        return len(self) == len(other) and all(a.equals(b) for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        whole = (self.t_started == 0) & (self.terminated | self.truncated)
        parts = counted(whole, self.returns(), self.num_steps)
        parts += [f"{int(self.terminated.sum())} terminated"]
        parts += [f"{int((self.truncated & ~self.terminated).sum())} truncated", f"{self.nbytes} bytes"]
        return f"EpisodePack({', '.join(parts)})"


def _fits(track: Track, num: int) -> bool:
    """Whether a track of one array, or of infos, has so many items, of a kind that it may have; nested ones: False."""
    data = track.data
    if type(data) is np.ndarray:
        return len(data) == num and is_kind_of(track.field, data)
    return track.field is INFOS and len(data) == num


def counted(whole: np.ndarray, returns: np.ndarray, num_steps: int) -> list[str]:
    """Words on episodes of so many steps: the whole ones, of the mask [n], with their mean return, and chunks."""
    num, steps = int(whole.sum()), f"{num_steps} step{'s' * (num_steps != 1)}"
    with np.errstate(over="ignore", invalid="ignore"):
        mean = [f"mean return {returns[whole].mean():g}"] if num else []
    if num == len(whole):
        return [f"{num} episode{'s' * (num != 1)}", steps, *mean]
    chunks = f"{len(whole) - num} chunk{'s' * (len(whole) - num != 1)}"
    wholes = [f"{num} whole episode{'s' * (num != 1)} with {mean[0]}"] if num else []
    return [*wholes, chunks, steps]


def segment_sums(values: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """The sums [n] of `values[starts[i]:stops[i]]` in float64; parts in order that do not overlap, and may be empty."""
    there = starts < stops
    if there.all() and len(there) and (starts[1:] == stops[:-1]).all():
        return _sums_from(values[: int(stops[-1])], starts)
    sums = np.zeros(len(starts))
    if there.any():
        bounds = np.stack([starts[there], stops[there]], axis=1).reshape(-1)
        sums[there] = _sums_from(values[: int(bounds[-1])], bounds[:-1])[::2]
    return sums


def _sums_from(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The sums [n] from each start to the next one, of the last to the end."""
    with np.errstate(over="ignore", invalid="ignore"):  # of infinite values
        return np.add.reduceat(values, starts, dtype=np.float64)


def _offsets(sizes: np.ndarray) -> np.ndarray:
    offsets = np.zeros(len(sizes) + 1, np.int64)
    sizes.cumsum(out=offsets[1:])
    return _frozen(offsets)


def _frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def _from_pieces(*pieces: Any) -> EpisodePack:
    return EpisodePack.of(*pickling.from_pickle_parts(*pieces))

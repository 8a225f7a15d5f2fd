"""`VectorRecorder`: records the steps of N environments as arrays, and returns them as a pack of episodes.

One row per vector step is copied into preallocated blocks. No Python code runs per environment until `take` copies the
rows environment after environment, with one gather per track. Endings cost nothing while stepping: `Boundaries` finds
them later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import DTypeLike

from episodes.errors import EpisodeStateError, InvalidArgument
from episodes.facts.ending import codes_of
from episodes.facts.facts import PackFacts, objects, own_custom_data, random_ids
from episodes.facts.policy_versions import UNKNOWN, VersionColumn, checked_version
from episodes.pack import EpisodePack
from episodes.recorder.boundaries import Boundaries, Row, final_observations_of, infos_at_ends
from episodes.recorder.chunk_layout import Chunks, find_chunks
from episodes.recorder.info_rows import checked_infos, checked_outputs
from episodes.recorder.ongoing import OngoingEpisodes
from episodes.recorder.recent_rows import RecentRows
from episodes.recorder.recorded_rows import LastObservations, RecordedRows, ResetInfo, last_observations_at
from episodes.recorder.row_blocks import gather
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import Tracks, nested
from episodes.tracks.infos import Infos
from episodes.tracks.spaces import checked_row_space
from episodes.tracks.validation import checked_count, checked_number_dtype

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from episodes.data_types import Items

_NONE = np.zeros(0, np.intp)


class VectorRecorder:
    """Recorder of the steps of a vector environment, which `take` returns as a pack of episodes.

    `NEXT_STEP`: the row after an ending is the reset observation and no step. `SAME_STEP`: the returned row belongs to
    the next episode, and the last observation is in `infos["final_obs"]`. `DISABLED`: call `reset` with the mask of the
    environments that were reset, before the next `step`.

    A call that raises an error changes nothing. Rows are copied, those of vector infos too.

    Args:
        num_envs: number of environments N.
        observation_space: space of one environment's observations, or None. The track has its dtypes.
        action_space: space of one environment's actions, likewise.
        autoreset_mode: how the vector environment resets its environments (`gymnasium.vector.AutoresetMode`).
        len_lookback_buffer: number of lookback steps of a chunk that continues an episode.
        reward_dtype: dtype of the rewards that `take` returns. None for the dtype of the environment.

    Attributes:
        episodes: the ongoing episodes.
        taken_envs: environment of each chunk of the last take, int [n].
        taken_rows: vector step since the take before, from 1, with the last step of each of these chunks, int [n].
        stand_ins: items [...] by key, for lookback steps without that extra model output, in place of zeros. A policy's
            initial state as "state_out" makes a learner start after random steps as the policy did.
        acting_pipeline: rewriters and views with which the policy acts, as JSON text, or None. Chunks store it.

    Raises:
        InvalidArgument: `num_envs` or the lookback is out of range, the autoreset mode is unknown, or items of a space
            hold no array (`Dict` and `Tuple` spaces without parts).
        WrongType: a space is not a Gymnasium space, or `reward_dtype` is not a dtype of numbers.
    """

    def __init__(
        self,
        num_envs: int,
        observation_space: spaces.Space | None = None,
        action_space: spaces.Space | None = None,
        *,
        autoreset_mode: AutoresetMode | str,
        len_lookback_buffer: int = 0,
        reward_dtype: DTypeLike | None = None,
    ) -> None:
        num_envs = checked_count("num_envs", num_envs)
        len_lookback_buffer = checked_count("len_lookback_buffer", len_lookback_buffer, 0)
        self.num_envs = num_envs
        self.observation_space = checked_row_space("observation_space", observation_space)
        self.action_space = checked_row_space("action_space", action_space)
        boundaries = Boundaries(num_envs, autoreset_mode)
        self.autoreset_mode = boundaries.mode
        self.len_lookback_buffer = len_lookback_buffer
        self.reward_dtype = None if reward_dtype is None else checked_number_dtype("reward_dtype", reward_dtype)
        self.episodes = OngoingEpisodes(self, self._all_ongoing)
        self.taken_envs = self.taken_rows = _NONE
        self._rows = RecordedRows(num_envs, observation_space, action_space)
        self.stand_ins = self._rows.stand_ins
        self._history = len_lookback_buffer  # number of rows before the base row that a take keeps
        self._since = _SinceTake(0, np.zeros(num_envs, np.int64), np.full(num_envs, "", "U32"))
        self.acting_pipeline: str | None = None
        self._classified = _Classified(1, boundaries)  # row 0 has no step
        self._carry_over: Callable[[], None] | None = None  # see `_finish_take`

    @property
    def policy_version(self) -> int | None:
        """Version number of the policy that takes the next steps, or None if it is unknown."""
        version = self._since.versions[-1][1]
        return None if version == UNKNOWN else version

    @policy_version.setter
    def policy_version(self, version: int | None) -> None:
        number = checked_version(version)
        if number != self._since.versions[-1][1]:
            self._finish_take()
            self._since.versions.append((self._rows.num_rows, number))

    # --- recording ---------------------------------------------------------------------------------------------

    def reset(
        self, observations: Items, infos: dict[str, Any] | None = None, reset_mask: np.ndarray | None = None
    ) -> None:
        """Start new episodes with the reset observations [N, ...].

        An ongoing episode in these environments ends: as its last step's flags say if there is one, else as a cut
        chunk.

        Args:
            observations: nested arrays [N, ...].
            infos: infos of the vector environment.
            reset_mask: environments that are reset, bool [N]. None for all.

        Raises:
            EpisodeStateError: the first reset is not of all environments.
            ShapeMismatch, TrackMismatch: the observations do not fit the space or earlier ones.
            WrongType: `infos` is not a dict.
        """
        mask, infos = self._classified.boundaries.checked_mask(reset_mask), checked_infos(infos)
        if self._rows.num_rows:
            self._replace_newest(observations, infos, mask)
        elif mask.all():
            self._rows.begin(observations, infos)
        else:
            raise EpisodeStateError("the first reset must be of every environment; leave reset_mask out")

    def _replace_newest(self, observations: Items, info: dict[str, Any], mask: np.ndarray) -> None:
        """Replace the newest observations by reset observations, and store the replaced last observations separately.

        Environments 1 and 2 are reset after row 2. In row 2, the episode of 2 has only begun:

            env        0   1   2                  env        0   1   2
            row 1      o   o   o                  row 1      o   o   o
            row 2      o   x   y      becomes     row 2      o   r   r        `last_observations`: (row 2, env 1, x)

        x is the last observation of an episode with steps. y is that of an episode without steps, and is dropped.

        The order of the writes makes it safe to repeat a reset that was interrupted.
        """
        boundaries, rows, since = self._classify().copy(), self._rows, self._since
        at, envs = rows.num_rows - 1, np.flatnonzero(mask)
        reset_rows = nested.take(rows.fitted_observations(observations, self.num_envs), envs)
        ended = envs[:0]
        if at > since.base:
            ended = np.flatnonzero(mask & (boundaries.ages > 0) & ~rows.replaced.data[at])
        slot, slot_before = rows.infos.add(info), rows.infos.slots[at]
        if len(ended):
            last = gather(rows.observations, at * self.num_envs + ended)
            since.last_observations.append(LastObservations(at, ended, last, slot_before))
        if slot or slot_before:
            rows.infos.resets.append(ResetInfo(at, envs, slot))
        rows.mark_replaced(at, envs)
        rows.put_observations(at, envs, reset_rows)
        if at == since.base:
            since.ages[envs] = 0
            since.ids[envs] = ""
        for env in envs.tolist() if since.named or since.custom else ():
            since.named.pop((at, env), None)
            since.custom.pop((at, env), None)
        boundaries.reset(mask)
        self._classified = self._classified._replace(boundaries=boundaries)

    def cut(self, envs: np.ndarray) -> None:
        """Cut the ongoing episodes of the environments `envs`, int [k]: in their next row they were reset, for example
        because an environment failed and was replaced. The action, reward and flags of that row are ignored.

        Raises:
            EpisodeStateError: the autoreset mode is not next-step.
        """
        boundaries = self._classify().copy()
        boundaries.cut(envs)
        self._classified = self._classified._replace(boundaries=boundaries)

    def step(
        self,
        observations: Items,
        actions: Items,
        rewards: ArrayLike,
        terminateds: np.ndarray,
        truncateds: np.ndarray,
        infos: dict[str, Any] | None = None,
        extra_model_outputs: Mapping[str, Any] | None = None,
        *,
        final_observations: Items | None = None,
    ) -> None:
        """Record one vector environment step: actions, and the resulting observations and rewards, [N, ...] each.

        Args:
            observations: nested arrays [N, ...].
            actions: nested arrays [N, ...].
            rewards: numbers [N].
            terminateds: bool [N].
            truncateds: bool [N].
            infos: infos of the vector environment.
            extra_model_outputs: nested arrays [N, ...] by name.
            final_observations: last observations [k, ...] of the k environments whose episodes end, in order. By
                default `infos["final_obs"]` (same-step autoreset only).

        Raises:
            EpisodeStateError: a reset is missing.
            ShapeMismatch, TrackMismatch: an item does not fit the space or earlier ones.
            WrongType: `infos` or `extra_model_outputs` is not a dict.
        """
        if self._carry_over is not None:
            self._finish_take()
        rows = self._rows
        at = rows.num_rows
        if not at:
            raise EpisodeStateError("step before the reset; call reset(observations, infos) first")
        if type(infos) is not dict:
            infos = checked_infos(infos)
        outputs: Any = extra_model_outputs
        if type(outputs) is not dict:
            outputs = checked_outputs(outputs)
        if self.autoreset_mode is AutoresetMode.DISABLED and np.count_nonzero(rows.done(at - 1)):
            self._classify().check_step_may_come()
        rows.write(at, (observations, actions, rewards, terminateds, truncateds), outputs, self._since.base)
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            slot = self._put_last_observations_aside(at, infos, final_observations)
        else:
            slot = rows.infos.add(infos) if infos else 0
        rows.commit(slot)

    def _put_last_observations_aside(self, at: int, infos: dict[str, Any], final_observations: Items | None) -> int:
        """Store the last observations of episodes that ended in row `at`. Return the slot of the row's infos."""
        rows, last_observations = self._rows, self._since.last_observations
        while last_observations and last_observations[-1].row >= at:  # left by a step that was interrupted
            last_observations.pop()
        ended = rows.done(at)
        envs = ended.nonzero()[0]
        rows.replaced.data[at] = ended
        if not len(envs):
            return rows.infos.add(infos) if infos else 0
        rows.any_replaced = True
        last = (
            final_observations_of(infos, envs, self.observation_space)
            if final_observations is None
            else final_observations
        )
        last = nested.map_leaves(np.array, rows.fitted_observations(last, len(envs)))
        rows.widen_observations(last)
        last_infos, infos = infos_at_ends(infos)
        slot_of_last, slot = rows.infos.add(last_infos), rows.infos.add(infos)
        last_observations.append(LastObservations(at, envs, last, slot_of_last))
        return slot

    def _classify(self) -> Boundaries:
        """Find steps and resets in unclassified vector steps. Return the state of the episodes afterwards."""
        self._finish_take()
        rows, known = self._rows, self._classified
        first, last = known.num_rows, rows.num_rows - 1
        if first > last:
            return known.boundaries
        boundaries = known.boundaries.copy()
        if first < last:
            span = slice(first, last + 1)
            classified = boundaries.classify_rows(rows.done(span))
            rows.mark_steps(span, classified.stepped)
            newest = boundaries.last_row(classified)
            boundaries.commit_rows(classified)
        else:
            newest = boundaries.classify(rows.terminateds.data[last], rows.truncateds.data[last])
            if len(newest.reset):
                steps = np.ones(self.num_envs, bool)
                steps[newest.reset] = False
                rows.mark_steps(last, steps)
            boundaries.commit(newest)
        self._classified = _Classified(last + 1, boundaries, newest)
        return boundaries

    # --- the ongoing episodes ------------------------------------------------------------------------------------

    @property
    def ages(self) -> np.ndarray:
        """Number of steps in each environment's episode, int [N]. An ended episode counts until the reset."""
        return self._classify().ages

    @property
    def depths(self) -> np.ndarray:
        """Number of past steps of each environment's episode that `recent` can return, int [N]."""
        return np.minimum(self.ages, self._rows.lookback_at(self._rows.num_rows - 1))

    @property
    def newest(self) -> Row:
        """Environments that stepped, ended or began an episode in the newest vector step.

        Raises:
            EpisodeStateError: no step was recorded yet.
        """
        self._classify()
        newest = self._classified.newest
        if newest is None:
            raise EpisodeStateError("no row yet; call step first")
        return newest

    def recent(self, track: str, num_items: int) -> tuple[Any, np.ndarray]:
        """Return the newest items of a time series, [k, N, ...], and a mask [k, N] of the items in ongoing episodes.

        Raises:
            InvalidArgument: `num_items` is less than 1.
        """
        if num_items < 1:
            raise InvalidArgument(f"recent({track!r}, {num_items}): give at least 1")
        self._history = max(self._history, num_items - 1)
        return self._rows.recent(track, num_items, self.ages)

    def ongoing(self, env: int) -> SingleAgentEpisode:
        """Return an environment's ongoing episode since the last `take`, with all stored earlier steps as lookback.

        Changes of its `custom_data` are stored in the pack of the next take, and continue with the episode.
        """
        return self._ongoing(np.array([env]))[0]

    def _all_ongoing(self) -> list[SingleAgentEpisode]:
        return self._ongoing(np.arange(self.num_envs))

    def _ongoing(self, envs: np.ndarray) -> list[SingleAgentEpisode]:
        """Return the ongoing episodes of the environments `envs`, with the steps since the last `take` and the
        lookback.
        """
        ages, last = self.ages[envs], self._rows.num_rows - 1
        lengths = np.minimum(ages, last - self._since.base)
        lookbacks = np.minimum(ages - lengths, self._rows.lookback_at(self._since.base))
        return self._as_named_episodes(Chunks(envs, np.full(len(envs), last), lengths, lookbacks))

    def ended(self) -> EpisodePack:
        """Return the episodes that ended in the newest vector step as a pack, with the steps since the last `take`."""
        return self._pack(self._newest_chunks(), name=True)

    def ended_episodes(self) -> list[SingleAgentEpisode]:
        """Return the episodes that ended in the newest vector step as a list, with the steps since the last `take`.

        Changes of their `custom_data` are stored in the pack of the next take.
        """
        return self._as_named_episodes(self._newest_chunks())

    def _newest_chunks(self) -> Chunks:
        """Return the `Chunks` (positions in the recording) of the episodes that ended in the newest vector step."""
        self._classify()
        last = self._rows.num_rows - 1
        envs = self.newest.ended if last > self._since.base else _NONE
        chunks = self._find_chunks(envs)
        chunks = chunks.select(chunks.last_rows == last)
        return replace(chunks, envs=envs[chunks.envs])

    def _as_named_episodes(self, chunks: Chunks) -> list[SingleAgentEpisode]:
        """Return the episodes of `chunks` as a list. The next `take` will give them the same ids and custom data."""
        episodes = list(self._pack(chunks, name=True))
        for episode, key in zip(episodes, chunks.places(), strict=True):
            episode.with_custom_data(self._since.custom.setdefault(key, {}))
        return episodes

    def count_steps(self) -> int:
        """Return the number of steps recorded since the last `take`, over all environments."""
        return self._classify().num_steps - self._since.num_steps

    # --- taking --------------------------------------------------------------------------------------------------

    def take(self) -> EpisodePack:
        """Return the steps recorded since the last call as a pack of episodes. Ongoing episodes continue afterwards.

        Ongoing episodes with a step are returned as cut chunks. The next take continues them with the same id, their
        `t_started`, and `len_lookback_buffer` lookback steps. An interrupted take loses nothing.

        Raises:
            EpisodeStateError: there was no reset yet.
        """
        if not self._rows.num_rows:
            raise EpisodeStateError("take before the reset; call reset(observations, infos) first")
        chunks = self._find_chunks(slice(None))
        pack = self._pack(chunks)
        last_rows = chunks.last_rows - self._since.base
        carry_over = self._prepare_carry_over(chunks, pack) if self._rows.num_rows - 1 > self._since.base else None
        self.taken_envs, self.taken_rows = chunks.envs, last_rows
        self._carry_over = carry_over
        return pack

    def _finish_take(self) -> None:
        """Free the recorded steps that the last `take` returned, except those kept as lookback.

        The next call does this, so that an interrupted take loses nothing.
        """
        if self._carry_over is not None:
            self._carry_over()  # may be called twice
            self._carry_over = None

    def continue_from(
        self, recent: RecentRows, boundaries: Boundaries, ids: np.ndarray, custom_data: Mapping[int, dict[str, Any]]
    ) -> None:
        """Continue the ongoing episodes of another recorder. Steps that were not taken from this one are dropped.

        Args:
            recent: the newest rows of the other recorder, which become lookback.
            boundaries: its boundaries.
            ids: ids of the ongoing episodes, str [N], "" for episodes without a step.
            custom_data: custom data of the ongoing episodes, by environment.
        """
        rows = recent.rows()
        rows.stand_ins, base = self.stand_ins, rows.num_rows - 1
        self.__dict__.update(
            _carry_over=None,
            _rows=rows,
            _classified=_Classified(base + 1, boundaries),
            _since=_SinceTake(
                base,
                boundaries.ages,
                np.asarray(ids, "U32"),
                boundaries.num_steps,
                custom={(base, env): dict(data) for env, data in custom_data.items()},
                versions=[(0, self._since.versions[-1][1])],
            ),
        )

    def _find_chunks(self, envs: slice | np.ndarray) -> Chunks:
        """Return the chunks, lookback included, that the environments `envs` have recorded since the last `take`."""
        self._classify()
        span = slice(self._since.base, self._rows.num_rows)
        room = np.minimum(self._since.ages, min(self.len_lookback_buffer, self._rows.lookback_at(self._since.base)))
        return find_chunks(
            self._rows.done(span)[:, envs],
            self._rows.replaced.data[span, envs],
            self._rows.resets.data[span, envs],
            room[envs],
            base=self._since.base,
        )

    def _pack(self, chunks: Chunks, name: bool = False) -> EpisodePack:
        """Return the pack of recorded chunks, with copied arrays.

        Args:
            name: whether the next `take` gives these chunks the same ids.
        """
        num_envs, rows = self.num_envs, self._rows
        index = chunks.observation_index(num_envs)
        last = chunks.last_rows * num_envs + chunks.envs
        stepped = chunks.lengths > 0
        moved = np.flatnonzero(rows.replaced.gather(last) & stepped) if rows.any_replaced else _NONE
        ends = which_last = None
        observations = gather(rows.observations, index)
        if len(moved):
            ends = (chunks.lengths + chunks.lookbacks + 1).cumsum()[moved] - 1
            which_last, finals = last_observations_at(self._since.last_observations, last[moved], num_envs)
            nested.map_leaves(lambda leaf, values: leaf.__setitem__(ends, values), observations, finals)
        actions, rewards, extras = rows.steps(chunks.step_index(num_envs))
        from_base = chunks.start_rows == self._since.base
        rewards = rewards if self.reward_dtype is None else rewards.astype(self.reward_dtype, copy=False)
        columns = Tracks.finished(observations, self._infos_at(index, ends, which_last), actions, rewards, extras)
        terminated, truncated = (flags.gather(last) & stepped for flags in (rows.terminateds, rows.truncateds))
        customs = [self._since.custom.get(key) for key in chunks.places()] if self._since.custom else None
        facts = PackFacts(
            ids=nested.frozen(self._ids_of(chunks, from_base, name)),
            t_started=nested.frozen(np.where(from_base, self._since.ages[chunks.envs], 0)),
            endings=nested.frozen(codes_of(terminated, truncated)),
            policy_versions=self._versions_of(chunks),
            acting_pipelines=objects([self.acting_pipeline] * len(chunks.envs)),
            observation_space=self.observation_space,
            action_space=self.action_space,
            custom_data=own_custom_data(customs),
        )
        pack = EpisodePack.of(columns, facts, chunks.lengths, chunks.lookbacks)
        pack.check()
        return pack

    def _versions_of(self, chunks: Chunks) -> VersionColumn | None:
        """Return the policy versions of the chunks' steps, or None if no version was ever set."""
        if self._since.versions == [(0, UNKNOWN)]:
            return None
        changes, versions = np.array(self._since.versions).T
        return VersionColumn.of_rows(changes, versions, chunks.start_rows + 1, chunks.lengths)

    def _infos_at(self, index: np.ndarray, ends: np.ndarray | None, which_last: np.ndarray | None) -> Infos:
        """Return the infos of recorded observations, given the observations' indices.

        Args:
            index: the observations, as row * N + environment.
            ends: places in `index` of last observations that the rows do not contain (same-step autoreset).
            which_last: for each of `ends`, its entry in the list of last observations.
        """
        infos, slots = self._rows.infos, np.array(self._rows.infos.slots)
        if infos.num_slots == 1:
            return Infos({}, len(index))
        num = self.num_envs
        shifts = (slots - np.arange(len(slots))) * num  # from row * N + env to slot * N + env
        if infos.resets:
            shifts = shifts.repeat(num)
            for entry in infos.resets:
                shifts[entry.row * num + entry.envs] = (entry.info_slot - entry.row) * num
            at = index + shifts[index]
        else:
            at = index + (shifts[0] if (shifts == shifts[0]).all() else shifts[index // num])
        if which_last is not None:
            last_slots = np.array([entry.info_slot for entry in self._since.last_observations])
            at[ends] = last_slots[which_last] * num + index[ends] % num
        return infos.gather(at)

    def _ids_of(self, chunks: Chunks, from_base: np.ndarray, name: bool) -> np.ndarray:
        """Return the episode id of each chunk (part of an episode). Episodes without an id get a new one.

        `from_base`, bool [n], is True for chunks that continue an episode of the last `take`. With `name`, the next
        `take` uses the new ids too.
        """
        ids = random_ids(len(chunks.envs))
        at_base = from_base.nonzero()[0]
        going_on = self._since.ids[chunks.envs[at_base]]
        known = going_on != ""
        ids[at_base[known]] = going_on[known]
        if name or self._since.named:
            self._assign_ids(chunks, ids, set(at_base[known].tolist()), name)
        return ids

    def _assign_ids(self, chunks: Chunks, ids: np.ndarray, known: set[int], name: bool) -> None:
        """Replace random ids in `ids` by the ids that earlier reads of the same episodes returned.

        Args:
            known: indices of chunks whose id is known from earlier chunks.
            name: whether to keep the ids for the next `take`.
        """
        for i, key in enumerate(chunks.places()):
            if name and i not in known:
                self._since.named.setdefault(key, random_ids(1).item())
            ids[i] = self._since.named.get(key, ids[i])

    def _prepare_carry_over(self, chunks: Chunks, pack: EpisodePack) -> Callable[[], None]:
        """Return a function that drops all vector steps except the newest and its lookback. It may be called twice."""
        since, last = self._since, self._rows.num_rows - 1
        is_open = chunks.last_rows == last
        if self._rows.any_replaced:
            is_open &= ~self._rows.replaced.data[last, chunks.envs]
        open_ = is_open.nonzero()[0]
        envs = chunks.envs[open_]
        ids = np.zeros_like(since.ids)  # empty strings
        ids[envs] = pack.ids[open_]
        for (row, env), id_ in since.named.items():
            if row == last:
                ids[env] = id_
        boundaries = self._classified.boundaries
        ages, first = boundaries.ages, max(last - self._history, 0)
        began, base = last - np.minimum(ages, last - since.base) if since.custom else ages, last - first
        custom = {(base, e): dict(data) for (row, e), data in since.custom.items() if row == began[e]}
        classified = self._classified._replace(num_rows=base + 1)
        versions = [(0, since.versions[-1][1])]
        afterwards = _SinceTake(base, ages, ids, boundaries.num_steps, custom=custom, versions=versions)
        trim_rows = self._rows.prepare_trim(first)

        def carry_over() -> None:
            """Drop the rows that were taken, and keep the rows that ongoing episodes need."""
            trim_rows()
            self._classified, self._since = classified, afterwards

        return carry_over


@dataclass(slots=True)
class _SinceTake:
    """State of a recorder since the last take, apart from its rows. A take replaces it by one assignment.

    Places of episodes are pairs of their first row and their environment.
    """

    base: int  # the newest row at the last take
    ages: np.ndarray  # of the episodes at that row, int [N]
    ids: np.ndarray  # of the episodes that continue at that row, str [N]
    num_steps: int = 0  # steps of all environments before the last take
    named: dict[tuple[int, int], str] = field(default_factory=dict)  # ids that were read before the take, by place
    custom: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)  # custom data that was read, by place
    last_observations: list[LastObservations] = field(default_factory=list)
    versions: list[tuple[int, int]] = field(default_factory=lambda: [(0, UNKNOWN)])  # (row, version from that row on)


class _Classified(NamedTuple):
    """Classification of the first `num_rows` recorded vector steps, and the state of the episodes afterwards."""

    num_rows: int
    boundaries: Boundaries
    newest: Row | None = None

"""`ReplayRecorder`: writes the steps of a vector environment directly into a replay buffer.

It supports the same three autoreset modes as `VectorRecorder`. Rows are staged, with one copy per column, and written
to the ring many at a time: when the buffer is read, when other steps are added, or when the stage is full. A few numpy
calls then compute for all rows which of them are steps, how the steps are linked, and which steps they evict.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from episodes.errors import EpisodeStateError, InvalidArgument, ShapeMismatch
from episodes.facts.policy_versions import UNKNOWN, checked_version
from episodes.recorder.boundaries import Boundaries, Row, final_observations_of, infos_at_ends
from episodes.recorder.info_rows import checked_infos, checked_outputs
from episodes.recorder.ongoing import OngoingEpisodes
from episodes.recorder.recent_rows import RecentRows
from episodes.recorder.row_blocks import as_numbers
from episodes.recorder.vector_recorder import VectorRecorder
from episodes.replay.read_episodes import episode_at
from episodes.replay.ring.episode_table import NO_FACTS, NONE
from episodes.replay.ring.linked_ring import ACTIONS, REWARDS, TERMINATEDS, TRUNCATEDS, LinkedRing
from episodes.replay.staged_rows import StagedRows, cast_to_space
from episodes.replay.staged_steps import Continuation, StagedRow, StagedSteps
from episodes.replay.stored_outputs import check_same_outputs, checked_extra, checked_output_names, chosen_outputs
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested
from episodes.tracks.spaces import checked_row_space, dtypes_of, regular_rows
from episodes.tracks.validation import checked_count

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from episodes.data_types import Items, NestedArrays

_PLAIN = StagedRow()
OBSERVATIONS = "observations"
_NOTHING: dict[str, Any] = {}
_NO_ENVIRONMENTS = np.zeros(0, np.intp)


class ReplayRecorder:
    """Recorder that writes the steps of `num_envs` environments into a replay buffer without building episodes.

    `reset` and `step` have the arguments of `VectorRecorder.reset` and `VectorRecorder.step`. Other episodes may be
    added to the buffer between two steps. A call that raises an error changes nothing. Call `reset` after `clear` or
    `set_state` of the buffer.

    Args:
        ring: ring of the buffer.
        num_envs: number of environments N.
        autoreset_mode: how the vector environment resets its environments.
        observation_space: space of one environment's observations, or None.
        action_space: space of one environment's actions, or None.
        len_lookback_buffer: number of past rows that are kept for `episodes.recent`.
        keys: names of the extra model outputs to store. None for all.

    Attributes:
        keys: names of the extra model outputs that are stored. None for all.

    Raises:
        InvalidArgument: `num_envs` is more than half the ring's capacity, or another argument is out of range, or items
            of a space hold no array.
        TrackMismatch: the buffer stores other outputs than `keys`.
        WrongType: a space is not a Gymnasium space, or `keys` is not a list of names.
    """

    def __init__(
        self,
        ring: LinkedRing,
        num_envs: int,
        autoreset_mode: AutoresetMode | str,
        observation_space: spaces.Space | None = None,
        action_space: spaces.Space | None = None,
        *,
        len_lookback_buffer: int = 0,
        keys: Collection[str] | None = None,
    ) -> None:
        num_envs = checked_count("num_envs", num_envs)
        if 2 * num_envs > ring.capacity:
            raise InvalidArgument(
                f"num_envs={num_envs}: give at most half the buffer's capacity of {ring.capacity} steps"
            )
        depth = checked_count("len_lookback_buffer", len_lookback_buffer, 0)
        self.num_envs = num_envs
        boundaries = Boundaries(num_envs, autoreset_mode)
        self.autoreset_mode = boundaries.mode
        self._can_classify_later = self.autoreset_mode is AutoresetMode.NEXT_STEP
        self._ring = ring
        self.keys: list[str] | None = None
        self.store_outputs(keys)
        self._spaces = (
            checked_row_space("observation_space", observation_space),
            checked_row_space("action_space", action_space),
        )
        self._dtypes = {OBSERVATIONS: dtypes_of(observation_space), ACTIONS: dtypes_of(action_space)}
        self._recent = RecentRows(num_envs, *self._spaces, depth=depth)
        self._environments = np.arange(num_envs)
        self._staged = StagedSteps(boundaries)
        self._limit = 0  # of staged rows
        self._plain: StagedRows | None = None  # the stage, if rows like the last one only need to be copied into it
        self._newest: Any = None  # the newest observations, if no older rows are kept
        self._generation = 0  # of the ring, at the last reset of all environments

    def store_outputs(self, keys: Collection[str] | None) -> None:
        """Store the extra model outputs `keys` of the next steps. None: all outputs.

        Raises:
            TrackMismatch: the buffer stores other outputs already.
            WrongType: `keys` is not a list of names.
        """
        if keys is not None:
            keys = checked_output_names(keys)
            check_same_outputs(keys, self._ring.tracks)
        self.keys = keys

    @property
    def episodes(self) -> OngoingEpisodes:
        """Unfinished episodes of the environments, without steps that the replay buffer evicted."""
        return OngoingEpisodes(self)

    @property
    def policy_version(self) -> int | None:
        """Version number of the policy that takes the next steps, or None if unknown."""
        return self._staged.version

    @policy_version.setter
    def policy_version(self, version: int | None) -> None:
        number = checked_version(version)
        if version != self._staged.version:
            with self._ring.lock:
                self._ring.flush_staged()  # the staged rows have the version before
                self._staged.version, self._plain = None if number == UNKNOWN else number, None

    @property
    def acting_pipeline(self) -> str | None:
        """JSON text that describes the policy's preprocessing (rewriters and views), or None. New episodes store it."""
        return self._staged.facts.acting_pipeline

    @acting_pipeline.setter
    def acting_pipeline(self, text: str | None) -> None:
        if text != self._staged.facts.acting_pipeline:
            with self._ring.lock:
                self._ring.flush_staged()  # the staged episodes have the pipeline before
                self._staged.facts = NO_FACTS._replace(acting_pipeline=text)

    @property
    def is_reset(self) -> bool:
        """Whether `step` may be called: all environments were reset, and their current episodes are still stored.

        False before the first reset, after `clear` or `set_state` of the buffer, and after other steps have evicted the
        ongoing episodes.
        """
        ring = self._ring
        with ring.lock:
            if ring.staged is self._staged and ring.work is None:
                return self._generation == ring.generation  # other writers flush staged rows first, so there was none
            ring.flush_staged()
            tails = self._staged.tails
            alone = (ring.head, ring.rows_head) == (tails.head, tails.rows_head)
            return self._is_current and (alone or not self._why_cannot_continue(self.num_envs))

    @property
    def _is_current(self) -> bool:
        """Whether the buffer was neither cleared nor restored since the last reset of all environments."""
        return self._generation == self._ring.generation

    @property
    def _can_write_directly(self) -> bool:
        """Whether the next step needs no check, because no other writer has changed the buffer since the last step."""
        ring, tails = self._ring, self._staged.tails
        if ring.staged is not None or self._staged.rows or ring.head != tails.head or ring.rows_head != tails.rows_head:
            return False
        return self._is_current and self._limit > 1

    def reset(
        self, observations: Items, infos: dict[str, Any] | None = None, reset_mask: np.ndarray | None = None
    ) -> None:
        """Start new episodes with the reset observations [N, ...]. Unfinished episodes of these environments are cut.

        Args:
            observations: nested arrays [N, ...].
            infos: infos of the vector environment.
            reset_mask: environments that are reset, bool [N]. None for all.

        Raises:
            EpisodeStateError: the first reset is not of all environments, or other episodes can no longer continue.
            TrackMismatch, ShapeMismatch: the observations differ from the stored ones.
            WrongType: `infos` is not a dict.
        """
        with self._ring.lock:
            self._ring.flush_staged()
            mask, infos = self._checked_mask(reset_mask), checked_infos(infos)
            self._reset(self._arrays(OBSERVATIONS, observations), infos, mask)

    def _reset(self, observations: NestedArrays, infos: dict[str, Any], mask: np.ndarray) -> None:
        """Begin episodes of the environments in `mask`, bool [N]: write their first observations to the ring. Staged
        rows must have been written before.
        """
        ring, everyone = self._ring, bool(mask.all())
        if not everyone:
            self._check_other_writes(0)
        ring.check(observations, {})
        slot = self._staged.infos.add(infos)
        ring.create_missing(observations, {})
        addition, continuation = self._staged.build_reset(ring, observations, slot, mask)
        after = continuation.tails
        ring.widen(max(int((self._environments + after.rows_head - after.rows).max()), 2 * self.num_envs))
        ring.add(addition)
        self._staged.proceed(continuation)
        self._generation = ring.generation
        recent = self._recent_rows()
        if everyone:
            recent.begin(observations, infos)
        else:
            recent.replace(observations, infos, np.flatnonzero(mask))

    def cut(self, envs: np.ndarray) -> None:
        """Cut the ongoing episodes of the environments `envs`, as `VectorRecorder.cut` does.

        Raises:
            EpisodeStateError: the autoreset mode is not next-step.
        """
        with self._ring.lock:
            self._ring.flush_staged()
            self._staged.proceed(self._staged.continuation_of_cut(envs))

    def _checked_mask(self, reset_mask: np.ndarray | None) -> np.ndarray:
        """Return the environments to reset, bool [N]. Raise `EpisodeStateError` if the first reset is not of all."""
        mask = self._staged.tails.boundaries.checked_mask(reset_mask)
        if not self._is_current and not mask.all():
            raise EpisodeStateError("the first reset must be of every environment; leave reset_mask out")
        return mask

    def step(
        self,
        observations: Items,
        actions: Items,
        rewards: ArrayLike,
        terminateds: ArrayLike,
        truncateds: ArrayLike,
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
            EpisodeStateError: a reset is missing, or the ongoing episodes were evicted.
            TrackMismatch, ShapeMismatch: the items differ from the stored ones.
            WrongType: `infos` or `extra_model_outputs` is not a dict.
        """
        ring = self._ring
        with ring.lock:
            plain = self._plain
            if (
                plain is not None
                and (infos is None or infos == {})
                and (ring.staged is self._staged or self._can_write_directly)
                and (extra_model_outputs is None if self.keys is None else not self.keys)
                and ring.work is None
                and plain.put_arrays(len(self._staged.rows), observations, actions, rewards, terminateds, truncateds)
            ):
                ring.staged = self._staged
                self._staged.rows.append(_PLAIN)
                self._newest = observations
            else:
                flags = {TERMINATEDS: terminateds, TRUNCATEDS: truncateds}
                tracks = {ACTIONS: actions, REWARDS: rewards, **flags}
                outputs = checked_outputs(extra_model_outputs)
                self._step(observations, tracks, checked_infos(infos), outputs, final_observations)
            if len(self._staged.rows) >= self._limit:
                ring.flush_staged()

    def _step(
        self,
        observations: Any,
        tracks: dict[str, Any],
        infos: dict[str, Any],
        outputs: Mapping[str, Any],
        finals: Items | None,
    ) -> None:
        """Validate one vector step, convert it to arrays, and stage it in memory until the next write to the ring.

        Raises:
            EpisodeStateError: there was no reset, or an environment has ended and was not reset (autoreset disabled).
        """
        ring, staged, raw_tracks = self._ring, self._staged, tracks
        if ring.staged is not staged or ring.work is not None:
            ring.flush_staged()
        if not self._is_current:
            raise EpisodeStateError("step before the reset; call reset(observations, infos) first")
        if self.autoreset_mode is AutoresetMode.DISABLED:
            staged.classify().check_step_may_come()
        stored = outputs if self.keys is None else chosen_outputs(outputs, self.keys)
        tracks = {name: self._arrays(name, items) for name, items in (tracks | checked_extra(stored)).items()}
        observations, stage = self._arrays(OBSERVATIONS, observations), staged.stage
        if stage is None or not stage.fits(observations, tracks):
            ring.check(observations, tracks)
            ring.flush_staged()
            stage = StagedRows(observations, tracks, max(ring.capacity // self.num_envs - 1, 1))
        if not staged.rows:
            others_wrote = self._check_other_writes(self.num_envs)
            self._limit = 1 if others_wrote else stage.size
        ended = _NO_ENVIRONMENTS
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            ended = (tracks[TERMINATEDS] | tracks[TRUNCATEDS]).nonzero()[0]
        row = self._staged_row(ended, infos, finals)
        if self._recent_rows().keeps_earlier_rows:
            flags = (tracks[TERMINATEDS], tracks[TRUNCATEDS])
            self._recent.write((observations, raw_tracks[ACTIONS], raw_tracks[REWARDS], *flags), outputs)
        ring.create_missing(observations, tracks, staged.version is not None)
        stage.put(len(staged.rows), observations, tracks)
        ring.staged, staged.stage = staged, stage
        staged.rows.append(row)
        self._recent.commit(observations, infos)
        self._newest = None
        is_plain = self._can_classify_later and stage.is_plain and not self._recent.keeps_earlier_rows
        self._plain = stage if is_plain else None

    def _staged_row(self, ended: np.ndarray, infos: dict[str, Any], finals: Any) -> StagedRow:
        """Return the infos and final observations of a vector step as a `StagedRow`.

        Args:
            ended: environments [k] whose last observations are not in the row (same-step autoreset).
            finals: their last observations [k, ...], or None to take them from `infos`.

        Raises:
            ShapeMismatch: `finals` do not have one row for each of `ended`.
        """
        staged = self._staged
        if not len(ended):
            return StagedRow(staged.infos.add(infos)) if infos else _PLAIN
        if finals is None:
            finals = final_observations_of(infos, ended, self._spaces[0])
        finals = nested.map_leaves(lambda leaf: as_numbers("final_observations", leaf).copy(), finals)
        for leaf in nested.leaves(finals):
            if leaf.shape[:1] != (len(ended),):
                raise ShapeMismatch(f"final observations have shape {leaf.shape} for {len(ended)} endings")
        self._ring.observations.check(finals)
        last_infos, infos = infos_at_ends(infos)
        return StagedRow(staged.infos.add(infos), staged.infos.add(last_infos), finals)

    def _recent_rows(self) -> RecentRows:
        """Return the store of the newest vector steps, from which views such as frame stacking read.

        From now on each row may have to be kept.
        """
        if self._newest is not None:
            self._recent.commit(self._newest, _NOTHING)
        self._newest = self._plain = None
        return self._recent

    # --- the ongoing episodes ------------------------------------------------------------------------------------

    def count_steps(self) -> int:
        """Return the number of steps recorded so far, over all environments."""
        with self._ring.lock:
            return self._staged.classify().num_steps

    @property
    def newest(self) -> Row:
        """Environments that took a step, ended an episode or began an episode in the newest recorded vector step.

        Raises:
            EpisodeStateError: no step was recorded yet.
        """
        with self._ring.lock:
            self._staged.classify()
            newest = self._staged.classified.newest
        if newest is None:
            raise EpisodeStateError("no row yet; call step first")
        return newest

    @property
    def ages(self) -> np.ndarray:
        """Number of steps since the reset in each environment's current episode, int [N]."""
        with self._ring.lock:
            return self._staged.classify().ages

    @property
    def depths(self) -> np.ndarray:
        """Number of earlier steps of each environment's current episode that `recent` can still return, int [N]."""
        rows = self._recent_rows().keep_earlier_rows()
        return np.minimum(self.ages, rows.lookback_at(rows.num_rows - 1))

    def recent(self, track: str, num_items: int) -> tuple[Any, np.ndarray]:
        """Return observations, actions, rewards or an extra output of the newest `num_items` vector steps.

        See `OngoingEpisodes.recent`. Extra outputs need not be stored.

        Raises:
            InvalidArgument: `num_items` is less than 1.
        """
        if num_items < 1:
            raise InvalidArgument(f"recent({track!r}, {num_items}): give at least 1")
        return self._recent_rows().recent(track, num_items, self.ages)

    def ongoing(self, env: int) -> SingleAgentEpisode:
        """Return the part of environment `env`'s current episode that the buffer still stores.

        Changes of its `custom_data` are stored in the buffer.

        Raises:
            EpisodeStateError: the buffer no longer stores the current episodes.
        """
        with self._ring.lock:
            if not self.is_reset:
                raise EpisodeStateError("the ongoing episodes are no longer in the buffer; call reset")
            self._ring.flush_staged()
            return self._stored_episode(env) if self.ages[env] else self._episode_without_steps(env)

    def _episode_without_steps(self, env: int) -> SingleAgentEpisode:
        """Return environment `env`'s current episode, which has only its reset observation so far."""
        ring, row = self._ring, self._staged.tails.rows[env : env + 1]
        infos = ring.infos_at(row % ring.num_rows)
        if env not in self._staged.unstarted:
            self._staged.unstarted[env] = (ring.table.names.take(), {})
        id_, custom_data = self._staged.unstarted[env]
        episode = SingleAgentEpisode(
            id_=id_,
            observations=[nested.take(ring.observations.take(row % ring.num_rows), 0)],
            infos=[infos.item(0)],
            observation_space=self._spaces[0],
            action_space=self._spaces[1],
        ).to_numpy()
        episode.custom_data = custom_data
        return episode

    def ended_episodes(self) -> list[SingleAgentEpisode]:
        """Return the episodes that ended in the newest vector step, with those steps that the buffer still stores.

        Changes of their `custom_data` are stored in the buffer.
        """
        with self._ring.lock:
            self._ring.flush_staged()
            return [self._stored_episode(env) for env in self.newest.ended.tolist()]

    def _stored_episode(self, env: int) -> SingleAgentEpisode:
        """Return the stored steps of the environment's ongoing episode. Its custom data dict is the buffer's."""
        entry, table = int(self._staged.tails.entries[env]), self._ring.table
        episode = episode_at(self._ring, entry, *self._spaces)
        episode.custom_data = table.custom_data[entry] = table.custom_data.get(entry) or {}
        return episode

    def hand_over_to(self, recorder: VectorRecorder) -> None:
        """Transfer the unfinished episodes to another recorder. This recorder must be reset before further use."""
        with self._ring.lock:
            self._ring.flush_staged()
            self._hand_over_to(recorder)

    def _hand_over_to(self, recorder: VectorRecorder) -> None:
        """Transfer the ongoing episodes, with their ids and custom data, to a `VectorRecorder`, which continues them.

        This recorder then needs a reset before its next step. If nothing was recorded, nothing is changed.
        """
        if self._staged.classified.newest is None and not self._is_current:
            return  # nothing was recorded
        ids, table = np.full(self.num_envs, "", "U32"), self._ring.table
        custom_data: dict[int, dict[str, Any]] = {}
        for env, (id_, data) in self._staged.unstarted.items():  # hooks know their ids
            ids[env], custom_data[env] = id_, data
        if self.is_reset:
            for env in np.flatnonzero(self._staged.tails.previous != NONE).tolist():
                entry = int(self._staged.tails.entries[env])
                ids[env], custom_data[env] = table.id_of(entry), table.custom_data.get(entry) or {}
        recorder.continue_from(self._recent_rows(), self._staged.tails.boundaries, ids, custom_data)
        unused = Boundaries(self.num_envs, self.autoreset_mode)
        self._staged.proceed(Continuation(self._staged.tails._replace(boundaries=unused), None, {}))
        self._recent = RecentRows(self.num_envs, *self._spaces, depth=self._recent.depth)
        self._generation = -1

    # --- rows ----------------------------------------------------------------------------------------------------

    def _arrays(self, name: str, items: object) -> Any:
        """Convert a vector step's values to arrays [N, ...] in the dtypes of the spaces. Ending flags become bool.

        Raises:
            ShapeMismatch: an array has not `num_envs` rows, there is no array, or flags are not [N].
        """
        dtypes = self._dtypes.get(name)
        is_known = dtypes is not None and nested.same_structure(items, dtypes)
        if not is_known and name in self._dtypes:
            items = regular_rows(name, items, self._spaces[name == ACTIONS])
            is_known = dtypes is not None and nested.same_structure(items, dtypes)
        is_plain = type(items) is np.ndarray and items.dtype.kind in "biufc"
        arrays = items if is_plain else nested.map_leaves(partial(as_numbers, name), items)
        if name in (TERMINATEDS, TRUNCATEDS):
            if not isinstance(arrays, np.ndarray) or arrays.dtype.kind not in "biuf" or arrays.ndim != 1:
                raise ShapeMismatch(f"{name} are {nested.describe(arrays)}; give a bool array [{self.num_envs}]")
            arrays = arrays.astype(bool)
        if is_known:
            arrays = nested.map_leaves(lambda leaf, dtype: cast_to_space(name, leaf, dtype), arrays, dtypes)
        leaves = nested.leaves(arrays)
        if not leaves:
            raise ShapeMismatch(f"{name} are {nested.describe(items)}: they have no array; give at least one [N, ...]")
        for leaf in leaves:
            if leaf.shape[:1] != (self.num_envs,):
                raise ShapeMismatch(
                    f"{name} have shape {leaf.shape}; give [{self.num_envs}, ...], a row per environment"
                )
        return arrays

    def _check_other_writes(self, num_steps: int) -> bool:
        """Return True if other writers have added steps to the buffer since this recorder's last vector step.

        Raises:
            EpisodeStateError: an ongoing episode cannot continue.
        """
        ring, tails = self._ring, self._staged.tails
        if (ring.head, ring.rows_head) == (tails.head, tails.rows_head):
            return False
        lost = self._why_cannot_continue(num_steps)
        if lost:
            raise EpisodeStateError(f"{lost}; call reset")
        ring.widen(int((self._environments + ring.rows_head - tails.rows).max()))
        return True

    def _why_cannot_continue(self, num_steps: int) -> str:
        """Return why the ongoing episodes cannot get `num_steps` more steps, or "" if they can."""
        ring, tails = self._ring, self._staged.tails
        going_on = (tails.previous != NONE).nonzero()[0]
        newest = tails.previous[going_on]
        tail = max(ring.head + num_steps - ring.capacity, ring.tail)
        if (newest < tail).any() or tails.rows.min() < ring.first_row:
            return "steps added since the last vector step have evicted the ongoing episodes"
        if (ring.table.last[tails.entries[going_on]] != newest % ring.capacity).any():
            return "a chunk that was added since the last vector step continues an episode of this recorder"
        return ""

"""`ReplayRecorder`: the rows of a vector environment go straight into a replay buffer, with no pack in between.

It follows the same three autoreset modes as `VectorRecorder`. Rows are staged, one copy a column, and laid into the
linked ring many at a time, as soon as anybody asks: a draw, another writer, or the stage when it is full. What rows
mean, how their steps are linked and what makes way for them is worked out in a few numpy calls for all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from episodes.errors import EpisodeStateError, InvalidArgument, ShapeMismatch
from episodes.facts.policy_versions import checked_version
from episodes.recorder import OngoingEpisodes, VectorRecorder
from episodes.recorder.boundaries import Boundaries, Row, Rows, final_observations_of, infos_at_ends
from episodes.recorder.info_rows import InfoRows
from episodes.recorder.recent_rows import RecentRows
from episodes.replay.read_episodes import episode_at
from episodes.replay.ring.addition import Addition, Block
from episodes.replay.ring.episode_table import NONE, TableChange
from episodes.replay.ring.linked_ring import (
    ACTIONS,
    FLAGS,
    REWARDS,
    TERMINATEDS,
    TRUNCATEDS,
    LinkedRing,
)
from episodes.replay.ring.step_links import ENTRY, NEXT, NUM_LINKS
from episodes.replay.row_links import EnvTails, LinkedRows, LinkedRun
from episodes.replay.staged_rows import StagedRows, cast
from episodes.replay.stored_outputs import checked_extra, chosen_outputs
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested
from episodes.tracks.infos import Infos
from episodes.tracks.infos.infos import EmptyInfos
from episodes.tracks.spaces import as_rows, dtypes_of


class _StagedRow(NamedTuple):
    """What is kept of a row apart from its columns: the slots of its infos, and last observations that lie apart."""

    info: int = 0
    last_info: int = 0
    finals: Any = None


class _ClassifiedRows(NamedTuple):
    """What is known of the first `num_rows` staged rows; `rows` is what these are, if all were looked at at once."""

    num_rows: int
    boundaries: Boundaries
    newest: Row | None = None
    rows: Rows | None = None


_PLAIN = _StagedRow()
OBSERVATIONS = "observations"
_NOTHING: dict[str, Any] = {}
_NO_SLOTS = np.zeros(0, np.intp)


class ReplayRecorder:
    """Writes what `num_envs` environments do into a buffer; made by `EpisodeReplayBuffer.recorder`.

    `reset` and `step` take what those of `VectorRecorder` take. Other episodes may be added to the buffer meanwhile.
    A call that raises leaves the buffer's steps as they were. After `clear` or `set_state` of the buffer, `reset`.

    Attributes:
        episodes: the ongoing ones, as a `VectorRecorder` shows them; read from the buffer.
        keys: the extra model outputs that are stored; None for all.
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
        if num_envs < 1 or 2 * num_envs > ring.capacity:
            raise InvalidArgument(
                f"num_envs={num_envs}: give at least 1, and at most half the buffer's capacity of {ring.capacity} steps"
            )
        self.num_envs = num_envs
        self._boundaries = Boundaries(num_envs, autoreset_mode)
        self.autoreset_mode = self._boundaries.mode
        self._looks_later = self.autoreset_mode is AutoresetMode.NEXT_STEP  # what a row means need not be known at once
        self.episodes = OngoingEpisodes(self)
        self.keys = keys
        self._spaces = (observation_space, action_space)
        self._recent = RecentRows(num_envs, *self._spaces, depth=len_lookback_buffer)
        # Id and custom data of episodes without a step, by environment, that somebody looked at.
        self._fresh: dict[int, tuple[str, dict[str, Any]]] = {}
        self._ring = ring
        self._all = np.arange(num_envs)
        self._stage: StagedRows | None = None
        self._rows: list[_StagedRow] = []  # those that are staged: appending one is what makes it count
        self._limit = 0  # of staged rows
        self._plain: StagedRows | None = None  # the stage, if rows like those before need nothing but a copy
        self._newest: Any = None  # observations that nobody looks back at yet
        nowhere = np.full(num_envs, NONE, np.int64)
        self._behind = EnvTails(nowhere, nowhere, nowhere, 0, 0, self._boundaries)
        self._settled = _ClassifiedRows(0, self._boundaries)
        self._infos = InfoRows(num_envs)  # of the staged rows
        self._generation = 0  # of the ring, at the last reset of all
        self._version: int | None = None
        self._dtypes = {OBSERVATIONS: dtypes_of(observation_space), ACTIONS: dtypes_of(action_space)}

    def seed(self, seed: Any) -> None:
        """Let the ids of the episodes to come follow from a seed, or from a generator that is drawn from."""
        with self._ring.lock:
            self._ring.flush_staged()
            self._ring.table.names.begin(np.random.default_rng(seed))

    @property
    def policy_version(self) -> int | None:
        """Of the policy that acts in the steps to come, 0 or more; None: not told."""
        return self._version

    @policy_version.setter
    def policy_version(self, version: int | None) -> None:
        if version != self._version:
            checked_version(version)
            with self._ring.lock:
                self._ring.flush_staged()  # the rows that are staged are of the version before
                self._version = version

    @property
    def is_reset(self) -> bool:
        """Whether steps may follow: not before the first reset, nor after `clear` or `set_state` of the buffer.

        Nor when so many other steps were added since that the ongoing episodes are no longer there.
        """
        ring = self._ring
        with ring.lock:
            if ring.waiting is self and not ring.work:
                return self._generation == ring.generation  # whoever writes lays the staged rows down first: nobody did
            ring.flush_staged()
            behind = self._behind
            alone = (ring.head, ring.rows_head) == (behind.head, behind.rows_head)
            return self._is_current and (alone or not self._why_cannot_continue(self.num_envs))

    @property
    def _is_current(self) -> bool:
        return self._generation == self._ring.generation

    @property
    def _can_write_directly(self) -> bool:
        """Whether nothing is staged, and nobody has written since this recorder's last rows were laid down."""
        ring, behind = self._ring, self._behind
        if ring.waiting is not None or self._rows or ring.head != behind.head or ring.rows_head != behind.rows_head:
            return False
        return self._is_current and self._limit > 1

    def reset(
        self, observations: Any, infos: dict[str, Any] | None = None, reset_mask: np.ndarray | None = None
    ) -> None:
        """Begin new episodes with the observations [N, ...], in all environments or in those of the bool mask [N].

        An episode that was going on there stops as a cut chunk.
        """
        with self._ring.lock:
            self._ring.flush_staged()
            self._reset(self._arrays(OBSERVATIONS, observations), infos or {}, self._checked_mask(reset_mask))

    def _reset(self, observations: Any, infos: dict[str, Any], mask: np.ndarray) -> None:
        ring, envs, everyone = self._ring, np.flatnonzero(mask), bool(mask.all())
        ring.prepare_observations(observations)
        if not everyone:
            self._check_can_continue(0)
        room = ring.room(0, len(envs))
        behind = self._behind
        rows, previous, boundaries = behind.rows.copy(), behind.previous.copy(), behind.boundaries.copy()
        rows[envs], previous[envs] = room.rows_head + np.arange(len(envs)), NONE
        boundaries.reset(mask)
        head = room.rows_head + len(envs)
        slot = self._infos.add(infos)
        dealt = self._infos.gather(slot * self.num_envs + envs) if slot else EmptyInfos(len(envs))
        after = EnvTails(previous, rows, behind.entries, room.head, head, boundaries)
        ring.widen(max(int((self._all + head - rows).max()), 2 * self.num_envs))
        fresh = {env: data for env, data in self._fresh.items() if not mask[env]}
        links = np.zeros((NUM_LINKS, 0), np.int64)
        block = Block(observations, None if everyone else envs, len(envs), {}, {}, None, links, dealt)

        def then() -> None:
            self._go_on_from(after, self._settled.newest, fresh)
            self._generation = ring.generation

        ring.add(Addition(room, ring.table.change(room.closed, 0), block, then=then))
        recent = self._recent_rows()
        if everyone:
            recent.begin(observations, infos)
        else:
            recent.replace(observations, infos, envs)

    def _go_on_from(self, behind: EnvTails, newest: Row | None, fresh: dict[int, tuple[str, dict[str, Any]]]) -> None:
        """No row is staged, and what comes next continues what is in the ring."""
        self._behind, self._fresh = behind, fresh
        self._settled = _ClassifiedRows(0, behind.boundaries, newest)
        self._rows = []
        self._infos.keep(_NO_SLOTS)

    def _checked_mask(self, reset_mask: np.ndarray | None) -> np.ndarray:
        mask = self._boundaries.checked_mask(reset_mask)
        if not self._is_current and not mask.all():
            raise EpisodeStateError("the first reset must be of every environment; leave reset_mask out")
        return mask

    def step(
        self,
        observations: Any,
        actions: Any,
        rewards: Any,
        terminateds: Any,
        truncateds: Any,
        infos: dict[str, Any] | None = None,
        extra_model_outputs: Mapping[str, Any] | None = None,
        *,
        final_observations: Any = None,
    ) -> None:
        """Store a vector step: what `step` of the environment returned, [N, ...] each, and the actions it got."""
        ring = self._ring
        with ring.lock:
            plain = self._plain
            if (
                plain is not None
                and not infos
                and (ring.waiting is self or self._can_write_directly)
                and not (extra_model_outputs if self.keys is None else self.keys)
                and not ring.work
                and plain.put_arrays(len(self._rows), observations, actions, rewards, terminateds, truncateds)
            ):
                ring.waiting = self
                self._rows.append(_PLAIN)
                self._newest = observations
            else:
                flags = {TERMINATEDS: terminateds, TRUNCATEDS: truncateds}
                tracks = {ACTIONS: actions, REWARDS: rewards, **flags}
                self._step(observations, tracks, infos or _NOTHING, extra_model_outputs or _NOTHING, final_observations)
            if len(self._rows) >= self._limit:
                ring.flush_staged()

    def _step(
        self, observations: Any, tracks: dict[str, Any], infos: dict[str, Any], outputs: Mapping[str, Any], finals: Any
    ) -> None:
        """Stage a row of any kind."""
        ring, given = self._ring, tracks
        if ring.waiting is not self or ring.work:
            ring.flush_staged()
        if not self._is_current:
            raise EpisodeStateError("step before the reset; call reset(observations, infos) first")
        boundaries = self._settle()
        boundaries.check_step_may_come()
        stored = outputs if self.keys is None else chosen_outputs(outputs, self.keys)
        tracks = {name: self._arrays(name, items) for name, items in (tracks | checked_extra(stored)).items()}
        observations = self._arrays(OBSERVATIONS, observations)
        ring.prepare(observations, tracks)
        if self._stage is None or not self._stage.fits(observations, tracks):
            ring.flush_staged()
            self._stage = StagedRows(observations, tracks, max(ring.capacity // self.num_envs - 1, 1))
        if not self._rows:
            others_wrote = self._check_can_continue(self.num_envs)
            self._limit = 1 if others_wrote else self._stage.size
        looked = None
        if boundaries.last_lies_apart:
            looked = boundaries.look(tracks[TERMINATEDS], tracks[TRUNCATEDS])
        staged = self._staged(looked, infos, finals)
        self._stage.put(len(self._rows), observations, tracks)
        if self._recent_rows().is_looked_at:
            row = (observations, *(given[name] for name in (ACTIONS, REWARDS)), tracks[TERMINATEDS], tracks[TRUNCATEDS])
            self._recent.write(row, outputs)
        ring.waiting = self
        self._rows.append(staged)
        self._recent.commit(observations, infos)
        self._newest = None
        is_plain = self._looks_later and self._stage.is_plain and not self._recent.is_looked_at
        self._plain = self._stage if is_plain else None

    def _staged(self, row: Row | None, infos: dict[str, Any], finals: Any) -> _StagedRow:
        """What is kept of a row apart from its columns; in same-step autoreset, `row` says what ended."""
        if row is None or not len(row.ended):
            return _StagedRow(self._infos.add(infos)) if infos else _PLAIN
        if finals is None:
            finals = final_observations_of(infos, row.ended, self._spaces[0])
        finals = nested.map_leaves(np.array, finals)
        self._ring.observations.check(finals)
        for leaf in nested.leaves(finals):
            if len(leaf) != len(row.ended):
                raise ShapeMismatch(f"{len(leaf)} final observations for {len(row.ended)} endings")
        last_infos, infos = infos_at_ends(infos)
        return _StagedRow(self._infos.add(infos), self._infos.add(last_infos), finals)

    def _recent_rows(self) -> RecentRows:
        """The newest rows, for who looks back at them; from now on each row may have to be kept."""
        if self._newest is not None:
            self._recent.commit(self._newest, _NOTHING)
        self._newest = self._plain = None
        return self._recent

    def _settle(self) -> Boundaries:
        """The boundaries up to the newest row. What rows mean is looked at when somebody asks, mostly for many."""
        settled, stage, stop = self._settled, self._stage, len(self._rows)
        if stage is not None and settled.num_rows < stop:
            boundaries, last = settled.boundaries.copy(), stop - 1
            dones = stage.dones(settled.num_rows, stop)
            if settled.num_rows < last and (len(boundaries.waiting) or np.count_nonzero(dones[:-1])):
                rows = boundaries.classify_rows(dones)
                row = boundaries.last_row(rows)
                boundaries.commit_rows(rows)
            else:
                rows = None
                boundaries.commit_steps(last - settled.num_rows)
                row = boundaries.look(stage.tracks[TERMINATEDS][last], stage.tracks[TRUNCATEDS][last])
                boundaries.commit(row)
            self._settled = _ClassifiedRows(stop, boundaries, row, None if settled.num_rows else rows)
        return self._settled.boundaries

    # --- the ongoing episodes ------------------------------------------------------------------------------------

    @property
    def num_steps(self) -> int:
        """How many steps of environments were recorded so far."""
        return self._settle().num_steps

    @property
    def newest(self) -> Row:
        """Which environments stepped, ended and began with the newest row."""
        self._settle()
        newest = self._settled.newest
        if newest is None:
            raise EpisodeStateError("no row yet; call step first")
        return newest

    @property
    def ages(self) -> np.ndarray:
        """See `OngoingEpisodes.ages`."""
        return self._settle().ages

    @property
    def depths(self) -> np.ndarray:
        """See `OngoingEpisodes.depths`."""
        rows = self._recent_rows().looked_at()
        return np.minimum(self.ages, rows.lookback_at(rows.num_rows - 1))

    def recent(self, track: str, num_items: int) -> tuple[Any, np.ndarray]:
        """See `OngoingEpisodes.recent`; of extra model outputs also those that are not stored."""
        if num_items < 1:
            raise InvalidArgument(f"recent({track!r}, {num_items}): give at least 1")
        return self._recent_rows().recent(track, num_items, self.ages)

    def ongoing(self, env: int) -> SingleAgentEpisode:
        """What is stored of the ongoing episode of an environment, as it is now.

        What is written to its `custom_data` arrives in the buffer.
        """
        with self._ring.lock:
            if not self.is_reset:
                raise EpisodeStateError("the ongoing episodes are no longer in the buffer; call reset")
            self._ring.flush_staged()
            return self._stored(env) if self.ages[env] else self._begun(env)

    def _begun(self, env: int) -> SingleAgentEpisode:
        """An episode without a step."""
        ring, row = self._ring, self._behind.rows[env : env + 1]
        infos = ring.infos.infos(row.tolist())
        if env not in self._fresh:
            self._fresh[env] = (ring.table.names.take(), {})
        id_, custom_data = self._fresh[env]
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
        """What is stored of the episodes that ended with the newest step; what `custom_data` gets arrives there."""
        with self._ring.lock:
            self._ring.flush_staged()
            return [self._stored(env) for env in self.newest.ended.tolist()]

    def _stored(self, env: int) -> SingleAgentEpisode:
        entry, table = int(self._behind.entries[env]), self._ring.table
        episode = episode_at(self._ring, entry, *self._spaces)
        episode.custom_data = table.custom_data[entry] = table.custom_data[entry] or {}
        return episode

    def pass_on_to(self, recorder: VectorRecorder) -> None:
        """Let another recorder go on with the ongoing episodes; this one may only be reset then."""
        with self._ring.lock:
            self._ring.flush_staged()
            self._pass_on_to(recorder)

    def _pass_on_to(self, recorder: VectorRecorder) -> None:
        if self._settled.newest is None and not self._is_current:
            return  # nothing was recorded
        ids, table = np.full(self.num_envs, "", "U32"), self._ring.table
        custom_data = {env: data for env, (_, data) in self._fresh.items()}
        if self.is_reset:
            for env in np.flatnonzero(self._behind.previous != NONE).tolist():
                entry = int(self._behind.entries[env])
                ids[env], custom_data[env] = table.id_of(entry), table.custom_data[entry] or {}
        recorder.go_on(self._recent_rows(), self._behind.boundaries, ids, custom_data)
        self._go_on_from(self._behind._replace(boundaries=Boundaries(self.num_envs, self.autoreset_mode)), None, {})
        self._recent = RecentRows(self.num_envs, *self._spaces, depth=self._recent.depth)
        self._generation = -1

    # --- rows ----------------------------------------------------------------------------------------------------

    def _arrays(self, name: str, items: Any) -> Any:
        """The rows as arrays: flags as bools, observations and actions with the dtypes of their spaces."""
        dtypes = self._dtypes.get(name)
        is_known = dtypes is not None and nested.same_structure(items, dtypes)
        if not is_known and name in self._dtypes:
            items = as_rows(items, self._spaces[name == ACTIONS])
            is_known = dtypes is not None and nested.same_structure(items, dtypes)
        arrays = nested.map_leaves(np.asarray, items)
        if name in (TERMINATEDS, TRUNCATEDS):
            arrays = arrays.astype(bool)
        if is_known:
            arrays = nested.map_leaves(lambda leaf, dtype: cast(name, leaf, dtype), arrays, dtypes)
        leaves = nested.leaves(arrays)
        if not leaves:
            raise ShapeMismatch(f"{name} are {nested.describe(items)}: they have no array; give at least one [N, ...]")
        for leaf in leaves:
            if leaf.shape[:1] != (self.num_envs,):
                raise ShapeMismatch(
                    f"{name} have shape {leaf.shape}; give [{self.num_envs}, ...], a row per environment"
                )
        return arrays

    def _check_can_continue(self, num_steps: int) -> bool:
        """Whether somebody else wrote since; if so, see that the ongoing episodes can go on from what they were."""
        ring, behind = self._ring, self._behind
        if (ring.head, ring.rows_head) == (behind.head, behind.rows_head):
            return False
        lost = self._why_cannot_continue(num_steps)
        if lost:
            raise EpisodeStateError(f"{lost}; call reset")
        ring.widen(int((self._all + ring.rows_head - behind.rows).max()))
        return True

    def _why_cannot_continue(self, num_steps: int) -> str:
        """Why the ongoing episodes cannot go on with `num_steps` more; empty when they can."""
        ring, behind = self._ring, self._behind
        going_on = (behind.previous != NONE).nonzero()[0]
        newest = behind.previous[going_on]
        tail = max(ring.head + num_steps - ring.capacity, ring.tail)
        if (newest < tail).any() or behind.rows.min() < ring.first_row:
            return "so many steps were added since the last vector step that the ongoing episodes are no longer there"
        if (ring.table.last[behind.entries[going_on]] != newest % ring.capacity).any():
            return "a chunk that was added since the last vector step goes on with an episode of this recorder"
        return ""

    # --- laying rows down ----------------------------------------------------------------------------------------

    def laid_down(self) -> Addition:
        """All staged rows as steps of the ring. Nothing is changed until that is written."""
        ring, stage, behind, count = self._ring, self._stage, self._behind, len(self._rows)
        if stage is None or not count:
            room = ring.room(0, 0)
            return Addition(room, ring.table.change(room.closed, 0), then=self._nothing_waits)
        boundaries, last, rows = self._settle(), self._settled.newest, self._settled.rows
        if last is not None and rows is None and self._is_run(stage, count):
            steps = LinkedRun(count, last, behind)
        else:
            rows = rows or behind.boundaries.classify_rows(stage.dones(0, count))
            steps = LinkedRows.of(rows, behind, boundaries.last_lies_apart)
        room = ring.room(steps.num_steps, steps.num_rows)
        episodes = ring.table.change(room.closed, len(steps.first_steps))
        links, after = steps.links(room, behind, boundaries, episodes.opened, ring, stage.links)
        episodes.first = links[NEXT][steps.first_steps]
        fresh = self._name(episodes, steps) if self._fresh else self._fresh
        observations, tracks = stage.first_rows(count)
        endings = {name: steps.flagged(stage.tracks[name][:count]) for name in FLAGS}
        if steps.sources is not None:
            finals = [row.finals for row in self._rows if row.finals is not None]
            observations = nested.concatenate([observations, *finals])
        infos = self._infos_of_steps(steps)
        rows, versions = steps.step_rows, self._version
        block = Block(observations, steps.sources, steps.num_rows, tracks, endings, rows, links, infos, versions)

        def then() -> None:
            self._go_on_from(after, last, fresh)
            ring.waiting = None

        newest = steps.newest
        return Addition(room, episodes, block, (links[ENTRY][newest], links[NEXT][newest]), then)

    def _is_run(self, stage: StagedRows, count: int) -> bool:
        """Whether the staged rows are steps of the same environments, and only with the last one some end."""
        if count == 1:
            return self._rows[0].finals is None
        waiting, finals = self._behind.boundaries.waiting, self._rows[-1].finals
        return not len(waiting) and finals is None and not np.count_nonzero(stage.dones(0, count - 1))

    def _nothing_waits(self) -> None:
        self._ring.waiting = None

    def _name(self, episodes: TableChange, steps: LinkedRun | LinkedRows) -> dict[int, tuple[str, dict[str, Any]]]:
        """Give the episodes that somebody looked at before their first step their ids; those still without one."""
        envs = [steps.env_of(step) if step < steps.num_in_first_row else NONE for step in steps.first_steps.tolist()]
        known = [self._fresh.get(env, (None, None)) for env in envs]
        episodes.ids = [id_ for id_, _ in known]
        opened = zip(episodes.opened.tolist(), known, strict=True)
        episodes.custom_data = {entry: data for entry, (_, data) in opened if data is not None}
        return {env: data for env, data in self._fresh.items() if env not in envs}

    def _infos_of_steps(self, steps: LinkedRun | LinkedRows) -> Infos:
        """The infos of the rows that are written."""
        if self._infos.num_slots == 1:
            return EmptyInfos(steps.num_rows)
        slots = np.array([row.info for row in self._rows])
        index = (slots[:, None] * self.num_envs + self._all).ravel()
        if isinstance(steps, LinkedRows) and steps.sources is not None:
            last = np.array([row.last_info for row in self._rows])
            at, envs = np.divmod(steps.ended, self.num_envs)
            index = np.concatenate([index, last[at] * self.num_envs + envs])[steps.sources]
        return self._infos.gather(index)

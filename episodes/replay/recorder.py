"""`ReplayRecorder`: the rows of a vector environment go straight into a replay buffer, with no pack in between.

It follows the same three autoreset modes as `VectorRecorder`. A vector step is one block of the linked ring: a chunk
of one step per environment, each continuing its episode. Python work is done per episode that begins, never per step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from episodes.errors import EpisodeStateError, InvalidArgument, ShapeMismatch
from episodes.facts.facts import random_ids
from episodes.recorder import OngoingEpisodes, VectorRecorder
from episodes.recorder.boundaries import Boundaries, Row, final_observations_of, infos_at_ends
from episodes.recorder.info_rows import InfoRows
from episodes.recorder.recent import RecentRows
from episodes.replay.read_episodes import episode_at
from episodes.replay.ring.episode_table import NONE
from episodes.replay.ring.step_links import ENTRY, NEXT, NEXT_ROW, NUM_LINKS, PREVIOUS, ROW, T
from episodes.replay.ring.step_ring import (
    ACTIONS,
    REWARDS,
    TERMINATEDS,
    TRUNCATEDS,
    Block,
    LinkedRing,
    checked_extra,
    chosen_outputs,
)
from episodes.replay.ring.track_ring import numbers, positions
from episodes.replay.row_kinds import are_of, cast, kinds_of
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested
from episodes.tracks.infos import Infos
from episodes.tracks.infos.kinds import EmptyInfos
from episodes.tracks.spaces import as_rows, dtypes_of

OBSERVATIONS = "observations"
_NOTHING: dict[str, Any] = {}


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
        self.episodes = OngoingEpisodes(self)
        self.keys = keys
        self._spaces = (observation_space, action_space)
        self._recent = RecentRows(num_envs, *self._spaces, depth=len_lookback_buffer)
        self._newest: Row | None = None
        # Id and custom data of episodes without a step, by environment, that somebody looked at.
        self._fresh: dict[int, tuple[str, dict[str, Any]]] = {}
        self._ring = ring
        self._all = np.arange(num_envs)
        self._links = np.full((NUM_LINKS, num_envs), NONE, np.int64)  # of the steps that come next
        self._no_infos = EmptyInfos(num_envs)
        self._infos = InfoRows(num_envs)  # those of the newest row, while they are dealt out
        self._num_fresh = num_envs  # episodes without a step
        self._generation = 0  # of the ring, at the last reset of all
        self._kinds: Any = None  # of the rows that came last
        self._dtypes = {OBSERVATIONS: dtypes_of(observation_space), ACTIONS: dtypes_of(action_space)}
        # The ring's numbers of steps and rows, and its room for rows, when this recorder last wrote.
        self._seen_steps = self._seen = self._num_rows = 0

    @property
    def is_reset(self) -> bool:
        """Whether steps may follow: not before the first reset, nor after `clear` or `set_state` of the buffer.

        Nor when so many other steps were added since that the ongoing episodes are no longer there.
        """
        return self._is_of_now and not self._whats_lost(self.num_envs)

    @property
    def _is_of_now(self) -> bool:
        return self._generation == self._ring.generation

    def reset(
        self, observations: Any, infos: dict[str, Any] | None = None, reset_mask: np.ndarray | None = None
    ) -> None:
        """Begin new episodes with the observations [N, ...], in all environments or in those of the bool mask [N].

        An episode that was going on there stops as a cut chunk.
        """
        ring, observations = self._ring, self._arrays(OBSERVATIONS, observations)
        mask = self._checked_mask(reset_mask)
        envs, everyone = np.flatnonzero(mask), bool(mask.all())
        ring.prepare_observations(observations)
        if everyone:
            ring.make_room(0, self.num_envs)
        else:
            self._make_room(0, len(envs))
        self._begin(envs, ring.rows_head)
        ring.append_rows(observations, None if everyone else envs, len(envs), self._dealt([infos or {}], envs))
        self._num_fresh = int((self._links[PREVIOUS] == NONE).sum())
        self._boundaries.reset(mask)
        if everyone:
            self._recent.begin(observations, infos or {})
        else:
            self._recent.replace(observations, infos or {}, envs)
        self._generation, self._kinds = ring.generation, None
        self._seen_steps, self._seen, self._num_rows = ring.head, ring.rows_head, ring.num_rows
        self._widen()

    def _begin(self, envs: np.ndarray, row: int) -> None:
        """The environments' next episodes begin at the observation rows from number `row` on."""
        for env in envs.tolist() if self._fresh else ():
            self._fresh.pop(env, None)
        self._links[ROW, envs] = positions(row, len(envs), self._ring.num_rows)
        self._links[PREVIOUS, envs] = NONE

    def _checked_mask(self, reset_mask: np.ndarray | None) -> np.ndarray:
        mask = self._boundaries.checked_mask(reset_mask)
        if not self._is_of_now and not mask.all():
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
        if not self._is_of_now:
            raise EpisodeStateError("step before the reset; call reset(observations, infos) first")
        self._boundaries.check_step_may_come()
        tracks = {ACTIONS: actions, REWARDS: rewards, TERMINATEDS: terminateds, TRUNCATEDS: truncateds}
        outputs = extra_model_outputs or _NOTHING
        stored = outputs if self.keys is None else chosen_outputs(outputs, self.keys)
        if stored:
            tracks |= checked_extra(stored)
        observations, tracks = self._checked(observations, tracks)
        if self._recent.is_looked_at:
            self._recent.write([observations, actions, rewards, tracks[TERMINATEDS], tracks[TRUNCATEDS]], outputs)
        row, infos = self._boundaries.look(tracks[TERMINATEDS], tracks[TRUNCATEDS]), infos or _NOTHING
        if not (self._boundaries.last_lies_apart and len(row.ended)):
            row_infos = self._dealt([infos], self._all) if infos else self._no_infos
            self._make_room(len(row.stepped), self.num_envs)
            self._write(observations, tracks, row, row_infos)
        else:
            finals = final_observations
            if finals is None:
                finals = final_observations_of(infos, row.ended, self._spaces[0])
            self._step_and_reset(observations, tracks, row, infos, finals)
        self._seen_steps, self._seen = self._ring.head, self._ring.rows_head
        self._boundaries.commit(row)
        self._recent.commit(observations, infos)
        self._newest = row

    # --- the ongoing episodes ------------------------------------------------------------------------------------

    @property
    def num_steps(self) -> int:
        """How many steps of environments were recorded so far."""
        return self._boundaries.num_steps

    @property
    def newest(self) -> Row:
        """Which environments stepped, ended and began with the newest row."""
        if self._newest is None:
            raise EpisodeStateError("no row yet; call step first")
        return self._newest

    @property
    def ages(self) -> np.ndarray:
        """See `OngoingEpisodes.ages`."""
        return self._boundaries.ages

    @property
    def depths(self) -> np.ndarray:
        """See `OngoingEpisodes.depths`."""
        rows = self._recent.looked_at()
        return np.minimum(self.ages, rows.lookback_at(rows.num_rows - 1))

    def recent(self, track: str, num_items: int) -> tuple[Any, np.ndarray]:
        """See `OngoingEpisodes.recent`; of extra model outputs also those that are not stored."""
        if num_items < 1:
            raise InvalidArgument(f"recent({track!r}, {num_items}): give at least 1")
        return self._recent.recent(track, num_items, self.ages)

    def ongoing(self, env: int) -> SingleAgentEpisode:
        """What is stored of the ongoing episode of an environment, as it is now.

        What is written to its `custom_data` arrives in the buffer.
        """
        if not self.is_reset:
            raise EpisodeStateError("the ongoing episodes are no longer in the buffer; call reset")
        if self.ages[env]:
            return self._stored(env)
        ring, row = self._ring, self._links[ROW, env : env + 1]
        infos = ring.infos.infos(ring.row_numbers(row).tolist())
        id_, custom_data = self._fresh.setdefault(env, (random_ids(1).item(), {}))
        episode = SingleAgentEpisode(
            id_=id_,
            observations=[nested.take(ring.observations.take(row), 0)],
            infos=[infos.item(0)],
            observation_space=self._spaces[0],
            action_space=self._spaces[1],
        ).to_numpy()
        episode.custom_data = custom_data
        return episode

    def ended_episodes(self) -> list[SingleAgentEpisode]:
        """What is stored of the episodes that ended with the newest step; what `custom_data` gets arrives there."""
        return [self._stored(env) for env in self.newest.ended.tolist()]

    def _stored(self, env: int) -> SingleAgentEpisode:
        entry, table = int(self._links[ENTRY, env]), self._ring.table
        episode = episode_at(self._ring, entry, *self._spaces)
        episode.custom_data = table.custom_data[entry] = table.custom_data[entry] or {}
        return episode

    def pass_on_to(self, recorder: VectorRecorder) -> None:
        """Let another recorder go on with the ongoing episodes; this one may only be reset then."""
        if self._newest is None and not self._is_of_now:
            return  # nothing was recorded
        ids, table = np.full(self.num_envs, "", "U32"), self._ring.table
        custom_data = {env: data for env, (_, data) in self._fresh.items()}
        if self.is_reset:
            for env in np.flatnonzero(self._links[PREVIOUS] != NONE).tolist():
                entry = int(self._links[ENTRY, env])
                ids[env], custom_data[env] = table.id_of(entry), table.custom_data[entry] or {}
        recorder.go_on(self._recent, self._boundaries, ids, custom_data)
        self._boundaries = Boundaries(self.num_envs, self.autoreset_mode)
        self._recent = RecentRows(self.num_envs, *self._spaces, depth=self._recent.depth)
        self._generation, self._newest = -1, None

    # --- rows ----------------------------------------------------------------------------------------------------

    def _checked(self, observations: Any, tracks: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The rows as arrays that fit into the ring; nothing but a comparison where they are as they were before."""
        if not are_of(self._kinds, observations, tracks):
            observations = self._arrays(OBSERVATIONS, observations)
            tracks = {name: self._arrays(name, items) for name, items in tracks.items()}
            self._ring.prepare(observations, tracks)
            self._kinds = kinds_of(observations, tracks)
        return observations, tracks

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

    def _widen(self) -> None:
        """Let steps refer to observations as old as the ongoing episodes' newest ones may be when they go on."""
        rows = numbers(self._links[ROW], self._seen, self._num_rows)
        gap = int((self._all + self._ring.rows_head - rows).max())
        self._ring.widen(max(gap, 2 * self.num_envs))

    def _make_room(self, num_steps: int, num_rows: int) -> None:
        ring = self._ring
        if self._seen != ring.rows_head:
            self._check_still_there(num_steps)
        ring.make_room(num_steps, num_rows)
        if self._num_rows != ring.num_rows:
            rows = numbers(self._links[ROW], self._seen, self._num_rows)
            self._links[ROW] = rows % ring.num_rows
            self._num_rows = ring.num_rows

    def _check_still_there(self, num_steps: int) -> None:
        """Somebody else wrote: see that the ongoing episodes can go on from what they were."""
        lost = self._whats_lost(num_steps)
        if lost:
            raise EpisodeStateError(f"{lost}; call reset")
        self._widen()

    def _whats_lost(self, num_steps: int) -> str:
        """Why the ongoing episodes cannot go on with `num_steps` more; empty when they can."""
        ring, previous = self._ring, self._links[PREVIOUS]
        going_on = (previous != NONE).nonzero()[0]
        newest = previous[going_on]
        tail = max(ring.head + num_steps - ring.capacity, ring.tail)
        rows = numbers(self._links[ROW], self._seen, self._num_rows)
        if (numbers(newest, self._seen_steps, ring.capacity) < tail).any() or rows.min() < ring.first_row:
            return "so many steps were added since the last vector step that the ongoing episodes are no longer there"
        if (ring.table.last[self._links[ENTRY][going_on]] != newest).any():
            return "a chunk that was added since the last vector step goes on with an episode of this recorder"
        return ""

    def _write(self, observations: Any, tracks: dict[str, Any], row: Row, infos: Infos) -> None:
        """Append one block of the steps, and remember what comes next."""
        ring, links, live = self._ring, self._links, row.stepped
        links[T] = self._boundaries.ages
        rows = links[NEXT_ROW] = positions(ring.rows_head, self.num_envs, ring.num_rows)
        everyone = len(live) == self.num_envs
        new = links if everyone else links.take(live, 1)
        slots = new[NEXT] = positions(ring.head, len(live), ring.capacity)
        if self._num_fresh:
            self._open(new, live)
        ring.append(Block(observations, None, self.num_envs, tracks, None if everyone else live, new, infos))
        ring.table.last[new[ENTRY]] = slots
        links[PREVIOUS][live] = slots
        links[ROW] = rows
        self._num_fresh = len(row.reset)
        if len(row.ended):
            links[PREVIOUS][row.ended] = NONE

    def _open(self, new: np.ndarray, live: np.ndarray) -> None:
        """Give the live environments' episodes that have their first step now an entry in the table."""
        fresh = (new[PREVIOUS] == NONE).nonzero()[0]
        if not len(fresh):
            return
        slots = new[NEXT][fresh]
        ids = None if not self._fresh else [self._fresh.get(env, (None,))[0] for env in live[fresh].tolist()]
        entries = self._ring.table.open(ids, slots)
        new[ENTRY][fresh] = self._links[ENTRY][live[fresh]] = entries
        if self._fresh:
            for entry, env in zip(entries.tolist(), live[fresh].tolist(), strict=True):
                self._ring.table.custom_data[entry] = self._fresh.pop(env, (None, None))[1]
        new[PREVIOUS][fresh] = slots

    def _dealt(self, vector_infos: list[dict[str, Any]], envs: np.ndarray, which: np.ndarray | int = 0) -> Infos:
        """The infos of the environments [k], each out of one of the vector infos."""
        if not any(vector_infos):
            return EmptyInfos(len(envs))
        slots = np.array([self._infos.add(info) for info in vector_infos])
        infos = self._infos.gather(slots[which] * self.num_envs + envs)
        self._infos.keep(slots[:0])
        return infos

    def _step_and_reset(
        self, observations: Any, tracks: dict[str, Any], row: Row, infos: dict[str, Any], finals: Any
    ) -> None:
        """A step after which the ended episodes' rows hold the next episodes' first observations: store both."""
        ring, finals, ended = self._ring, nested.map_leaves(np.asarray, finals), row.ended
        ring.observations.check(finals)
        for leaf in nested.leaves(finals):
            if len(leaf) != len(ended):
                raise ShapeMismatch(f"{len(leaf)} final observations for {len(ended)} endings")
        which = np.zeros(self.num_envs, np.int64)
        which[ended] = 1
        last_infos, infos = infos_at_ends(infos)
        row_infos = self._dealt([infos, last_infos], self._all, which)
        self._make_room(self.num_envs, self.num_envs + len(ended))
        self._write(observations, tracks, row, row_infos)
        ring.change_ends(ring.table.last[self._links[ENTRY, ended]], finals)
        self._begin(ended, ring.rows_head)
        ring.append_rows(observations, ended, len(ended), self._dealt([infos], ended))
        self._num_fresh = len(ended)

"""`StagedSteps`: recorded vector steps that are not yet in the replay ring, with the episodes they continue.

The ring refers to a `StagedSteps` while rows are staged, and writes the rows before the ring is read. A `StagedSteps`
refers to neither ring nor recorder, so that a dropped buffer is freed at once.

    in the ring                     staged                                  after `build_addition` and `proceed`

    .. s0  s1 | s0  s1              row 0   row 1   row 2                   .. s0  s1 | s0  s1 | s0  s1 | ...
                 ^   ^              columns of the rows: `stage`                                   ^   ^
        `tails`: newest step        infos, last observations: `rows`            `tails` of the `Continuation`
        of each environment         rows[:classified.num_rows] are classified
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from episodes.facts.policy_versions import UNKNOWN
from episodes.recorder.boundaries import Boundaries, Row, Rows
from episodes.recorder.info_rows import InfoRows
from episodes.replay.ring.addition import Addition, Block
from episodes.replay.ring.episode_table import NO_FACTS, NONE, TableChange
from episodes.replay.ring.linked_ring import FLAGS, TERMINATEDS, TRUNCATEDS, LinkedRing
from episodes.replay.ring.step_links import ENTRY, NEXT, NUM_LINKS
from episodes.replay.row_links import EnvTails, LinkedRows, LinkedRun
from episodes.replay.staged_rows import StagedRows
from episodes.tracks import nested
from episodes.tracks.infos import Infos

_NO_SLOTS = np.zeros(0, np.intp)

Unstarted = dict[int, tuple[str, dict[str, Any]]]
"""Id and custom data of episodes without a step that the user read, by environment."""


class StagedRow(NamedTuple):
    """Infos and final observations of one recorded vector step."""

    info: int = 0  # slot of its infos
    last_info: int = 0  # slot of the infos of last observations (same-step autoreset)
    finals: Any = None  # last observations [k, ...] (same-step autoreset)


class ClassifiedRows(NamedTuple):
    """For the first `num_rows` recorded vector steps: which rows are steps, resets or episode ends."""

    num_rows: int
    boundaries: Boundaries  # after these rows
    newest: Row | None = None
    rows: Rows | None = None  # all rows, if they were classified in one call


class Continuation(NamedTuple):
    """State of `StagedSteps` that applies after its recorded steps were written to the ring."""

    tails: EnvTails
    newest: Row | None
    unstarted: Unstarted


class StagedSteps:
    """Recorded vector steps of N environments, which are written to the replay ring before the ring is read.

    Attributes:
        stage: the columns of the rows; None before the first step.
        rows: the rest of each row. Appending an item is what adds a row.
        infos: infos of the rows, by slot.
        tails: newest steps and observations in the ring, which the rows continue.
        classified: which of the rows are steps, as far as that was computed.
        unstarted: see `Unstarted`.
        version: policy version of the rows, or None.
        facts: facts of new episodes that are not in the ring.
    """

    __slots__ = ("_environments", "classified", "facts", "infos", "rows", "stage", "tails", "unstarted", "version")

    def __init__(self, boundaries: Boundaries) -> None:
        nowhere = np.full(boundaries.num_envs, NONE, np.int64)
        self._environments = np.arange(boundaries.num_envs)
        self.stage: StagedRows | None = None
        self.rows: list[StagedRow] = []
        self.infos = InfoRows(boundaries.num_envs)
        self.tails = EnvTails(nowhere, nowhere, nowhere, 0, 0, boundaries)
        self.classified = ClassifiedRows(0, boundaries)
        self.unstarted: Unstarted = {}
        self.version: int | None = None
        self.facts = NO_FACTS

    def classify(self) -> Boundaries:
        """Determine which recorded vector steps are steps or resets, and each environment's state afterwards."""
        classified, stage, stop = self.classified, self.stage, len(self.rows)
        if stage is not None and classified.num_rows < stop:
            boundaries, last = classified.boundaries.copy(), stop - 1
            dones = stage.dones(classified.num_rows, stop)
            if classified.num_rows < last and (len(boundaries.waiting) or np.count_nonzero(dones[:-1])):
                rows = boundaries.classify_rows(dones)
                row = boundaries.last_row(rows)
                boundaries.commit_rows(rows)
            else:
                rows = None
                boundaries.commit_steps(last - classified.num_rows)
                row = boundaries.classify(stage.tracks[TERMINATEDS][last], stage.tracks[TRUNCATEDS][last])
                boundaries.commit(row)
            self.classified = ClassifiedRows(stop, boundaries, row, None if classified.num_rows else rows)
        return self.classified.boundaries

    def proceed(self, continuation: Continuation) -> None:
        """Drop the staged steps, which are in the ring now, and switch to the state `continuation`.

        The call may be repeated.
        """
        self.tails, newest, self.unstarted = continuation
        self.classified = ClassifiedRows(0, self.tails.boundaries, newest)
        self.rows = []
        self.infos.keep(_NO_SLOTS)

    def build_addition(self, ring: LinkedRing) -> tuple[Addition, Continuation]:
        """Plan the writes of all recorded steps to the ring. Return the plan and the state after these writes."""
        stage: Any = self.stage
        tails, count = self.tails, len(self.rows)
        boundaries, newest, rows = self.classify(), self.classified.newest, self.classified.rows
        if newest is not None and rows is None and self._is_run(stage, count):
            steps: LinkedRun | LinkedRows = LinkedRun(count, newest, tails)
        else:
            rows = rows or tails.boundaries.classify_rows(stage.dones(0, count))
            steps = LinkedRows.of(rows, tails, boundaries.last_lies_apart)
        reservation = ring.reserve(steps.num_steps, steps.num_rows)
        episodes = ring.table.change(reservation.closed, len(steps.first_steps))
        links, after = steps.links(reservation, tails, boundaries, episodes.opened, ring, stage.links)
        episodes.first, episodes.recorded_facts = links[NEXT][steps.first_steps], self.facts
        unstarted = self._name_started(episodes, steps) if self.unstarted else self.unstarted
        observations, tracks = stage.first_rows(count)
        endings = {name: steps.steps_with_flag(stage.tracks[name][:count]) for name in FLAGS}
        if steps.sources is not None:
            finals = [row.finals for row in self.rows if row.finals is not None]
            observations = nested.concatenate([observations, *finals])
        version = UNKNOWN if self.version is None else self.version
        infos, step_rows = self._infos_of_steps(steps), steps.step_rows
        block = Block(observations, steps.sources, steps.num_rows, tracks, endings, step_rows, links, infos, version)
        last = steps.newest
        addition = Addition(reservation, episodes, block, (links[ENTRY][last], links[NEXT][last]))
        return addition, Continuation(after, newest, unstarted)

    def build_reset(
        self, ring: LinkedRing, observations: Any, info: int, mask: np.ndarray
    ) -> tuple[Addition, Continuation]:
        """Plan the writes of first observations to the ring. Return the plan and the state after these writes.

        No steps may be staged.

        Args:
            ring: the ring.
            observations: nested arrays [N, ...].
            info: slot of the infos.
            mask: environments that were reset, bool [N].
        """
        envs, tails = np.flatnonzero(mask), self.tails
        reservation = ring.reserve(0, len(envs))
        boundaries, rows, previous = tails.boundaries.copy(), tails.rows.copy(), tails.previous.copy()
        boundaries.reset(mask)
        rows[envs], previous[envs] = reservation.rows_head + np.arange(len(envs)), NONE
        rows_head = reservation.rows_head + len(envs)
        after = EnvTails(previous, rows, tails.entries, reservation.head, rows_head, boundaries)
        infos = self.infos.gather(info * len(mask) + envs) if info else Infos({}, len(envs))
        written, links = None if len(envs) == len(mask) else envs, np.zeros((NUM_LINKS, 0), np.int64)
        block = Block(observations, written, len(envs), {}, {}, None, links, infos)
        addition = Addition(reservation, ring.table.change(reservation.closed, 0), block)
        return addition, Continuation(after, self.classified.newest, self._unstarted_without(envs))

    def continuation_of_cut(self, envs: np.ndarray) -> Continuation:
        """Return the state after a cut of the episodes of the environments `envs`, int [k]. No steps may be staged."""
        previous, boundaries = self.tails.previous.copy(), self.tails.boundaries.copy()
        boundaries.cut(envs)
        previous[envs] = NONE
        after = self.tails._replace(previous=previous, boundaries=boundaries)
        return Continuation(after, self.classified.newest, self._unstarted_without(envs))

    def _unstarted_without(self, envs: np.ndarray) -> Unstarted:
        """Return `unstarted` without the environments `envs`, int [k], whose episodes ended."""
        ended = set(envs.tolist())
        return {env: data for env, data in self.unstarted.items() if env not in ended}

    def _is_run(self, stage: StagedRows, count: int) -> bool:
        """Return True if the same environments step in all rows, and only the last row ends episodes (`LinkedRun`)."""
        if count == 1:
            return self.rows[0].finals is None
        waiting, finals = self.tails.boundaries.waiting, self.rows[-1].finals
        return not len(waiting) and finals is None and not np.count_nonzero(stage.dones(0, count - 1))

    def _name_started(self, episodes: TableChange, steps: LinkedRun | LinkedRows) -> Unstarted:
        """Give new episodes the ids under which users already read them before their first step.

        Returns the ids that remain unused.
        """
        envs = [steps.env_of(step) if step < steps.num_in_first_row else NONE for step in steps.first_steps.tolist()]
        known = [self.unstarted.get(env, (None, None)) for env in envs]
        episodes.ids = [id_ for id_, _ in known]
        opened = zip(episodes.opened.tolist(), known, strict=True)
        episodes.custom_data = {entry: data for entry, (_, data) in opened if data is not None}
        return {env: data for env, data in self.unstarted.items() if env not in envs}

    def _infos_of_steps(self, steps: LinkedRun | LinkedRows) -> Infos:
        """Return the infos of the recorded observations, ordered as the ring stores the observations."""
        if self.infos.num_slots == 1:
            return Infos({}, steps.num_rows)
        num_envs, slots = len(self._environments), np.array([row.info for row in self.rows])
        index = (slots[:, None] * num_envs + self._environments).ravel()
        if isinstance(steps, LinkedRows) and steps.sources is not None:
            last = np.array([row.last_info for row in self.rows])
            at, envs = np.divmod(steps.ended, num_envs)
            index = np.concatenate([index, last[at] * num_envs + envs])[steps.sources]
        return self.infos.gather(index)

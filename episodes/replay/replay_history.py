"""`ReplayHistory`: sampled observations of a replay ring and their preceding steps, as input of views."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from episodes.history import History, HistorySpaces, back
from episodes.replay.context_steps import (
    begins,
    context_of,
    entries_at,
    gather,
    info_dicts_at,
    link,
    observations_at,
    steps_before,
)
from episodes.replay.link_traversal import walk
from episodes.replay.read_episodes import episode_at
from episodes.replay.ring.linked_ring import LinkedRing
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks.stacking import object_array


class ReplayHistory(History):
    """Batch of B observations in a replay ring and of their preceding steps, read by views such as frame stacking.

    A row is the position of an observation, and the position of the step that led to it. Earlier steps are found by
    their `previous` links, and then in the context of the episode (`context_steps`). Before the oldest known step there
    is the row of zeros at the end of each ring, so nothing has to be masked:

        step      ...  p[2]  p[1]  p[0]                 p[0] = last, p[j + 1] = step before p[j], or `capacity`
        observation   o      o     o    rows            the observation before step p[j] is at its `row` link

    Args:
        ring: ring of the steps.
        rows: positions of the observations, [B]. None for the observations before the steps `slots`, followed by the
                observations after these steps.
        last: positions of the steps that led to the observations, [B], or None if `rows` is None.
        slots: positions of steps that begin or end at the observations.
        spaces: spaces of the stored observations and actions.
        lookback: number of steps that views may look back.
    """

    def __init__(
        self,
        ring: LinkedRing,
        rows: np.ndarray | None,
        last: np.ndarray | None,
        slots: np.ndarray,
        spaces: HistorySpaces,
        lookback: int | None = None,
    ) -> None:
        super().__init__(spaces, lookback)
        self.ring = ring
        self._given = None if rows is None else (rows, slots)
        self._steps = slots  # without rows: B / 2 steps, whose observations are looked up when they are read
        self._path = [] if last is None else [last]

    @classmethod
    def around(
        cls, ring: LinkedRing, slots: np.ndarray, last: np.ndarray, spaces: HistorySpaces, lookback: int | None = None
    ) -> ReplayHistory:
        """Create a history with the observations before the steps `slots` [n] and after the steps `last` [m].

        If `last` is the same object as `slots`, the history has only the observations before the steps.
        """
        if last is slots:
            return cls(ring, None, None, slots, spaces, lookback)
        rows = np.concatenate([link(ring, "row", slots), link(ring, "next_row", last)])
        led_here = np.concatenate([steps_before(ring, slots), last])
        return cls(ring, rows, led_here, np.concatenate([slots, last]), spaces, lookback)

    def __len__(self) -> int:
        return len(self._steps) if self._given is not None else 2 * len(self._steps)

    @property
    def _rows(self) -> np.ndarray:
        """Positions of the B observations in the observation ring, int [B]."""
        return self._found[0]

    @property
    def _slots(self) -> np.ndarray:
        """Ring positions of steps adjacent to the B observations, int64 [B], from which their episodes are found."""
        return self._found[1]

    @cached_property
    def _found(self) -> tuple[np.ndarray, np.ndarray]:
        if self._given is not None:
            return self._given
        ring, steps = self.ring, self._steps
        rows = np.concatenate([link(ring, "row", steps), link(ring, "next_row", steps)])
        return rows, np.concatenate([steps, steps])

    def _step(self, j: int) -> np.ndarray:
        """Return the ring position of the step that is `j` + 1 steps before each observation, int64 [B]."""
        if not self._path:
            self._path.append(np.concatenate([steps_before(self.ring, self._steps), self._steps]))
        while len(self._path) <= j:
            self._path.append(steps_before(self.ring, self._path[-1]))
        return self._path[j]

    @cached_property
    def depth(self) -> np.ndarray:
        last, ring = self._step(0), self.ring
        begin = begins(ring, entries_at(ring, last))
        return np.where(last != ring.capacity, link(ring, "t", last) + 1 - begin, 0)

    @property
    def t(self) -> np.ndarray:
        last, ring = self._step(0), self.ring
        return np.where(last != ring.capacity, link(ring, "t", last) + 1, link(ring, "t", self._slots))

    def newest(self) -> Any:
        return observations_at(self.ring, self._rows)

    def last_observations(self, k: int) -> Any:
        if not self._path and context_of(self.ring) is None:
            return self.ring.observations.take(self._rows_at_both_ends(k))
        rows = np.empty((len(self), k), np.int64)
        rows[:, -1] = self._rows
        for j in range(k - 1):
            rows[:, k - 2 - j] = link(self.ring, "row", self._step(j))
        return observations_at(self.ring, rows)

    def _rows_at_both_ends(self, k: int) -> np.ndarray:
        """Return the positions [B, k] of the `k` newest observations before each sampled step, and after each.

        The two ends of a step share k - 1 of them.
        """
        links, steps = self.ring.links, self._steps
        path = walk(links.previous, steps, k - 1)[::-1]
        rows = np.array([*[links.row[slots] for slots in path], links.next_row[steps]])  # [k + 1, B / 2]
        if k > 1 and np.count_nonzero(path[0] == path[1]):  # some episodes begin within these steps
            rows[: k - 1][np.equal(path[:-1], path[1:])] = self.ring.num_rows
        older, right = rows.strides
        ends = np.ndarray((2, len(steps), k), rows.dtype, rows, strides=(older, right, older))
        return ends.reshape(len(self), k)

    def last_steps(self, track: str, k: int) -> Any:
        if track not in self.ring.tracks:
            return None
        steps = np.stack([self._step(j) for j in range(k - 1, -1, -1)], axis=1)
        return gather(self.ring, steps, lambda part, at: part.tracks[track].take(at))

    def window(self, k: int) -> ReplayHistory:
        path = np.stack([self._slots, *(self._step(j) for j in range(k))], axis=1)  # [B, k + 1]
        rows = np.stack([self._rows, *(link(self.ring, "row", self._step(j)) for j in range(k - 1))], axis=1)
        backs = np.minimum(back(k), self.depth[:, None])
        at = np.arange(len(self))[:, None]
        picked, last, slots = rows[at, backs].ravel(), path[at, backs + 1].ravel(), path[at, backs].ravel()
        return ReplayHistory(self.ring, picked, last, slots, self.spaces, self._left(k))

    @property
    def infos(self) -> list[dict[str, Any]]:
        return info_dicts_at(self.ring, self._rows)

    @property
    def _facts(self) -> list[Any]:
        return [self.ring.table.facts[entry] for entry in entries_at(self.ring, self._slots).tolist()]

    @property
    def agent_ids(self) -> np.ndarray:
        return object_array([facts.agent_id for facts in self._facts])

    @property
    def module_ids(self) -> np.ndarray:
        return object_array([facts.module_id for facts in self._facts])

    def episode(self, i: int) -> SingleAgentEpisode:
        """Return a copy of the stored part of the episode of batch row `i`, up to the row's observation.

        It is empty if the observation is in the lookback of the stored part.
        """
        entry = int(entries_at(self.ring, self._slots[i : i + 1])[0])
        episode = episode_at(self.ring, entry, self.spaces.observation_space, self.spaces.action_space)
        stop = int(self.depth[i]) - episode.lookback
        return episode.slice(slice(0, max(stop, 0)))

"""Sampled steps of a replay ring, from which `episodes.draws` computes the columns of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from episodes.columns import Columns
from episodes.draws.columns import blank
from episodes.draws.draw import OF_LAST, StepsDraw, WindowsDraw
from episodes.draws.windows import WindowLayout
from episodes.history import HistorySpaces
from episodes.replay import link_traversal
from episodes.replay.context_steps import context_of, entries_at, fill, gather, link, steps_before
from episodes.replay.replay_history import ReplayHistory
from episodes.replay.ring.linked_ring import OBSERVED, REWARDS, LinkedRing
from episodes.tracks.stacking import object_array


class RingSteps(StepsDraw):
    """Steps at the ring positions `slots`. Padding has the position `capacity`.

    Args:
        ring: ring of the steps.
        slots: positions of the steps, [n].
    """

    def __init__(self, ring: LinkedRing, slots: np.ndarray) -> None:
        self.ring, self.slots, self.last = ring, slots, slots

    @property
    def rewards_are_finite(self) -> bool:
        return self.ring.rewards_are_finite

    def stored(self, keys: Sequence[str]) -> dict[str, Any]:
        ring, slots, last = self.ring, self.slots, self.last
        gathered = ring.columns
        columns = {}
        for key in keys:
            if key in gathered:
                columns[key] = gathered[key](last if key in OF_LAST else slots)
            elif key == Columns.OBS:
                columns[key] = ring.observations.take(ring.links.row[slots])
            elif key == Columns.NEXT_OBS:
                columns[key] = ring.observations.take(ring.links.next_row[last])
        return columns

    def single_steps(self) -> tuple[RingSteps, RingSteps]:
        if self.last is self.slots:
            return self, self
        return RingSteps(self.ring, self.slots), RingSteps(self.ring, self.last)

    def times(self) -> np.ndarray:
        return self.ring.links.t[self.slots]

    def is_first(self) -> np.ndarray:
        return (self.times() == 0) & (self.slots < self.ring.capacity)

    def versions(self) -> np.ndarray:
        return self.ring.versions.at(self.slots)

    def facts(self, name: str) -> np.ndarray:
        table, slots = self.ring.table, self.slots.ravel()
        entries = entries_at(self.ring, slots).tolist()
        of = table.id_of if name == Columns.EPS_ID else lambda entry: getattr(table.facts[entry], name)
        result = np.full(len(slots), None, object)
        real = np.flatnonzero(slots != self.ring.capacity).tolist()
        result[real] = object_array([of(entries[i]) for i in real])
        return result.reshape(self.slots.shape)

    def infos(self) -> np.ndarray:
        return _infos(self.ring, self.slots)

    def info_columns(self) -> dict[str, np.ndarray]:
        return _info_columns(self.ring, self.slots)

    def history(
        self, before: bool, after: bool, spaces: HistorySpaces, lookback: int | None
    ) -> tuple[ReplayHistory, int]:
        steps = self.slots.ravel()
        ends = steps if self.last is self.slots else self.last.ravel()
        steps, ends = steps if before else steps[:0], ends if after else ends[:0]
        return ReplayHistory.around(self.ring, steps, ends, spaces, lookback), len(steps)

    def arrange(self, values: np.ndarray) -> np.ndarray:
        padding = self._padding
        if padding is None:
            return values
        values = values.copy()
        blank(values, padding)
        return values

    @cached_property
    def _padding(self) -> np.ndarray | None:
        """Mask of the padding, bool [*shape], or None if there is none."""
        padding = self.slots == self.ring.capacity
        return padding if np.count_nonzero(padding) else None

    def path(self, num_steps: int) -> list[np.ndarray]:
        return link_traversal.walk_to_ends(self.ring.links.next, self.slots, num_steps - 1)

    def num_between(self, positions: np.ndarray, later: np.ndarray) -> np.ndarray:
        t = self.ring.links.t
        return t[later] - t[positions]

    def reward_reader(self) -> Callable[[np.ndarray], np.ndarray]:
        return self.ring.tracks[REWARDS].data.__getitem__


class RingWindows(RingSteps, WindowsDraw):
    """Windows of steps at the ring positions `slots` [B, W]. Some may be context steps, with positions beyond padding.

    Args:
        ring: ring of the steps.
        slots: positions of the steps.
        layout: which of the steps exist.
        t: times of the steps after the columns on the left, [B].
    """

    def __init__(self, ring: LinkedRing, slots: np.ndarray, layout: WindowLayout, t: np.ndarray) -> None:
        self.ring, self.slots, self.last = ring, slots, slots
        self.layout, self._t = layout, t
        context = context_of(ring) if layout.left else None
        if context is not None and not np.count_nonzero(slots > ring.capacity):
            context = None
        self._context = context  # of some step in the windows

    def stored(self, keys: Sequence[str]) -> dict[str, Any]:
        if self._context is None:
            return super().stored(keys)
        return {
            key: gather(self.ring, self.slots, lambda part, at, key=key: RingSteps(part, at).stored([key])[key])
            for key in keys
            if key in self.ring.columns or key in OBSERVED
        }

    def times(self) -> np.ndarray:
        return link(self.ring, "t", self.slots)

    def is_first(self) -> np.ndarray:
        return self.layout.is_first(self._t)

    def versions(self) -> np.ndarray:
        return gather(self.ring, self.slots, lambda part, at: part.versions.at(at))

    def infos(self) -> np.ndarray:
        return gather(self.ring, self.slots, _infos)

    def info_columns(self) -> dict[str, np.ndarray]:
        columns = _info_columns(self.ring, np.minimum(self.slots, self.ring.capacity))
        if self._context is None:
            return columns
        in_context = self.slots > self.ring.capacity
        added = _info_columns(self._context.ring, self.slots[in_context] - self.ring.capacity - 1)
        for path, values in added.items():  # each ring has the keys that it knows
            if path not in columns:
                columns[path] = _zeros(self.slots.shape, values)
            columns[path] = fill(columns[path], in_context, values)
        return columns

    def arrange(self, values: np.ndarray) -> np.ndarray:
        return super().arrange(values.reshape(*self.slots.shape, *values.shape[1:]))

    def history_at(self, column: int) -> ReplayHistory:
        ring, slots = self.ring, self.slots[:, column]
        return ReplayHistory(ring, link(ring, "row", slots), steps_before(ring, slots), slots, HistorySpaces())


def _infos(ring: LinkedRing, slots: np.ndarray) -> np.ndarray:
    """Return for each step the info dict of the observation after it, as an object array. Padding gets {}."""
    result = np.full(slots.shape, None, object)
    result.reshape(-1)[:] = list(ring.infos.at(ring.rows_head, _next_rows(ring, slots).ravel()))
    return result


def _info_columns(ring: LinkedRing, slots: np.ndarray) -> dict[str, np.ndarray]:
    """Return the infos of the observations after the steps as columns. Padding is missing."""
    return ring.infos.columns(ring.rows_head, _next_rows(ring, slots))


def _next_rows(ring: LinkedRing, slots: np.ndarray) -> np.ndarray:
    return ring.links.next_row[slots].astype(np.int64)


def _zeros(shape: tuple[int, ...], like: np.ndarray) -> np.ndarray:
    """Return zeros (None for objects) of the dtype and item shape of `like` [n, ...], as an array [*shape, ...]."""
    shape = (*shape, *like.shape[1:])
    return np.full(shape, None, object) if like.dtype == object else np.zeros(shape, like.dtype)

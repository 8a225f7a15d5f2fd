"""Columns of batches out of a linked ring: one gather each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from episodes import nested
from episodes.columns import Columns
from episodes.errors import UnknownKey
from episodes.replay import draws
from episodes.replay.linked_ring import REWARDS, STEP_TRACKS, TERMINATEDS, TRUNCATEDS, LinkedRing
from episodes.replay.links import ENTRY_FIELD, NEXT_ROW_FIELD, ROW_FIELD, T_FIELD

TRANSITION_KEYS = (
    Columns.OBS,
    Columns.NEXT_OBS,
    Columns.ACTIONS,
    Columns.REWARDS,
    Columns.TERMINATEDS,
    Columns.TRUNCATEDS,
)
_FACTS = (Columns.AGENT_ID, Columns.MODULE_ID)
_KNOWN_KEYS = (*TRANSITION_KEYS, Columns.INFOS, Columns.T, Columns.EPS_ID, *_FACTS)
_ENDINGS = (TERMINATEDS, TRUNCATEDS)


def checked_keys(ring: LinkedRing, keys: Sequence[str] | None, include_infos: bool) -> Sequence[str]:
    """The names of the columns to draw. `UnknownKey` for one that there is not."""
    if keys is None:
        return (*TRANSITION_KEYS, Columns.INFOS) if include_infos else TRANSITION_KEYS
    for key in keys:
        if key not in ring.tracks and key not in _KNOWN_KEYS:
            extras = [name for name in ring.tracks if name not in STEP_TRACKS]
            raise UnknownKey(f"no column {key!r} to draw; there are {[*_KNOWN_KEYS, *extras]}")
    return (*keys, Columns.INFOS) if include_infos and Columns.INFOS not in keys else keys


class Drawn(NamedTuple):
    """Steps that were drawn: positions [...] of each draw's first step and of its last, and the records there."""

    slots: np.ndarray
    last: np.ndarray
    record: np.ndarray
    last_record: np.ndarray
    stack: int

    @property
    def counts(self) -> np.ndarray:
        """How many steps [...] each draw is long."""
        return self.last_record[T_FIELD] - self.record[T_FIELD] + 1


def gathered(ring: LinkedRing, slots: np.ndarray, last: np.ndarray, stack: int) -> Drawn:
    """The draws that begin with the steps at positions `slots` [...] and end with those at `last` [...]."""
    record = ring.records.gather(slots)
    return Drawn(slots, last, record, record if last is slots else ring.records.gather(last), stack)


def gathered_along(ring: LinkedRing, slots: np.ndarray, n_step: int, gamma: float, stack: int) -> tuple[Drawn, Any]:
    """The draws of up to n steps of an episode from each of the positions `slots` [n], and their rewards' sums [n]."""
    path = draws.walk(ring.links.next, slots, n_step - 1)
    records = ring.records.gather(path)
    rewards = records[REWARDS] if REWARDS in ring.recorded else ring.tracks[REWARDS].take(path)
    drawn = Drawn(slots, path[-1], records[0], records[-1], stack)
    return drawn, draws.discounted(path, rewards, gamma)


def columns_of(ring: LinkedRing, keys: Sequence[str], drawn: Drawn) -> dict[str, Any]:
    """The columns of these names."""
    return {key: _column(ring, key, drawn) for key in keys}


def _column(ring: LinkedRing, key: str, drawn: Drawn) -> Any:
    if key in ring.recorded:
        return (drawn.last_record if key in _ENDINGS else drawn.record)[key].copy()
    if key == Columns.OBS:
        if drawn.stack > 1:
            return ring.observations.take(draws.stack_rows(ring.links, drawn.slots, drawn.stack, after=False))
        return ring.observations.take(drawn.record[ROW_FIELD])
    if key == Columns.NEXT_OBS:
        if drawn.stack > 1:
            return ring.observations.take(draws.stack_rows(ring.links, drawn.last, drawn.stack, after=True))
        return ring.observations.take(drawn.last_record[NEXT_ROW_FIELD])
    if key in ring.tracks:
        return ring.tracks[key].take(drawn.slots)
    return _about(ring, key, drawn)


def _about(ring: LinkedRing, key: str, drawn: Drawn) -> np.ndarray:
    """A column of what is known of the steps beside their tracks."""
    if key == Columns.T:
        return drawn.record[T_FIELD].copy()
    if key == Columns.INFOS:
        return _infos(ring, drawn)
    entries = drawn.record[ENTRY_FIELD].ravel().tolist()
    if key == Columns.EPS_ID:
        found = np.array([ring.table.ids[entry] for entry in entries])
    else:
        found = np.array([getattr(ring.table.facts[entry], key) for entry in entries], object)
    found = found.reshape(drawn.slots.shape)
    blank(found, drawn.slots == ring.capacity)
    return found


def _infos(ring: LinkedRing, drawn: Drawn) -> np.ndarray:
    """The infos [...] after the steps; empty ones on padding."""
    found = np.full(drawn.slots.shape, None, object)
    rows = ring.row_numbers(drawn.last_record[NEXT_ROW_FIELD].astype(np.int64)).ravel().tolist()
    there = (drawn.slots < ring.capacity).ravel().tolist()
    found.reshape(-1)[:] = [ring.infos.item(row) if real else {} for row, real in zip(rows, there, strict=True)]
    return found


def states_before(ring: LinkedRing, slots: np.ndarray) -> Any:
    """The recurrent states [n, ...] that the steps were made from; zeros where an episode begins."""
    before = ring.links.previous.take(slots)
    states = ring.tracks[Columns.STATE_OUT].take(before)
    blank(states, before == slots)
    return states


def blank(column: Any, gone: np.ndarray) -> None:
    """Put zeros (None among objects, empty strings among strings) where the mask [n] is True."""
    for leaf in nested.leaves(column):
        leaf[gone] = None if leaf.dtype == object else np.zeros((), leaf.dtype)

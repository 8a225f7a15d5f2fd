"""Columns of batches out of a linked ring: one gather each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from episodes import nested
from episodes.columns import Columns
from episodes.errors import UnknownKey
from episodes.replay import draws
from episodes.replay.linked_ring import STEP_TRACKS, TERMINATEDS, TRUNCATEDS, LinkedRing

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


def column(ring: LinkedRing, key: str, slots: np.ndarray, last: np.ndarray, stack: int) -> Any:
    """One column for the steps at positions `slots` [...] of draws that end with the steps at `last` [...]."""
    if key == Columns.OBS:
        return observed(ring, slots, stack, after=False)
    if key == Columns.NEXT_OBS:
        return observed(ring, last, stack, after=True)
    track = ring.tracks.get(key)
    if track is not None:
        return track.take(last if key in _ENDINGS else slots)
    if key == Columns.T:
        return ring.links.t.take(slots)
    if key == Columns.INFOS:
        return _infos(ring, last)
    return _facts(ring, key, slots)


def observed(ring: LinkedRing, slots: np.ndarray, stack: int, *, after: bool) -> Any:
    """The observations before the steps, or after them: nested arrays [..., ...], stacks [..., stack, ...]."""
    links = ring.links
    if stack > 1:
        return ring.observations.take(draws.stack_rows(links, slots, stack, after=after))
    return ring.observations.take((links.next_row if after else links.row).take(slots))


def _infos(ring: LinkedRing, slots: np.ndarray) -> np.ndarray:
    """The infos [...] after the steps; empty ones on padding."""
    found = np.full(slots.shape, None, object)
    rows = ring.row_numbers(ring.links.next_row.take(slots)).ravel().tolist()
    there = (slots < ring.capacity).ravel().tolist()
    found.reshape(-1)[:] = [ring.infos.item(row) if real else {} for row, real in zip(rows, there, strict=True)]
    return found


def _facts(ring: LinkedRing, key: str, slots: np.ndarray) -> np.ndarray:
    """What the table says of the steps' episodes, [...]; empty strings or None on padding."""
    entries = ring.links.entry.take(slots).ravel().tolist()
    if key == Columns.EPS_ID:
        found = np.array([ring.table.ids[entry] for entry in entries])
    else:
        found = np.array([getattr(ring.table.facts[entry], key) for entry in entries], object)
    found = found.reshape(slots.shape)
    blank(found, slots == ring.capacity)
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

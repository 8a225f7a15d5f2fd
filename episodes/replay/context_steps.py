"""Steps before the stored beginning of an episode: which of them are known, and how they are read.

The stored part of an episode begins later than the episode if the ring has evicted its first steps, or if the chunk
before it was never added. A chunk that is added without the chunk before it brings the steps of its lookback. They are
stored as context: views, recurrent states and burn-in read them, but they are no steps of the buffer. They are never
sampled or learned from, and have no step index.

    lookback of the chunk, L = 3       stored steps
    -3  -2  -1                         0  1  2  3  ...          positions in the ring: 0 to `capacity` - 1
    capacity + 1 + k                                            positions of context steps

All functions here take and return both kinds of positions. `capacity` is still the padding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from episodes.draws import windows
from episodes.pack import EpisodePack
from episodes.replay.adding import addition_of, step_tracks_of
from episodes.replay.ring.linked_ring import LinkedRing
from episodes.replay.ring.track_ring import Allocator
from episodes.tracks import nested

ADVICE = "make the buffer larger, add episodes from their beginnings, or add chunks"
"""What to do if steps before a sampled step are not known, in the words of `unknown_steps`."""


class ContextSteps(NamedTuple):
    """Context steps of all stored episodes, in a ring of their own.

    Attributes:
        ring: ring of the context steps. Each lookback is an episode in it, and its steps are contiguous.
        newest: position of the newest context step by entry of the episode table, `capacity` without context, int64.
        counts: number of context steps by entry of the episode table, int64.
    """

    ring: LinkedRing
    newest: np.ndarray
    counts: np.ndarray


def context_of(ring: LinkedRing) -> ContextSteps | None:
    """Return the context steps of the stored episodes, or None if there are none."""
    table = ring.table
    if not table.lookbacks:
        return None
    if table.context is None:
        entries = np.array([*table.lookbacks], np.int64)
        pack = EpisodePack.from_episodes([*table.lookbacks.values()])
        steps = LinkedRing(pack.num_steps, Allocator())
        steps.create_missing(pack.observations, step_tracks_of(pack))
        steps.add(addition_of(steps, pack))
        newest, counts = np.full(len(table.first), ring.capacity), np.zeros(len(table.first), np.int64)
        newest[entries], counts[entries] = ring.capacity + np.cumsum(pack.lengths), pack.lengths
        table.context = ContextSteps(steps, newest, counts)
    return table.context


# --- which steps are known ---------------------------------------------------------------------------------------


def begins(ring: LinkedRing, entries: np.ndarray) -> np.ndarray:
    """Return the time of the first known step, context included, of the episodes in the table rows `entries` [n]."""
    t = ring.links.t[ring.table.first[entries]]
    context = context_of(ring)
    return t if context is None else t - context.counts[entries]


def are_complete(ring: LinkedRing, slots: np.ndarray, reach: int | None) -> np.ndarray:
    """Return whether the steps that a row reads before its own are stored or context, for the steps at `slots` [n],
    bool [n]. `draws.windows.are_complete` has the rule, and describes `reach`.
    """
    return windows.are_complete(begins(ring, ring.links.entry[slots]), ring.links.t[slots], reach)


# --- reading -----------------------------------------------------------------------------------------------------


def steps_before(ring: LinkedRing, slots: np.ndarray) -> np.ndarray:
    """Return the positions of the steps before those at `slots`, or `capacity` if they are not known."""
    context = context_of(ring)
    if context is None:
        before = ring.links.previous[slots]
        np.copyto(before, ring.capacity, where=before == slots)
        return before
    first, in_context = ring.capacity + 1, slots > ring.capacity
    stored = np.where(in_context, ring.capacity, slots)
    before = ring.links.previous[stored]
    is_first = (before == stored) & (stored < ring.capacity)
    before[is_first] = context.newest[ring.links.entry[stored[is_first]]]
    earlier = slots[in_context] - first
    led = context.ring.links.previous[earlier]
    before[in_context] = np.where(led == earlier, ring.capacity, led + first)
    return before


def gather(
    ring: LinkedRing, positions: np.ndarray, read: Callable[[LinkedRing, np.ndarray], Any], padding: int | None = None
) -> Any:
    """Return the items that `read(ring, positions)` returns, where positions may be of stored and of context steps.

    Args:
        ring: ring of the stored steps.
        positions: positions [...] of steps, or of observations.
        read: returns new nested arrays [..., *item] of a ring at its positions.
        padding: position of the padding: by default that of steps, `capacity`.
    """
    context, padding = context_of(ring), ring.capacity if padding is None else padding
    if context is None or not np.count_nonzero(in_context := positions > padding):
        return read(ring, positions)
    items = read(ring, np.where(in_context, padding, positions))
    return fill(items, in_context, read(context.ring, positions[in_context] - padding - 1))


def link(ring: LinkedRing, name: str, positions: np.ndarray) -> np.ndarray:
    """Return the link `name` ("t", "row" or "next_row") of steps. Rows of context steps are context rows."""
    if context_of(ring) is None:
        return getattr(ring.links, name)[positions]
    shift = 0 if name == "t" else ring.num_rows + 1

    def read(part: LinkedRing, at: np.ndarray) -> np.ndarray:
        items = getattr(part.links, name)[at].astype(np.int64)
        return items if part is ring else items + shift

    return gather(ring, positions, read)


def observations_at(ring: LinkedRing, rows: np.ndarray) -> Any:
    """Return the observations at `rows`, which are positions of observations or context rows."""
    return gather(ring, rows, lambda part, at: part.observations.take(at), ring.num_rows)


def entries_at(ring: LinkedRing, positions: np.ndarray) -> np.ndarray:
    """Return the episodes of steps, as rows of the ring's episode table, int64."""
    context = context_of(ring)
    if context is None:
        return ring.links.entry[positions]
    owners = np.array([*ring.table.lookbacks], np.int64)
    return gather(
        ring,
        positions,
        lambda part, at: part.links.entry[at] if part is ring else owners[context.ring.links.entry[at]],
    )


def info_dicts_at(ring: LinkedRing, rows: np.ndarray) -> list[dict[str, Any]]:
    """Return the infos of the observations at `rows` [n], which are positions of observations or context rows."""

    def read(part: LinkedRing, at: np.ndarray) -> np.ndarray:
        result = np.full(len(at), None, object)
        result[:] = list(part.infos_at(at))
        return result

    return gather(ring, rows, read, ring.num_rows).tolist()


def fill(items: object, mask: np.ndarray, values: object) -> Any:
    """Return the nested arrays `items` [...] with `values` [k] where `mask` [...] is True. Strings are widened."""

    def fill_leaf(leaf: np.ndarray, part: np.ndarray) -> np.ndarray:
        if leaf.dtype.kind in "US" and part.dtype.itemsize > leaf.dtype.itemsize:
            leaf = leaf.astype(part.dtype)
        leaf[mask] = part
        return leaf

    return nested.map_leaves(fill_leaf, items, values)

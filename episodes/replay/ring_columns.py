"""Columns of replay batches, computed from the ring positions of sampled steps.

A new column has a name in `Columns`, an entry in `_OF_STEPS` of `episodes/batch/sampling_checks.py`, a branch in
`_column` here, and one in `episodes/storage/sampling/stored_columns.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.batch.sampling_checks import INFO_COLUMNS
from episodes.columns import Columns
from episodes.history import BoundViews
from episodes.replay import link_traversal
from episodes.replay.context_steps import context_of, fill, gather, steps_before
from episodes.replay.replay_history import ReplayHistory
from episodes.replay.ring.linked_ring import OBSERVED, REWARDS, TERMINATEDS, TRUNCATEDS, LinkedRing
from episodes.tracks import nested

if TYPE_CHECKING:
    from episodes.data_types import NestedArrays

_OF_LAST = frozenset((Columns.NEXT_OBS, TERMINATEDS, TRUNCATEDS))


def n_step_columns(
    ring: LinkedRing, slots: np.ndarray, n_step: int | np.ndarray, gamma: float
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the last step of each n-step window [n], and columns with its discounted reward sum and length.

    Args:
        ring: ring of the steps.
        slots: positions of the first steps, [n].
        n_step: maximum number of steps, one int or int [n]. Windows end with their episodes.
        gamma: discount factor.

    Returns:
        The positions [n] of the last steps, and columns: the discounted sums of rewards, and the numbers of steps.
    """
    if isinstance(n_step, int):
        path = link_traversal.walk_to_ends(ring.links.next, slots, n_step - 1)
        last = path[-1]
    else:
        path = link_traversal.walk_to_ends(ring.links.next, slots, int(n_step.max(initial=1)) - 1)
        last = np.stack(path)[np.minimum(n_step, len(path)) - 1, np.arange(len(slots))]
    num_later = ring.links.t[last] - ring.links.t[slots]
    sums = link_traversal.discounted if ring.rewards_are_finite else link_traversal.discounted_infinite
    returns = sums(ring.tracks[REWARDS].data, path, num_later, gamma)
    return last, {REWARDS: returns, Columns.N_STEP: (num_later + 1).astype(np.int32)}


def columns_of(
    ring: LinkedRing,
    keys: Sequence[str],
    slots: np.ndarray,
    last: np.ndarray,
    known: Mapping[str, np.ndarray] | None = None,
    views: BoundViews | None = None,
) -> dict[str, Any]:
    """Return the batch columns `keys` for n-step windows from the ring positions `slots` to `last`.

    Args:
        ring: ring of the steps.
        keys: names of the columns.
        slots: positions of the first steps.
        last: positions of the last steps.
        known: columns that need not be computed.
        views: functions that compute the policy's columns. They replace "obs" and "new_obs".
    """
    if views is not None:
        viewed = _view_columns(ring, keys, slots, last, views)
        return columns_of(ring, [key for key in keys if key not in OBSERVED], slots, last, known) | viewed
    context = context_of(ring)
    if context is not None and np.count_nonzero(slots > ring.capacity):
        return _with_context(ring, context.ring, keys, slots)
    columns: dict[str, Any] = {}
    gathered = ring.columns
    for key in keys:
        if known is not None and key in known:
            columns[key] = known[key]
        elif key in gathered:
            columns[key] = gathered[key](last if key in _OF_LAST else slots)
        else:
            columns[key] = _column(ring, key, slots, last)
    if INFO_COLUMNS in columns:
        columns[Columns.INFOS] = columns.pop(INFO_COLUMNS)
    return columns


def _with_context(ring: LinkedRing, context: LinkedRing, keys: Sequence[str], slots: np.ndarray) -> dict[str, Any]:
    """Return the batch columns `keys` of sequences [B, W] that have context steps."""
    in_context = slots > ring.capacity
    stored = np.where(in_context, ring.capacity, slots)
    columns = columns_of(ring, keys, stored, stored)
    steps = slots[in_context] - ring.capacity - 1
    added = columns_of(context, keys, steps, steps)
    if isinstance(infos := added.get(Columns.INFOS), dict):  # columns by key path, which may be those of one ring only
        known = columns[Columns.INFOS]
        for path, values in infos.items():
            if path not in known:
                known[path] = np.full(
                    (*slots.shape, *values.shape[1:]), None if values.dtype == object else values[:1][0]
                )
                blank(known[path], np.ones(slots.shape, bool))
            known[path] = fill(known[path], in_context, values)
        columns[Columns.INFOS], added = known, {key: added[key] for key in added if key != Columns.INFOS}
    return columns | {key: fill(columns[key], in_context, added[key]) for key in added}


def _view_columns(
    ring: LinkedRing, keys: Sequence[str], slots: np.ndarray, last: np.ndarray, views: BoundViews
) -> dict[str, Any]:
    """Return the columns that the views compute at the observations before the steps `slots` and, as "new_<column>",
    after the steps `last`.

    Columns before the steps are computed only if `keys` has `obs`, and columns after them only if it has `new_obs`.
    """
    steps = slots.ravel()
    ends = steps if last is slots else last.ravel()
    before = steps if Columns.OBS in keys else steps[:0]
    after = ends if Columns.NEXT_OBS in keys else ends[:0]
    if not len(before) + len(after):
        return {}
    padded = (slots == ring.capacity) if np.count_nonzero(steps == ring.capacity) else None
    columns = views(ReplayHistory.around(ring, before, after, views.given, views.lookback))
    result, half = {}, len(before)
    for prefix, part in (("", slice(0, half)), ("new_", slice(half, half + len(after)))):
        if part.start < part.stop:
            for name, column in columns.items():
                values = nested.take(column, part)
                result[prefix + name] = (
                    values if slots.ndim == 1 and padded is None else _reshape_column(values, slots.shape, padded)
                )
    return result


def _reshape_column(column: NestedArrays, shape: tuple[int, ...], padded: np.ndarray | None) -> Any:
    """Reshape the first axis of a (nested) column to `shape`, and blank the items where `padded` is True."""
    column = nested.map_leaves(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), column)
    if padded is not None:
        column = nested.map_leaves(np.copy, column)
        blank(column, padded)
    return column


def _column(ring: LinkedRing, key: str, slots: np.ndarray, last: np.ndarray) -> Any:
    """Return one column of a batch.

    Args:
        slots: positions of the sampled steps. Most columns, such as observations, are of these.
        last: position of the last step of each n-step transition. Next observations and infos are of these.
    """
    if key == Columns.OBS:
        return ring.observations.take(ring.links.row[slots])
    if key == Columns.NEXT_OBS:
        return ring.observations.take(ring.links.next_row[last])
    if key == Columns.T:
        return ring.links.t[slots]
    if key == Columns.POLICY_VERSION:
        return ring.versions.at(slots)
    if key == INFO_COLUMNS:
        return ring.infos.columns(ring.rows_head, ring.links.next_row[last].astype(np.int64))
    if key == Columns.IS_FIRST:
        return (ring.links.t[slots] == 0) & (slots < ring.capacity)
    return _infos(ring, last) if key == Columns.INFOS else _ids(ring, key, slots)


def _ids(ring: LinkedRing, key: str, slots: np.ndarray) -> np.ndarray:
    """Return the episode id, agent id or module id of each step, as `key` selects. Padding gets None or ""."""
    is_step = (slots < ring.capacity).ravel().tolist()
    steps = zip(ring.links.entry[slots].ravel().tolist(), is_step, strict=True)
    if key == Columns.EPS_ID:
        return np.array([ring.table.id_of(entry) if real else "" for entry, real in steps]).reshape(slots.shape)
    result = np.full(slots.shape, None, object)
    result.reshape(-1)[:] = [getattr(ring.table.facts[entry], key) if real else None for entry, real in steps]
    return result


def _infos(ring: LinkedRing, slots: np.ndarray) -> np.ndarray:
    """Return for each step the info dict of the observation after it, as an object array. Padding gets {}."""
    result = np.full(slots.shape, None, object)
    rows = ring.links.next_row[slots].astype(np.int64).ravel()
    result.reshape(-1)[:] = list(ring.infos.at(ring.rows_head, rows))
    return result


def states_before(ring: LinkedRing, slots: np.ndarray) -> Any:
    """Return the policy's recurrent state before each step at `slots` [n]. It is zero before the first step of an
    episode, and for padding.
    """
    before = steps_before(ring, slots)
    states = gather(ring, before, lambda part, at: part.tracks[Columns.STATE_OUT].take(at))
    blank(states, before == ring.capacity)
    return states


def blank(column: NestedArrays, mask: np.ndarray) -> None:
    """Set the items where `mask` [n] is True to zero, None (objects) or "" (strings), in place."""
    for leaf in nested.leaves(column):
        leaf[mask] = None if leaf.dtype == object else np.zeros((), leaf.dtype)

"""Traversal of the links between the steps of an episode in a replay ring, for sequences and n-step returns.

A link that points at its own step ends a walk (see `step_links`), so each walk is the same few gathers for all rows:

    next           1  2  2  4  5  5        two episodes, at positions 0..2 and 3..5
    start          0  3  5
    after 1 step   1  4  5
    after 2 steps  2  5  5                 the third walk stays at the last step of its episode
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from episodes.draws.windows import WindowLayout, most_steps_back
from episodes.replay.context_steps import begins, context_of
from episodes.replay.ring.linked_ring import LinkedRing
from episodes.replay.ring.step_links import StepLinks

_STRIDE = 16  # links between two tests whether all walks have reached an end


def walk(links: np.ndarray, slots: np.ndarray, num_steps: int) -> list[np.ndarray]:
    """Follow `links` (to next or previous steps) from the ring positions `slots` [n] for `num_steps` steps.

    Returns the positions [n] after 0, 1, ..., `num_steps` links, as a list.
    """
    path = [slots]
    for _ in range(num_steps):
        path.append(links[path[-1]])
    return path


def walk_to_ends(links: np.ndarray, slots: np.ndarray, most_steps: int) -> list[np.ndarray]:
    """Follow `links` like `walk`, but stop early once every walk has reached the end of its episode. Its positions
    after at most `most_steps` steps are returned as a list, one array per step.
    """
    path = walk(links, slots, min(most_steps, _STRIDE))
    while len(path) <= most_steps and (path[-1] != path[-2]).any():
        path += walk(links, path[-1], min(most_steps + 1 - len(path), _STRIDE))[1:]
    return path


class StepsAround(NamedTuple):
    """Number of stored steps before and after each of B sampled steps in its episode.

    Attributes:
        before: number of steps before it.
        onward: number of steps from it on.
        in_a_row: whether all steps of the episode are at contiguous positions, bool [B].
        t: time of the sampled step.
    """

    before: np.ndarray
    onward: np.ndarray
    in_a_row: np.ndarray
    t: np.ndarray


def extents(ring: LinkedRing, slots: np.ndarray) -> StepsAround:
    """Count the stored steps before each step at the ring positions `slots` [B], and from it on, in its episode."""
    entry, t = ring.links.entry[slots], ring.links.t
    first, last, now = ring.table.first[entry], ring.table.last[entry], t[slots]
    begin, newest = t[first], t[last]
    return StepsAround(now - begin, newest - now + 1, last - first == newest - begin, now)


def shift_starts_back(
    ring: LinkedRing, slots: np.ndarray, extents: StepsAround, length: int, reach: int | None
) -> tuple[np.ndarray, StepsAround]:
    """Move the starts of sequences, ring positions `slots` [B], back within their episodes, so that `length` stored
    steps follow if possible.

    Args:
        extents: numbers of steps before and after the given starts.
        reach: number of steps before a start that must be known, or all before it (see `are_complete`). The given
            starts are complete.

    Returns:
        The new starts, and the numbers of steps before and after them.
    """
    back = np.minimum(np.maximum(length - extents.onward, 0), extents.before)
    if reach != 0 and back.any():
        begin = begins(ring, ring.links.entry[slots])
        back = np.minimum(back, most_steps_back(begin, extents.t, reach))
    if back.any():
        path = walk(ring.links.previous, slots, int(back.max()))
        slots = np.stack(path)[back, np.arange(len(slots))]
    return slots, StepsAround(extents.before - back, extents.onward + back, extents.in_a_row, extents.t - back)


def windows(
    ring: LinkedRing, slots: np.ndarray, extents: StepsAround, length: int, left: int
) -> tuple[np.ndarray, WindowLayout]:
    """Return the ring positions [B, W] of windows, and their layout. Padding has the position `capacity`, context steps
    have larger ones.

    Args:
        ring: ring of the steps.
        slots: positions of the sampled steps, [B].
        extents: numbers of steps before and after these.
        length: number of columns from the sampled steps on.
        left: number of columns before them.
    """
    context = context_of(ring) if left else None
    before, entry = extents.before, None
    if context is not None:
        entry = ring.links.entry[slots]
        before = before + context.counts[entry]
    layout = WindowLayout.of(before, extents.onward, left, length)
    runs = (slots - left if left else slots)[:, None] + layout.columns
    if np.count_nonzero(extents.in_a_row) < len(slots):
        _follow(ring.links, runs, slots, extents, np.minimum(extents.onward, length), left)
    if context is not None:
        stored = (left - extents.before)[:, None]
        np.copyto(runs, context.newest[entry][:, None] - (stored - 1 - layout.columns), where=layout.columns < stored)
    np.copyto(runs, ring.capacity, where=~layout.exists)
    return runs, layout


def _follow(
    links: StepLinks, runs: np.ndarray, slots: np.ndarray, extents: StepsAround, ahead: np.ndarray, left: int
) -> None:
    """Correct, in place, the sequence positions `runs` [B, W] of episodes whose steps are not adjacent in the ring.

    `ahead` [B] steps from those at `slots` on are needed, which come after `left` columns.
    """
    runs %= links.capacity
    apart = np.flatnonzero(~extents.in_a_row)
    picked, num_before, ahead = slots[apart], np.minimum(extents.before[apart], left), ahead[apart]
    scattered = np.flatnonzero(~_in_a_row(links, picked, num_before, ahead))
    if len(scattered):
        picked, max_before = picked[scattered], int(num_before[scattered].max())
        path = _paths(links, picked, max_before, int(ahead[scattered].max()))
        at = np.clip(max_before - left + np.arange(runs.shape[1]), 0, len(path) - 1)
        runs[apart[scattered]] = path[at].T


def _paths(links: StepLinks, slots: np.ndarray, num_behind: int, num_ahead: int) -> np.ndarray:
    """Return ring positions [num_behind + num_ahead, n] of the steps before, at and after each of `slots` [n]."""
    path = np.empty((num_behind + num_ahead, len(slots)), np.int64)
    path[num_behind:] = walk(links.next, slots, num_ahead - 1)
    if num_behind:
        path[num_behind::-1] = walk(links.previous, slots, num_behind)
    return path


def _in_a_row(links: StepLinks, slots: np.ndarray, num_before: np.ndarray, ahead: np.ndarray) -> np.ndarray:
    """Return whether the steps of each sequence around `slots` [n] lie at adjacent ring positions, bool [n].

    The positions are the `num_before` before those at `slots`, and the `ahead` from them on. Steps of an episode are
    stored in the order of their times, so it is enough to compare both ends.
    """
    first, last = (slots - num_before) % links.capacity, (slots + ahead - 1) % links.capacity
    entry = links.entry[slots]
    same = (links.entry[first] == entry) & (links.entry[last] == entry)
    same &= links.t[last] - links.t[first] == (last - first) % links.capacity
    return same

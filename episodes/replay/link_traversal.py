"""Traversal of the links between the steps of an episode in a replay ring, for sequences and n-step returns.

A link that points at its own step ends a walk (see `step_links`), so each walk is the same few gathers for all rows:

    next           1  2  2  4  5  5        two episodes, at positions 0..2 and 3..5
    start          0  3  5
    after 1 step   1  4  5
    after 2 steps  2  5  5                 the third walk stays at the last step of its episode
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from episodes.replay.context_steps import begins, context_of
from episodes.replay.ring.linked_ring import LinkedRing
from episodes.replay.ring.step_links import StepLinks

_FEW = 256  # weights of more steps are not cached
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


def discounted(rewards: np.ndarray, path: Sequence[np.ndarray], num_later: np.ndarray, gamma: float) -> np.ndarray:
    """Return the discounted sum of the rewards of each n-step window, float [n]. `path` has the positions of its steps.

    Args:
        rewards: rewards by position.
        path: positions [n] of the first steps and of the steps after them.
        num_later: how many steps after the first count, [n].
        gamma: discount factor.
    """
    total = rewards[path[0]]
    for step, weights in zip(path[1:], _discounts(len(path), gamma, total.dtype.char), strict=True):
        later = rewards[step]
        later *= weights[num_later]
        total += later
    return total


def discounted_infinite(
    rewards: np.ndarray, path: Sequence[np.ndarray], num_later: np.ndarray, gamma: float
) -> np.ndarray:
    """Return the same sums as `discounted`, but avoid NaN if rewards after the end of a window are infinite.

    A reward that does not count must not be multiplied by 0, since the product would be NaN.
    """
    total = rewards[path[0]]
    with np.errstate(invalid="ignore"):  # inf - inf
        for k, step in enumerate(path[1:], 1):
            total += np.where(num_later >= k, rewards[step], 0) * gamma**k
    return total


def _discounts(num_steps: int, gamma: float, dtype: str) -> Iterable[np.ndarray]:
    """Yield for k = 1, 2, ... the weight of the reward k steps later: gamma^k, or 0 in windows that end before."""
    if num_steps <= _FEW:
        return _few_discounts(num_steps, gamma, dtype)
    return (_weights(k, num_steps, gamma, dtype) for k in range(1, num_steps))


@lru_cache(maxsize=8)
def _few_discounts(num_steps: int, gamma: float, dtype: str) -> tuple[np.ndarray, ...]:
    return tuple(_weights(k, num_steps, gamma, dtype) for k in range(1, num_steps))


def _weights(k: int, num_steps: int, gamma: float, dtype: str) -> np.ndarray:
    """Return the weights [num_steps] of the reward of step `k` in the return of 1, 2, ... steps: 0, then gamma**k."""
    weights = np.zeros(num_steps, dtype)
    weights[k:] = gamma**k
    return weights


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
    if reach and back.any():
        begin = begins(ring, ring.links.entry[slots])
        back = np.where(begin <= 0, back, np.minimum(back, extents.t - begin - reach))
    if back.any():
        path = walk(ring.links.previous, slots, int(back.max()))
        slots = np.stack(path)[back, np.arange(len(slots))]
    return slots, StepsAround(extents.before - back, extents.onward + back, extents.in_a_row, extents.t - back)


class Windows(NamedTuple):
    """B sampled sequences of W steps: ring positions, padding mask, and mask of the steps that the loss uses.

    Attributes:
        slots: positions of the steps, [B, W]. Padding has the position `capacity`, context steps have larger ones.
        padding: True for padding, bool [B, W].
        learned: True for steps after the columns on the left, bool [B, W].
        first: True for the first step of an episode, bool [B, W].
        stops: column after the last step, [B].
    """

    slots: np.ndarray
    padding: np.ndarray
    learned: np.ndarray
    first: np.ndarray
    stops: np.ndarray


def windows(ring: LinkedRing, slots: np.ndarray, extents: StepsAround, length: int, left: int) -> Windows:
    """Return B sequences of ring positions: `left` context steps, then `length` steps from `slots` [B] on.

    Columns on the left are padding if the episode begins later:

        left = 3, length = 3    . . 5 | 6 7 8     the first step of the episode is 5
                                2 3 4 | 5 6 .     its last step is 6
    """
    columns = np.arange(left + length)
    ahead = np.minimum(extents.onward, length)
    runs = (slots - left if left else slots)[:, None] + columns
    if np.count_nonzero(extents.in_a_row) < len(slots):
        _follow(ring.links, runs, slots, extents, ahead, left)
    if not left:
        padding = columns >= ahead[:, None]
        learned, stops = ~padding, ahead
        first = np.zeros(padding.shape, bool)
        first[:, 0] = extents.t == 0
    else:
        stops, begin = left + ahead, (left - extents.before)[:, None]
        padding = columns >= stops[:, None]
        learned = columns >= left
        learned = learned & ~padding
        first = (columns == left - extents.t[:, None]) & ~padding
        context = context_of(ring)
        if context is not None:
            entry = ring.links.entry[slots]
            at = context.newest[entry][:, None] - (begin - 1 - columns)
            np.copyto(runs, at, where=columns < begin)
            begin = begin - context.counts[entry][:, None]
        padding |= columns < begin
    np.copyto(runs, ring.capacity, where=padding)
    return Windows(runs, padding, learned, first, stops)


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

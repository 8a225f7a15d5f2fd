"""The index arithmetic of draws: positions of steps in, positions of steps and observations out. No data moves.

Links that point at their own step end a walk (see `step_links`, and there why no draw leaves its episode), so every
walk is the same few gathers for all draws.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from episodes.replay.ring.linked_ring import LinkedRing
from episodes.replay.ring.step_links import StepLinks

_FEW = 256  # steps, up to which weights are kept
_STRIDE = 16  # steps of a walk before it looks whether all have arrived


def walk(links: np.ndarray, slots: np.ndarray, num_steps: int) -> list[np.ndarray]:
    """The `num_steps` + 1 positions [n] each that following the links from `slots` [n] leads to, `slots` first."""
    path = [slots]
    for _ in range(num_steps):
        path.append(links[path[-1]])
    return path


def walk_to_ends(links: np.ndarray, slots: np.ndarray, most_steps: int) -> list[np.ndarray]:
    """As `walk`; no longer than about the longest way to an end, however large `most_steps` is."""
    path = walk(links, slots, min(most_steps, _STRIDE))
    while len(path) <= most_steps and (path[-1] != path[-2]).any():
        path += walk(links, path[-1], min(most_steps + 1 - len(path), _STRIDE))[1:]
    return path


def discounted(rewards: np.ndarray, path: Sequence[np.ndarray], num_later: np.ndarray, gamma: float) -> np.ndarray:
    """Discounted sums [n] of the rewards of the first steps of a path, and of the `num_later` [n] steps after each."""
    total = rewards[path[0]]
    for step, weights in zip(path[1:], _discounts(len(path), gamma, total.dtype.char), strict=True):
        later = rewards[step]
        later *= weights[num_later]
        total += later
    return total


def discounted_infinite(
    rewards: np.ndarray, path: Sequence[np.ndarray], num_later: np.ndarray, gamma: float
) -> np.ndarray:
    """As `discounted`, where rewards may be infinite: one that is not in a draw must not be weighed with 0."""
    total = rewards[path[0]]
    with np.errstate(invalid="ignore"):  # inf - inf
        for k, step in enumerate(path[1:], 1):
            total += np.where(num_later >= k, rewards[step], 0) * gamma**k
    return total


def _discounts(num_steps: int, gamma: float, dtype: str) -> Iterable[np.ndarray]:
    """For each step after the first, its reward's weight in draws of 1, 2, ... `num_steps` steps."""
    if num_steps <= _FEW:
        return _few_discounts(num_steps, gamma, dtype)
    return (_weights(k, num_steps, gamma, dtype) for k in range(1, num_steps))


@lru_cache(maxsize=8)
def _few_discounts(num_steps: int, gamma: float, dtype: str) -> tuple[np.ndarray, ...]:
    return tuple(_weights(k, num_steps, gamma, dtype) for k in range(1, num_steps))


def _weights(k: int, num_steps: int, gamma: float, dtype: str) -> np.ndarray:
    weights = np.zeros(num_steps, dtype)
    weights[k:] = gamma**k
    return weights


class StepsAround(NamedTuple):
    """How many steps of its episode lie before each of the drawn ones, and from it on; [B] each.

    `in_a_row` says whether all of them lie in a row in the ring, from position to position.
    """

    before: np.ndarray
    onward: np.ndarray
    in_a_row: np.ndarray


def extents(ring: LinkedRing, slots: np.ndarray) -> StepsAround:
    """Those of the steps at the positions [B]."""
    entry, t = ring.links.entry[slots], ring.links.t
    first, last, now = ring.table.first[entry], ring.table.last[entry], t[slots]
    begin, newest = t[first], t[last]
    return StepsAround(now - begin, newest - now + 1, last - first == newest - begin)


def shift_starts_back(
    links: StepLinks, slots: np.ndarray, extents: StepsAround, length: int
) -> tuple[np.ndarray, StepsAround]:
    """The steps [B] from which on there are `length` steps where the episode has as many, before `slots` or there."""
    back = np.minimum(np.maximum(length - extents.onward, 0), extents.before)
    if back.any():
        path = walk(links.previous, slots, int(back.max()))
        slots = np.stack(path)[back, np.arange(len(slots))]
    return slots, StepsAround(extents.before - back, extents.onward + back, extents.in_a_row)


class Windows(NamedTuple):
    """Sequences of steps, each a run of columns in a row of W = left + length columns.

    Attributes:
        slots: positions of steps [B, W]; where there is none, the position of padding.
        padding: where there is none, [B, W] bool.
        learned: where there is one after the columns on the left, [B, W] bool.
        first: where there is the first step of its episode, or of what is left of it, [B, W] bool.
        stops: column after the last step, [B].
    """

    slots: np.ndarray
    padding: np.ndarray
    learned: np.ndarray
    first: np.ndarray
    stops: np.ndarray


def windows(links: StepLinks, slots: np.ndarray, extents: StepsAround, length: int, left: int) -> Windows:
    """Windows in which the steps at `slots` [B] come after `left` columns, and are the first to learn from.

    Columns on the left are empty where the episode, or what is left of it, begins later:

        left = 3, length = 3    . . 5 | 6 7 8     the episode's first step is 5
                                2 3 4 | 5 6 .     its last one is 6
    """
    columns = _columns(left + length)
    ahead = np.minimum(extents.onward, length)
    runs = (slots - left if left else slots)[:, None] + columns
    if np.count_nonzero(extents.in_a_row) < len(slots):
        _follow(links, runs, slots, extents, ahead, left)
    if not left:
        padding = columns >= ahead[:, None]
        learned, stops = ~padding, ahead
        first = np.zeros(padding.shape, bool)
        first[:, 0] = extents.before == 0
    else:
        stops, begins = left + ahead, (left - extents.before)[:, None]
        padding = columns >= stops[:, None]
        learned = columns >= left
        learned = learned & ~padding
        padding |= columns < begins
        first = columns == begins
    np.copyto(runs, links.capacity, where=padding)
    return Windows(runs, padding, learned, first, stops)


def _follow(
    links: StepLinks, runs: np.ndarray, slots: np.ndarray, extents: StepsAround, ahead: np.ndarray, left: int
) -> None:
    """Put the positions into those rows of `runs` [B, W] whose episodes do not lie in a row.

    There are `ahead` [B] steps from those at `slots` on, which come after `left` columns.
    """
    runs %= links.capacity
    apart = np.flatnonzero(~extents.in_a_row)
    picked, behind, ahead = slots[apart], np.minimum(extents.before[apart], left), ahead[apart]
    scattered = np.flatnonzero(~_in_a_row(links, picked, behind, ahead))
    if len(scattered):
        picked, most = picked[scattered], int(behind[scattered].max())
        path = _paths(links, picked, most, int(ahead[scattered].max()))
        at = np.clip(most - left + _columns(runs.shape[1]), 0, len(path) - 1)
        runs[apart[scattered]] = path[at].T


def _paths(links: StepLinks, slots: np.ndarray, num_behind: int, num_ahead: int) -> np.ndarray:
    """Positions [num_behind + num_ahead, n] of the steps before each of `slots`, and from it on."""
    path = np.empty((num_behind + num_ahead, len(slots)), np.int64)
    path[num_behind:] = walk(links.next, slots, num_ahead - 1)
    if num_behind:
        path[num_behind::-1] = walk(links.previous, slots, num_behind)
    return path


def _in_a_row(links: StepLinks, slots: np.ndarray, behind: np.ndarray, ahead: np.ndarray) -> np.ndarray:
    """True where the `behind` positions before those at `slots` and the `ahead` from them on hold successive steps of
    an episode, be it around the end of the ring.

    Steps of an episode lie in the order of their times, so looking at both ends is enough.
    """
    first, last = (slots - behind) % links.capacity, (slots + ahead - 1) % links.capacity
    entry = links.entry[slots]
    same = (links.entry[first] == entry) & (links.entry[last] == entry)
    same &= links.t[last] - links.t[first] == (last - first) % links.capacity
    return same


@lru_cache(maxsize=16)
def _columns(count: int) -> np.ndarray:
    """0, 1, ... `count` - 1."""
    columns = np.arange(count)
    columns.flags.writeable = False
    return columns

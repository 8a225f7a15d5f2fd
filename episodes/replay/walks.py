"""The index arithmetic of draws: positions of steps in, positions of steps and observations out. No data moves.

Links that point at their own step end a walk (see `step_links`, and there why no draw leaves its episode), so every
walk is the same few gathers for all draws.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from episodes.replay.ring.step_links import StepLinks
from episodes.replay.ring.step_ring import LinkedRing

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


@dataclass(frozen=True, slots=True)
class Extents:
    """How many steps of its episode lie before each of the drawn ones, and from it on; [B] each."""

    before: np.ndarray
    onward: np.ndarray


def extents(ring: LinkedRing, slots: np.ndarray) -> Extents:
    """Those of the steps at the positions [B]."""
    entry, t = ring.links.entry[slots], ring.links.t[slots]
    return Extents(t - ring.links.t[ring.table.first.take(entry)], ring.t_next(entry) - t)


def moved_back(links: StepLinks, slots: np.ndarray, extents: Extents, length: int) -> tuple[np.ndarray, Extents]:
    """The steps [B] from which on there are `length` steps where the episode has as many, before `slots` or there."""
    back = np.minimum(np.maximum(length - extents.onward, 0), extents.before)
    if back.any():
        path = walk(links.previous, slots, int(back.max()))
        slots = np.stack(path)[back, np.arange(len(slots))]
    return slots, Extents(extents.before - back, extents.onward + back)


@dataclass(frozen=True, slots=True)
class Windows:
    """Sequences of steps, each a run of columns in a row of W = left + length columns.

    Attributes:
        slots: positions of steps [B, W]; where there is none, the position of padding.
        there: where there is a step, [B, W] bool.
        learned: where there is one after the columns on the left, [B, W] bool.
        first: where there is the first step of its episode, or of what is left of it, [B, W] bool.
        stops: column after the last step, [B].
    """

    slots: np.ndarray
    there: np.ndarray
    learned: np.ndarray
    first: np.ndarray
    stops: np.ndarray


def windows(links: StepLinks, slots: np.ndarray, extents: Extents, length: int, left: int) -> Windows:
    """Windows in which the steps at `slots` [B] come after `left` columns, and are the first to learn from.

    Columns on the left are empty where the episode, or what is left of it, begins later:

        left = 3, length = 3    . . 5 | 6 7 8     the episode's first step is 5
                                2 3 4 | 5 6 .     its last one is 6
    """
    columns = _columns(left + length)
    ahead = np.minimum(extents.onward, length)
    if not left:
        there = columns < ahead[:, None]
        first = np.zeros(there.shape, bool)
        first[:, 0] = extents.before == 0
        return Windows(_runs(links, slots, slots, ahead, there), there, there, first, ahead)
    behind = np.minimum(extents.before, left)
    stops = left + ahead
    before_stop = columns < stops[:, None]
    there = before_stop & (columns >= (left - behind)[:, None])
    learned = before_stop & (columns >= left)
    first = columns == (left - extents.before)[:, None]
    return Windows(_runs(links, slots, slots - left, stops, there, behind), there, learned, first, stops)


def _runs(
    links: StepLinks,
    slots: np.ndarray,
    origins: np.ndarray,
    stops: np.ndarray,
    there: np.ndarray,
    behind: np.ndarray | None = None,
) -> np.ndarray:
    """Positions [B, W]: where the steps lie in a row, column c is at `origins` + c. `behind` steps precede `slots`."""
    capacity, columns = links.capacity, _columns(there.shape[1])
    runs = origins[:, None] + columns
    runs %= capacity
    in_a_row = _in_a_row(links, slots, behind, origins + stops - 1)
    if np.count_nonzero(in_a_row) < len(slots):
        scattered = (~in_a_row).nonzero()[0]
        back = np.zeros(len(scattered), np.int64) if behind is None else behind[scattered]
        picked, learns = slots[scattered], (slots - origins)[scattered]
        path = _paths(links, picked, int(back.max()), int((stops[scattered] - learns).max()))
        at = (int(back.max()) - learns)[:, None] + columns
        runs[scattered] = path[np.clip(at, 0, len(path) - 1), np.arange(len(picked))[:, None]]
    np.copyto(runs, capacity, where=~there)
    return runs


def _paths(links: StepLinks, slots: np.ndarray, num_behind: int, num_ahead: int) -> np.ndarray:
    """Positions [num_behind + num_ahead, n] of the steps before each of `slots`, and from it on."""
    path = np.empty((num_behind + num_ahead, len(slots)), np.int64)
    path[num_behind:] = walk(links.next, slots, num_ahead - 1)
    if num_behind:
        path[num_behind::-1] = walk(links.previous, slots, num_behind)
    return path


def _in_a_row(links: StepLinks, slots: np.ndarray, behind: np.ndarray | None, last: np.ndarray) -> np.ndarray:
    """True where the positions from `behind` (0 when None) before `slots` up to `last`, which may lie past the end of
    the ring, hold successive steps of an episode.

    Steps of an episode lie in the order of their times, so looking at both ends is enough.
    """
    first, last = slots if behind is None else (slots - behind) % links.capacity, last % links.capacity
    entry = links.entry[slots]
    same = links.entry[last] == entry
    if behind is not None:
        same &= links.entry[first] == entry
    span = (last - first) % links.capacity
    same &= links.t[last] - links.t[first] == span
    return same


@lru_cache(maxsize=16)
def _columns(count: int) -> np.ndarray:
    """0, 1, ... `count` - 1."""
    columns = np.arange(count)
    columns.flags.writeable = False
    return columns

"""The index arithmetic of draws: positions of steps in, positions of steps and observations out. No data moves.

Links that point at their own step end a walk (see `links`), so every walk is the same few gathers for all draws.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from episodes.replay.links import StepLinks


def walk(links: np.ndarray, slots: np.ndarray, num_steps: int) -> np.ndarray:
    """The positions [num_steps + 1, n] that following the links from `slots` [n] leads to, `slots` first."""
    path = np.empty((num_steps + 1, len(slots)), links.dtype)
    path[0] = slots
    for k in range(num_steps):
        links.take(path[k], out=path[k + 1], mode="clip")
    return path


def n_steps(
    following: np.ndarray, rewards: np.ndarray, slots: np.ndarray, n_step: int, gamma: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where up to n steps from each of `slots` [n] lead, without leaving the episode.

    Returns:
        The last step's position [n], the discounted sum of the rewards [n], and the number of steps [n] int32.
    """
    last = slots
    returns = rewards.take(slots)
    if returns.dtype.kind != "f":
        returns = returns.astype(np.float64)
    counts = np.ones(len(slots), np.int32)
    for k in range(1, n_step):
        step = following.take(last)
        moved = step != last
        returns += moved * (rewards.take(step) * returns.dtype.type(gamma**k))
        counts += moved
        last = step
    return last, returns, counts


def stack_rows(links: StepLinks, slots: np.ndarray, k: int, *, after: bool) -> np.ndarray:
    """Rows [..., k] of the k newest observations before each step (or after it); the oldest one there is repeated.

    Args:
        slots: positions of steps [...].
        after: stacks that end with the observation that the step led to.
    """
    rows = np.empty((*slots.shape, k), np.int32)
    column = k - 1
    if after:
        rows[..., column] = links.next_row.take(slots)
        column -= 1
    for c in range(column, -1, -1):
        rows[..., c] = links.row.take(slots)
        if c:
            slots = links.previous.take(slots)
    return rows


@dataclass(frozen=True, slots=True)
class Windows:
    """Sequences of steps, each a run of columns in a row of length W = lookback + burn-in + length.

    Attributes:
        slots: positions of steps [B, W]; repeated ones where there is no step.
        starts: column of each sequence's first step, lookback included, [B].
        learns: column of the first step after the burn-in, [B].
        stops: column after the last step, [B].
    """

    slots: np.ndarray
    starts: np.ndarray
    learns: np.ndarray
    stops: np.ndarray

    def there(self) -> np.ndarray:
        """Where there is a step, [B, W] bool."""
        columns = np.arange(self.slots.shape[1])
        return (columns >= self.starts[:, None]) & (columns < self.stops[:, None])

    def learned(self) -> np.ndarray:
        """Where a step is learned from, [B, W] bool."""
        columns = np.arange(self.slots.shape[1])
        return (columns >= self.learns[:, None]) & (columns < self.stops[:, None])


@dataclass(frozen=True, slots=True)
class Extents:
    """How many steps of its episode lie before each of the drawn ones, and from it on; [B] each."""

    before: np.ndarray
    onward: np.ndarray


def windows(links: StepLinks, slots: np.ndarray, extents: Extents, length: int, burn_in: int, lookback: int) -> Windows:
    """Windows in which the steps at `slots` [B] are the first to learn from, after burn-in and lookback.

    The burn-in takes the steps that there are; the lookback always takes `lookback` columns and is empty on the left
    where the episode, or what is left of it, begins.
    """
    burnt = np.minimum(extents.before, burn_in)
    behind = np.minimum(extents.before, burnt + lookback)
    ahead = np.minimum(extents.onward, length)
    starts = lookback - (behind - burnt)
    found = _runs(links, slots, behind, ahead, starts, lookback + burn_in + length)
    return Windows(found, starts, lookback + burnt, lookback + burnt + ahead)


def _runs(
    links: StepLinks, slots: np.ndarray, behind: np.ndarray, ahead: np.ndarray, starts: np.ndarray, width: int
) -> np.ndarray:
    """Positions [B, width] of the steps from `behind` before each of `slots` on, the first one in column `starts`."""
    capacity = links.capacity
    first = slots - behind
    offsets = np.arange(width) - starts[:, None]
    np.clip(offsets, 0, (behind + ahead - 1)[:, None], out=offsets)
    runs = (first[:, None] + offsets) % capacity
    scattered = np.flatnonzero(~_in_a_row(links, slots, first, first + behind + ahead - 1))
    if len(scattered):
        picked = slots[scattered]
        num_behind, num_ahead = int(behind[scattered].max()), int(ahead[scattered].max())
        path = np.empty((num_behind + num_ahead, len(picked)), np.int32)
        path[num_behind:] = walk(links.next, picked, num_ahead - 1)
        if num_behind:
            path[num_behind::-1] = walk(links.previous, picked, num_behind)
        at = offsets[scattered] + (num_behind - behind[scattered])[:, None]
        runs[scattered] = path[at, np.arange(len(picked))[:, None]]
    return runs


def _in_a_row(links: StepLinks, slots: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """True where the positions first..last (before wrapping) hold successive steps of the episode of `slots`.

    Steps of an episode lie in the order of their times, so looking at both ends is enough.
    """
    first, last = first % links.capacity, last % links.capacity
    entry = links.entry.take(slots)
    same = (links.entry.take(first) == entry) & (links.entry.take(last) == entry)
    span = (last - first) % links.capacity
    return same & (links.t.take(last) - links.t.take(first) == span)

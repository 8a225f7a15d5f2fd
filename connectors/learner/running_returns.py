"""`RunningReturns`: statistics of discounted returns of episodes, whose chunks may arrive in any order and repeatedly.

The running return of a step is the discounted sum of its episode's rewards up to the step. A chunk that begins at step
0, or after a known step, is counted at once:

    steps of an episode   0 1 2 3 4 5 6 7 8 9 ...
    known                 |-----------|         return after step 5 is known
    new chunk                   |---------|     steps 6, 7 are counted; steps 3 to 5 were counted before
    waiting                                 |-  its return depends on the return s before its first step

The returns of a waiting range are `p + s * g`, with `p` for s = 0 and `g = gamma, gamma ** 2, ...`. The moments of p, g
and p + g determine those of the returns for each s, so a range of any length is stored as a few numbers.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from operator import attrgetter
from typing import Any

import numpy as np

from connectors.moments import Moments
from episodes.tracks.indexing import offsets_of

__all__ = ["RunningReturns"]

Chunk = tuple[Any, int, int, int]  # id, index of its first reward, first step, stop

_MOST_EPISODES = 10_000  # that are remembered, unless a single pack has more
_MOST_RANGES = 64  # of one episode that are remembered


@dataclass(slots=True)
class _Range:
    """Range of counted steps of an episode. The return after it is `last + fade * s`, with the return s before it."""

    first: int
    stop: int
    last: float
    fade: float  # 0 if s is known
    moments: Moments | None  # of p, g and p + g, [3]; None if s is known

    def extend(self, stop: int, last: float, fade: float, moments: Moments | None) -> None:
        """Add the steps up to `stop`, whose moments are relative to the same return s as those of this range."""
        self.stop, self.last, self.fade = stop, last, fade
        if moments is not None:
            self.moments = moments if self.moments is None else self.moments.merge(moments)


class RunningReturns:
    """Moments of the running returns of all steps that were added. Each step of an episode counts once."""

    def __init__(self, gamma: float) -> None:
        self._gamma = gamma
        self._known = Moments.empty(())  # of steps whose returns are known, and of forgotten episodes
        self._ranges: dict[Any, list[_Range]] = {}  # by episode id, the episode of the newest chunk last
        self._waiting: set[Any] = set()  # episodes with a range whose first return is unknown

    def add(self, rewards: np.ndarray, ids: Sequence[Hashable], t_started: np.ndarray, lengths: np.ndarray) -> None:
        """Count the steps of n chunks that were not counted before.

        Args:
            rewards: rewards of all steps, one chunk after the other, float64 [S].
            ids: what identifies the episode of each chunk, [n].
            t_started: step of its episode with which each chunk begins, [n].
            lengths: number of steps of each chunk, [n].
        """
        names = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
        starts, firsts, counts = offsets_of(lengths).tolist(), t_started.tolist(), lengths.tolist()
        order = range(len(names))
        if len(set(names)) < len(names):
            order = sorted(order, key=firsts.__getitem__)  # chunks of one episode in the order of time
        left = [(names[i], starts[i], firsts[i], firsts[i] + counts[i]) for i in order]
        with np.errstate(under="ignore"):
            while left:
                left = self._add_round(rewards, left)
        self._forget(max(_MOST_EPISODES, len(names)))

    def moments(self) -> Moments:
        """Return count, mean and squared deviations of the returns. Steps before a waiting range count as reward 0."""
        waiting = [_moments_for(part.moments, 0.0) for id_ in self._waiting for part in self._ranges[id_]]
        return reduce(Moments.merge, waiting, self._known)

    def _add_round(self, rewards: np.ndarray, chunks: list[Chunk]) -> list[Chunk]:
        """Count the first new steps of at most one chunk of each episode, and return the parts of chunks that are
        left.
        """
        gaps, left, seen = [], [], set()  # gaps: (id, first reward, first step, stop, return before, factor, before)
        for chunk in chunks:
            id_, start, first, stop = chunk
            if id_ in seen:
                left.append(chunk)
                continue
            seen.add(id_)
            ranges = self._ranges[id_] = self._ranges.pop(id_, [])  # now the newest
            low, high, before = _first_gap(ranges, first, stop) if ranges else (first, stop, None)
            if low < high:
                carried = (0.0, float(low > 0)) if before is None else (before.last, before.fade)
                gaps.append((id_, start + low - first, low, high, *carried, before))
            if low < high < stop:
                left.append((id_, start + high - first, high, stop))
        if not gaps:
            return left
        lengths = np.array([gap[3] - gap[2] for gap in gaps])
        offsets = offsets_of(lengths)
        rows = np.arange(offsets[-1]) + np.repeat(np.array([gap[1] for gap in gaps]) - offsets[:-1], lengths)
        returns = self._returns(rewards[rows], offsets, np.array([gap[4] for gap in gaps]))
        fades = np.array([gap[5] for gap in gaps])
        self._known = self._known.merge(Moments.of(returns[np.repeat(fades == 0, lengths)]))
        lasts = returns[offsets[1:] - 1].tolist()
        for k, (id_, _, low, high, _, fade, before) in enumerate(gaps):
            moments = None
            if fade:
                factors = fade * self._gamma ** np.arange(1.0, high - low + 1)
                values = returns[offsets[k] : offsets[k + 1]]
                moments = Moments.of(np.stack([values, factors, values + factors], axis=1))
                fade = float(factors[-1])
            self._insert(id_, before, low, high, lasts[k], fade, moments)
        return left

    def _returns(self, rewards: np.ndarray, offsets: np.ndarray, start: np.ndarray) -> np.ndarray:
        """Return the discounted sum of rewards up to each step, [S], given the returns before each part."""
        returns, lengths, total = np.empty_like(rewards), np.diff(offsets), start.copy()
        for t in range(int(lengths.max(initial=0))):
            alive = lengths > t
            total[alive] = self._gamma * total[alive] + rewards[offsets[:-1][alive] + t]
            returns[offsets[:-1][alive] + t] = total[alive]
        return returns

    def _insert(
        self, id_: object, before: _Range | None, low: int, high: int, last: float, fade: float, moments: Moments | None
    ) -> None:
        """Store counted steps of an episode, and determine the returns of a range that waited for them."""
        ranges = self._ranges[id_]
        if before is not None:
            before.extend(high, last, fade, moments)
        else:
            before = _Range(low, high, last, fade, moments)
            if not ranges:
                ranges.append(before)
                if moments is not None:
                    self._waiting.add(id_)
                return
            insort(ranges, before, key=attrgetter("first"))
        after = next((part for part in ranges if part.first == high), None)
        if after is not None and after.moments is not None:
            if before.moments is None:
                self._known = self._known.merge(_moments_for(after.moments, last))
                joined = None
            else:
                joined = _relative_to(after.moments, last, fade)
            ranges.remove(after)
            before.extend(after.stop, after.last + after.fade * last, after.fade * fade, joined)
        if len(ranges) > _MOST_RANGES:
            self._known = self._known.merge(_moments_for(ranges.pop(0).moments, 0.0))
        if any(part.moments is not None for part in ranges):
            self._waiting.add(id_)
        else:
            self._waiting.discard(id_)

    def _forget(self, most: int) -> None:
        """Forget the episodes without new chunks for the longest time. Their statistics stay."""
        for id_ in [*islice(self._ranges, max(len(self._ranges) - most, 0))]:
            ranges = self._ranges.pop(id_)
            if id_ in self._waiting:
                self._waiting.discard(id_)
                for part in ranges:
                    self._known = self._known.merge(_moments_for(part.moments, 0.0))

    def get_state(self) -> dict[str, Any]:
        """Return the moments, and what is known of each episode, as plain values."""
        ranges = [
            [id_, part.first, part.stop, part.last, part.fade, part.moments and part.moments.get_state()]
            for id_, parts in self._ranges.items()
            for part in parts
        ]
        return {**self._known.get_state(), "ranges": ranges}

    @classmethod
    def from_state(cls, gamma: float, state: dict[str, Any]) -> RunningReturns:
        """Return the statistics that `get_state` stored in `state`."""
        returns = cls(gamma)
        returns._known = Moments.from_state(state)
        for id_, first, stop, last, fade, moments in state.get("ranges", ()):
            part = _Range(first, stop, last, fade, moments and Moments.from_state(moments))
            id_ = tuple(id_) if isinstance(id_, list) else id_  # a file of plain values has lists
            returns._ranges.setdefault(id_, []).append(part)
            if moments:
                returns._waiting.add(id_)
        return returns


def _first_gap(ranges: list[_Range], first: int, stop: int) -> tuple[int, int, _Range | None]:
    """Return the first of the steps `first` to `stop` that no range contains, the end of this gap, and the range that
    stops where it begins, or None.
    """
    before = None
    for part in ranges:
        if first < part.first:
            stop = min(part.first, stop)
            break
        first, before = max(first, part.stop), part
    return first, stop, before if before is not None and before.stop == first else None


def _moments_for(moments: Moments | None, start: float) -> Moments:
    """Return the moments of the returns `p + start * g`, given those of p, g and p + g, [3]. None: no moments."""
    if moments is None:
        return Moments.empty(())
    (mean, mean_g, _), (own, of_g, both) = moments.mean, moments.squares
    squares = own + start * (both - own - of_g) + start * start * of_g
    return Moments(moments.count, np.asarray(mean + start * mean_g), np.asarray(max(squares, 0.0)))


def _relative_to(moments: Moments, last: float, fade: float) -> Moments:
    """Return the moments [3] of a range relative to the return before an earlier range, after which the return is
    `last + fade * s`.
    """
    parts = [_moments_for(moments, last), _moments_for(moments, last + fade)]
    mean_g, of_g = fade * moments.mean[1], fade * fade * moments.squares[1]
    means, squares = [parts[0].mean, mean_g, parts[1].mean], [parts[0].squares, of_g, parts[1].squares]
    return Moments(moments.count, np.array(means), np.array(squares))

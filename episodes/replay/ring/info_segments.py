"""`InfoSegments`: infos of a replay ring's observations, stored as the groups in which they were added."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

from episodes.tracks.infos import Infos
from episodes.tracks.infos.dicts import infos_of
from episodes.tracks.infos.infos import EmptyInfos


class InfoSegments:
    """Storage of infos by the running number of their observation. Observations without infos take no memory.

    Attributes:
        starts: row number of each segment's first info.
        parts: infos of each segment.
    """

    __slots__ = ("_dropped", "_lists")

    def __init__(self, starts: Iterable[int] = (), parts: Iterable[Infos] = ()) -> None:
        self._lists: tuple[list[int], list[Infos]] = (list(starts), list(parts))
        self._dropped = 0

    @property
    def starts(self) -> list[int]:
        return self._lists[0]

    @property
    def parts(self) -> list[Infos]:
        return self._lists[1]

    def append(self, start: int, infos: Infos) -> None:
        """Add the infos of consecutive observations, of which the first has the number `start`.

        A repeated call has no effect.
        """
        if isinstance(infos, EmptyInfos) or not len(infos) or (self.starts and self.starts[-1] == start):
            return
        self.parts[len(self.starts) :] = [infos]
        self.starts.append(start)

    def drop_before(self, row: int) -> None:
        """Free the groups of infos that belong only to observations with numbers below `row`."""
        while self._dropped < len(self.starts) and self._stop(self._dropped) <= row:
            self.parts[self._dropped] = EmptyInfos(0)
            self._dropped += 1
        dropped = self._dropped
        if dropped > 256 and 2 * dropped > len(self.starts):
            self._dropped = 0  # first, since an interrupt may leave empty segments in front, which are dropped again
            self._lists = (self.starts[dropped:], self.parts[dropped:])

    def _stop(self, segment: int) -> int:
        return self.starts[segment] + len(self.parts[segment])

    def item(self, row: int) -> dict[str, Any]:
        """Return the info dict of the observation with number `row`. It is empty if no info is stored for it."""
        segment = bisect_right(self.starts, row) - 1
        if segment < 0 or row >= self._stop(segment):
            return {}
        return self.parts[segment].item(row - self.starts[segment])

    def infos(self, rows: Iterable[int]) -> Infos:
        """Return the infos of the observations with the numbers `rows` as an `Infos` object."""
        if len(self.starts) == self._dropped:
            return EmptyInfos(len(list(rows)))
        return infos_of([self.item(row) for row in rows])

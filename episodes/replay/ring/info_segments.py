"""Infos beside a ring of observation rows: kept as they came, in segments, and made into dicts when read."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

from episodes.tracks.infos import Infos
from episodes.tracks.infos.dicts import infos_of
from episodes.tracks.infos.infos import EmptyInfos


class InfoSegments:
    """The infos of observation rows; rows without a segment have empty infos.

    Whatever is broken off here may be called again.

    Attributes:
        starts: row number of each part's first info.
        parts: the infos.
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
        """The infos of the rows from number `start` on; those of the newest segment may come again."""
        if isinstance(infos, EmptyInfos) or not len(infos) or (self.starts and self.starts[-1] == start):
            return
        self.parts[len(self.starts) :] = [infos]
        self.starts.append(start)

    def drop_before(self, row: int) -> None:
        """Forget segments that end before the row number."""
        while self._dropped < len(self.starts) and self._stop(self._dropped) <= row:
            self.parts[self._dropped] = EmptyInfos(0)
            self._dropped += 1
        dropped = self._dropped
        if dropped > 256 and 2 * dropped > len(self.starts):
            self._dropped = 0  # the empty ones in front would be dropped again
            self._lists = (self.starts[dropped:], self.parts[dropped:])

    def _stop(self, segment: int) -> int:
        return self.starts[segment] + len(self.parts[segment])

    def item(self, row: int) -> dict[str, Any]:
        """The info of a row number."""
        segment = bisect_right(self.starts, row) - 1
        if segment < 0 or row >= self._stop(segment):
            return {}
        return self.parts[segment].item(row - self.starts[segment])

    def infos(self, rows: Iterable[int]) -> Infos:
        """The infos of the row numbers."""
        if len(self.starts) == self._dropped:
            return EmptyInfos(len(list(rows)))
        return infos_of([self.item(row) for row in rows])

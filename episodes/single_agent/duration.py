"""`HasDuration`: wall-clock time in which an episode grew."""

from __future__ import annotations

from time import perf_counter
from typing import Any


class HasDuration:
    """Base class of episodes with the method `get_duration_s`."""

    __slots__ = ()

    _began: float | None  # time of the reset or cut after which this object grows
    _duration: float  # seconds of growth before `_began`

    def get_duration_s(self) -> float:
        """Return the wall-clock seconds in which this chunk grew: from its reset, or the `cut` before it, to
        its end, `cut` or `to_numpy`.

        `concat_episode` adds the seconds of the joined chunks. Episodes that did not grow step by step, such as those
        of packs, data sets and replay buffers, have 0.0.
        """
        return self._duration + (0.0 if self._began is None else perf_counter() - self._began)

    def _stop_clock(self) -> None:
        self._duration, self._began = self.get_duration_s(), None

    def _add_duration(self: Any, later: HasDuration) -> None:
        """Add the seconds of the next chunk `later`. The clock runs on if both chunks can grow."""
        self._duration = self.get_duration_s() + later.get_duration_s()
        self._began = None if later._began is None or self.is_numpy else perf_counter()

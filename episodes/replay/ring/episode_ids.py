"""Episode ids computed from a random prefix and serial numbers, so that a buffer need not store each id.

    id      5f0c2ab9d31e47c8806b | 00000000002a       prefix, serial number

Episodes are numbered in the order in which they are added. A prefix holds from a serial number on. Another one begins
in a restored or copied buffer and in a forked process, so that two buffers never give one id to different episodes.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from typing import Any

_PREFIX_BYTES = 10  # of 16 bytes of an id


class EpisodeIds:
    """Generator of episode ids: an id is computed from a random prefix and the episode's serial number.

    Attributes:
        num: serial number of the next episode.
    """

    def __init__(self) -> None:
        self.num = 0
        self._begins: list[int] = []
        self._prefixes: list[str] = []
        self._begin()

    def _begin(self) -> None:
        """Begin a new random prefix for all following episode ids."""
        if self._begins and self._begins[-1] == self.num:
            del self._begins[-1], self._prefixes[-1]
        self._begins.append(self.num)
        self._prefixes.append(os.urandom(_PREFIX_BYTES).hex())
        self._process = os.getpid()

    def use_up_to(self, num: int) -> None:
        """Use up the serial numbers below `num`."""
        if os.getpid() != self._process:
            self._begin()
        self.num = num

    def id_of(self, serial: int) -> str:
        """Return the id of the episode with this serial number, a string of 32 hexadecimal digits."""
        return f"{self._prefixes[bisect_right(self._begins, serial) - 1]}{serial:012x}"

    def take(self) -> str:
        """Use up the next serial number, and return the id of its episode."""
        self.use_up_to(self.num + 1)
        return self.id_of(self.num - 1)

    def get_state(self) -> dict[str, Any]:
        """Return the next serial number, and the random prefixes with the serial numbers at which their use begins, as
        a dict for a checkpoint."""
        return {"num": self.num, "begins": list(self._begins), "prefixes": list(self._prefixes)}

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> EpisodeIds:
        """Create a generator of episode ids from a state that `get_state` returned. Ids of later episodes are new."""
        names = cls()
        names.num, names._begins, names._prefixes = state["num"], list(state["begins"]), list(state["prefixes"])
        names._begin()
        return names

    def __reduce__(self) -> Any:
        """Return the pickled form, which copies use too."""
        return EpisodeIds.of_state, (self.get_state(),)

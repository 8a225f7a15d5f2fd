"""`EpisodeIds`: ids that say which of all episodes of a buffer one was, so that none has to be kept.

    id      5f0c2ab9d31e47c8806b | 00000000002a       prefix, serial number

Episodes are numbered as they come. A prefix holds from one number on, until another recorder begins one of its own.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from typing import Any

import numpy as np

_PREFIX_BYTES = 10  # of the 16 that an id has


class EpisodeIds:
    """How many episodes ever came, and which ids those have that came without one.

    Attributes:
        num: the serial number of the next episode.
    """

    def __init__(self) -> None:
        self.num = 0
        self._begins, self._prefixes = [0], [os.urandom(_PREFIX_BYTES).hex()]

    def begin(self, generator: np.random.Generator) -> None:
        """Give the episodes to come another prefix, drawn from a generator: the same one from one of the same seed."""
        if self._begins[-1] == self.num:
            del self._begins[-1], self._prefixes[-1]
        self._begins.append(self.num)
        self._prefixes.append(generator.bytes(_PREFIX_BYTES).hex())

    def id_of(self, serial: int) -> str:
        """The id of the episode with this number, 32 hexadecimal digits."""
        return f"{self._prefixes[bisect_right(self._begins, serial) - 1]}{serial:012x}"

    def take(self) -> str:
        """The id of an episode that somebody looks at before it is here; no other one will have its number."""
        self.num += 1
        return self.id_of(self.num - 1)

    def get_state(self) -> dict[str, Any]:
        """Plain numbers and strings."""
        return {"num": self.num, "begins": list(self._begins), "prefixes": list(self._prefixes)}

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> EpisodeIds:
        """The names whose state this is."""
        names = cls()
        names.num, names._begins, names._prefixes = state["num"], list(state["begins"]), list(state["prefixes"])
        return names

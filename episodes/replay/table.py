"""The episodes that have steps in the ring: where each begins, ends, and goes on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

NONE = -1
"""Stands where no entry is."""


class EpisodeFacts(NamedTuple):
    """What does not change from step to step."""

    id_: str
    agent_id: Any = None
    module_id: Any = None
    multi_agent_episode_id: str | None = None
    custom_data: dict[str, Any] | None = None


_NO_FACTS = EpisodeFacts("")


class EpisodeTable:
    """One entry for each episode with steps in the ring; entries are numbered and used again.

    Attributes (arrays over entries):
        first, last: positions of the oldest and the newest step that is there, int64.
        last_row: position of the newest observation, int64.
        t_next: time of the step that would come next, int64.
        ended: no step may follow.
        facts: what else is known of the episodes, a list.
        order: the entries in use, in no particular order; uniform draws of episodes draw from it.
        free: the other entries.
    """

    ARRAYS = ("first", "last", "last_row", "t_next", "ended")

    def __init__(self) -> None:
        self.first, self.last, self.last_row, self.t_next = np.zeros((4, 64), np.int64)
        self.ended = np.zeros(64, bool)
        self.facts = [_NO_FACTS] * 64
        self.order: list[int] = []
        self.free = list(range(63, -1, -1))
        self._entries: dict[str, int] = {}
        self._place = [0] * 64  # of an entry in `order`

    def __len__(self) -> int:
        return len(self.order)

    def find(self, ids: Iterable[str]) -> np.ndarray:
        """The entries [n] of the ids; NONE where an id is not there."""
        return np.fromiter(map(self._entries.get, ids, repeat(NONE)), np.int64)

    def open(self, facts: Sequence[EpisodeFacts], first: np.ndarray) -> np.ndarray:
        """New entries [n] for episodes whose first steps are at the positions `first` [n]."""
        while len(self.free) < len(facts):
            self._grow()
        entries = [self.free.pop() for _ in facts]
        for place, (entry, fact) in enumerate(zip(entries, facts, strict=True), len(self.order)):
            self.facts[entry] = fact
            self._entries[fact.id_] = entry
            self._place[entry] = place
        self.order += entries
        found = np.array(entries, np.int64)
        self.first[found] = first
        return found

    def extend(self, entries: np.ndarray, last: np.ndarray, last_row: np.ndarray, t_next: np.ndarray) -> None:
        """The entries' episodes have new newest steps."""
        self.last[entries] = last
        self.last_row[entries] = last_row
        self.t_next[entries] = t_next

    def close(self, entries: Iterable[int]) -> None:
        """Forget episodes that have no step in the ring any more."""
        for entry in entries:
            del self._entries[self.facts[entry].id_]
            self.facts[entry] = _NO_FACTS
            self.ended[entry] = False
            self.free.append(entry)
            moved, place = self.order.pop(), self._place[entry]
            if moved != entry:
                self.order[place] = moved
                self._place[moved] = place

    def restore_entries(self, facts: Sequence[Sequence[Any]], order: list[int], free: list[int]) -> None:
        """Take over which entries are in use, and what for."""
        self.facts = [EpisodeFacts(*fact) for fact in facts]
        self.order, self.free = list(order), list(free)
        self._entries = {self.facts[entry].id_: entry for entry in order}
        self._place = [0] * len(self.facts)
        for place, entry in enumerate(order):
            self._place[entry] = place

    def _grow(self) -> None:
        size = len(self.ended)
        for name in self.ARRAYS:
            array = getattr(self, name)
            setattr(self, name, np.concatenate([array, np.zeros_like(array)]))
        self.facts += [_NO_FACTS] * size
        self._place += [0] * size
        self.free += range(2 * size - 1, size - 1, -1)

"""The episodes that have steps in the ring: where each begins, ends, and goes on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from itertools import repeat
from typing import Any

import numpy as np

from episodes.facts.facts import EpisodeFacts, random_ids

NONE = -1
"""Stands where no entry is."""


NO_FACTS = EpisodeFacts("")
_FIRST_SIZE = 64


class EpisodeTable:
    """One entry for each episode with steps in the ring; entries are numbered and used again.

    Attributes (over entries):
        first, last: positions of the oldest and the newest step that is there, int64 arrays.
        facts: what else is known of the episodes, a list. Where a chunk of the ring begins and how it ends is in the
            ring, its id is given by `id_of`, and the spaces are the buffer's.
        custom_data: of the episodes, a list; None where there is none.
        order: the entries in use, in no particular order; uniform draws of episodes draw from it.
        free: the other entries.
    """

    def __init__(self) -> None:
        self.first, self.last = np.zeros((2, _FIRST_SIZE), np.int64)
        self._ids: list[str | None] = [None] * _FIRST_SIZE  # None for one that nobody asked for yet
        self.facts = [NO_FACTS] * _FIRST_SIZE
        self.custom_data: list[dict[str, Any] | None] = [None] * _FIRST_SIZE
        self.order: list[int] = []
        self.free = list(range(_FIRST_SIZE - 1, -1, -1))
        self._entries: dict[str, int] = {}
        self._place = [0] * _FIRST_SIZE  # of an entry in `order`

    def __len__(self) -> int:
        return len(self.order)

    def find(self, ids: Iterable[str]) -> np.ndarray:
        """The entries [n] of the ids; NONE where an id is not there."""
        return np.fromiter(map(self._entries.get, ids, repeat(NONE)), np.int64)

    def id_of(self, entry: int) -> str:
        """The id of an entry's episode. One that was opened without an id gets it now, for good."""
        id_ = self._ids[entry]
        if id_ is None:
            id_ = random_ids(1).item()
            self._name(entry, id_)
        return id_

    def open(self, ids: Sequence[str | None] | None, first: np.ndarray) -> np.ndarray:
        """New entries [n] for episodes with these ids, whose first steps are at the positions `first` [n].

        Without ids, an episode has a random one as soon as somebody asks: few of those that come and go are asked for.
        """
        while len(self.free) < len(first):
            self._grow()
        entries = self.free[len(self.free) - len(first) :]
        del self.free[len(self.free) - len(first) :]
        for place, entry in enumerate(entries, len(self.order)):
            self._place[entry] = place
        self.order += entries
        if ids is not None:
            for entry, id_ in zip(entries, ids, strict=True):
                if id_ is not None:
                    self._name(entry, id_)
        found = np.array(entries, np.int64)
        self.first[found] = first
        return found

    def _name(self, entry: int, id_: str) -> None:
        self._ids[entry] = id_
        self._entries[id_] = entry

    def part_with(self, id_: str) -> None:
        """What is there of an episode stays as it is; the next chunk with this id begins an entry of its own."""
        self._entries.pop(id_, None)

    def close(self, entries: Iterable[int]) -> None:
        """Forget episodes that have no step in the ring any more."""
        order, places = self.order, self._place
        for entry in entries:
            if (id_ := self._ids[entry]) is not None:
                if self._entries.get(id_) == entry:
                    del self._entries[id_]
                self._ids[entry] = None
            self.facts[entry], self.custom_data[entry] = NO_FACTS, None
            self.free.append(entry)
            moved, place = order.pop(), places[entry]
            if moved != entry:
                order[place] = moved
                places[moved] = place

    def get_state(self) -> dict[str, Any]:
        """All entries, used and free, as a dict that shares no memory."""
        for entry in self.order:
            self.id_of(entry)
        facts = [None if fact is NO_FACTS else deepcopy(fact._asdict()) for fact in self.facts]
        facts_too = {"facts": facts, "custom_data": deepcopy(self.custom_data), "entries": dict(self._entries)}
        lists = facts_too | {"ids": list(self._ids), "order": list(self.order), "free": list(self.free)}
        return {"first": self.first.copy(), "last": self.last.copy(), **lists}

    def set_state(self, state: dict[str, Any]) -> None:
        """Be what a table was."""
        self.first, self.last = state["first"].copy(), state["last"].copy()
        self._ids, self.order, self.free = list(state["ids"]), list(state["order"]), list(state["free"])
        self.facts = [NO_FACTS if fact is None else EpisodeFacts(**fact) for fact in state["facts"]]
        self.custom_data = list(state["custom_data"])
        self._entries = dict(state["entries"])
        self._place = [0] * len(self._ids)
        for place, entry in enumerate(self.order):
            self._place[entry] = place

    def _grow(self) -> None:
        size = len(self._ids)
        self.first, self.last = np.tile(self.first, 2), np.tile(self.last, 2)
        self._ids += [None] * size
        self.facts += [NO_FACTS] * size
        self.custom_data += [None] * size
        self._place += [0] * size
        self.free += range(2 * size - 1, size - 1, -1)

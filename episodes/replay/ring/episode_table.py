"""Table of the episodes in a replay ring: ids, metadata and the ring positions of their first and last steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np

from episodes.batch.origin import EpisodeKey
from episodes.facts.facts import EpisodeFacts
from episodes.replay.ring.episode_ids import EpisodeIds
from episodes.single_agent import SingleAgentEpisode

NONE = -1
"""Marks the absence of an entry or step."""


NO_FACTS = EpisodeFacts("")
_FIRST_SIZE = 64
_ARRAYS = ("first", "last", "serials")


class _Facts(dict[int, EpisodeFacts]):
    """Dict from episode table row to the episode's metadata, with a common default for recorded episodes."""

    recorded = NO_FACTS

    def __missing__(self, entry: int) -> EpisodeFacts:
        return self.recorded


@dataclass(slots=True, eq=False)
class TableChange:
    """Planned change of the episode table: rows to free, and the rows, ids and metadata of new episodes.

    Attributes:
        places: indices of `order` that change.
        values: entries there afterwards.
        closed: entries of removed episodes.
        opened: entries of new episodes, [n].
        num_used: number of entries in use afterwards.
        ids: ids of the new episodes, None for ids that follow from serial numbers.
        first: positions of their first steps.
        facts: facts of new and continued episodes, by entry.
        custom_data: custom data of new and continued episodes, by entry.
        lookbacks: lookbacks of new episodes, by entry.
        serial: serial number of the first new episode. The others follow.
        recorded_facts: facts of new episodes that are not in `facts`.
    """

    places: np.ndarray
    values: np.ndarray
    closed: np.ndarray
    opened: np.ndarray
    num_used: int
    ids: Sequence[str | None] | None = None
    first: np.ndarray | None = None
    facts: dict[int, EpisodeFacts] | None = None
    custom_data: dict[int, dict[str, Any] | None] | None = None
    lookbacks: dict[int, SingleAgentEpisode] | None = None
    serial: int = 0
    recorded_facts: EpisodeFacts | None = None


class EpisodeTable:
    """Table of the episodes in a replay ring, one row ("entry") each. The rows of removed episodes are reused.

    All entries are in one array, the used ones in front. `change` computes a change and `apply` makes it. An
    interrupted `apply` can be called again.

        [ 3  0  7 | 5  1  2  4  6 ]     num_used = 3; entries 3, 0 and 7 are in use

    Args:
        names: source of ids for episodes that are added without one.

    Attributes:
        first: position of each entry's oldest stored step, int64.
        last: position of each entry's newest step, int64.
        facts: facts of the episodes, by entry. Start times and endings are in the ring, ids come from `id_of`, and
            spaces belong to the buffer.
        serials: serial number of each entry's episode, int64.
        custom_data: custom data of the episodes that have some, by entry.
        lookbacks: steps before the first stored step, by entry, of episodes that were added with a lookback and without
            the chunk before.
        context: what `context_of` computed from `lookbacks`, until they change.
    """

    def __init__(self, names: EpisodeIds | None = None) -> None:
        self.names = names or EpisodeIds()
        self.first, self.last, self.serials = np.zeros((3, _FIRST_SIZE), np.int64)
        self.facts = _Facts()
        self.custom_data: dict[int, dict[str, Any] | None] = {}
        self.lookbacks: dict[int, SingleAgentEpisode] = {}
        self.context: Any = None
        self._pipelines: frozenset[str | None] | None = None  # what `acting_pipelines` returns, until it changes
        self._ids: dict[int, str] = {}  # by entry, ids that were given or read
        self._entries: dict[str, int] = {}
        self._place = np.arange(_FIRST_SIZE)  # index of each entry in `_all`
        self._all = np.arange(_FIRST_SIZE)
        self._num_used = 0

    def __len__(self) -> int:
        return self._num_used

    @property
    def order(self) -> np.ndarray:
        """Row numbers (entries) of all stored episodes, int64 [n], in no particular order."""
        return self._all[: self._num_used]

    def find(self, ids: Iterable[str]) -> np.ndarray:
        """Return the table row (entry) of each of the episode ids `ids`, int64 [n], or -1 if an id is not stored."""
        return np.fromiter(map(self._entries.get, ids, repeat(NONE)), np.int64)

    def id_of(self, entry: int) -> str:
        """Return the id of the episode in row `entry` of the table."""
        id_ = self._ids.get(entry)
        if id_ is None:
            id_ = self.names.id_of(int(self.serials[entry]))
            self._name(entry, id_)
        return id_

    def is_stored(self, entry: int, serial: int) -> bool:
        """Return whether the row `entry` of the table is in use by the episode with the serial number `serial`."""
        return self.serials.item(entry) == serial and self._place.item(entry) < self._num_used

    def key_of(self, entry: int) -> EpisodeKey:
        """Return episode id, agent id and module id of the episode in row `entry` of the table."""
        facts = self.facts[entry]
        return EpisodeKey(self.id_of(entry), facts.agent_id, facts.module_id)

    def acting_pipelines(self) -> frozenset[str | None]:
        """Return the preprocessing (rewriters and views) of the stored episodes, as JSON texts.

        The set contains None if the preprocessing of some episode is unknown.
        """
        if self._pipelines is None:
            texts = {facts.acting_pipeline for facts in self.facts.values()}
            if len(self.facts) < len(self):
                texts.add(self.facts.recorded.acting_pipeline)
            self._pipelines = frozenset(texts)
        return self._pipelines

    def _name(self, entry: int, id_: str) -> None:
        """Store the id of the episode in row `entry` of the table, and add the id to the lookup."""
        self._entries[id_] = entry
        self._ids[entry] = id_

    # --- changing ------------------------------------------------------------------------------------------------

    def change(self, closed: np.ndarray, num_opened: int) -> TableChange:
        """Plan to free the table rows `closed` [k], and to assign rows to `num_opened` new episodes."""
        used, surplus = self._num_used, num_opened - len(closed)  # removed entries are reused at once
        while used + surplus > len(self._all):
            self._grow()
        if surplus >= 0:
            opened = np.concatenate([closed, self._all[used : used + surplus]]) if surplus else closed
            return TableChange(closed[:0], closed[:0], closed, opened, used + surplus, serial=self.names.num)
        left, freed = used + surplus, closed[num_opened:]
        places = self._place[freed]
        holes = places < left
        stays = np.ones(len(freed), bool)  # of the last entries in use: those that fill the holes
        stays[places[~holes] - left] = False
        places = np.concatenate([places[holes], np.arange(left, used)])
        values = np.concatenate([self._all[left:used][stays], freed])
        return TableChange(places, values, closed, closed[:num_opened], left, serial=self.names.num)

    def apply(self, change: TableChange) -> None:
        """Execute a planned change of the table. Calling it again has no further effect."""
        if change.recorded_facts not in (None, self.facts.recorded) or not (self._num_used and change.num_used):
            self._pipelines = None
        if self.facts or change.facts:
            self._pipelines = None
        if change.recorded_facts is not None and change.recorded_facts != self.facts.recorded:
            recorded = [entry for entry in self.order.tolist() if entry not in self.facts]
            self.facts.update(dict.fromkeys(recorded, self.facts.recorded))
            self.facts.recorded = change.recorded_facts
        for entry in change.closed.tolist() if self._ids or self.facts or self.custom_data or self.lookbacks else ():
            id_ = self._ids.get(entry)
            if id_ is not None:
                if self._entries.get(id_) == entry:
                    self._entries.pop(id_)
                self._ids.pop(entry, None)
            self.facts.pop(entry, None)
            self.custom_data.pop(entry, None)
        if len(change.places):
            self._all[change.places] = change.values
            self._place[change.values] = change.places
        self._num_used = change.num_used
        if len(change.opened):
            self.names.use_up_to(change.serial + len(change.opened))
            self.serials[change.opened] = np.arange(change.serial, self.names.num)
        if change.first is not None:
            self.first[change.opened] = change.first
        if change.ids is not None:
            for entry, id_ in zip(change.opened.tolist(), change.ids, strict=True):
                if id_ is not None:
                    self._name(entry, id_)
        self.facts.update(change.facts or ())
        self.custom_data.update(change.custom_data or ())
        if self.lookbacks or change.lookbacks:
            self.drop_lookbacks(change.closed)
            self.lookbacks.update(change.lookbacks or ())

    def drop_lookbacks(self, entries: np.ndarray) -> None:
        """Remove the lookbacks of the episodes in `entries` [k], which are no longer next to their stored steps."""
        for entry in entries.tolist():
            self.lookbacks.pop(entry, None)
        self.context = None

    def _grow(self) -> None:
        """Double the number of entries that the table can hold."""
        size, self.context = len(self._all), None
        self.first, self.last, self.serials = (
            _longer(column, size) for column in (self.first, self.last, self.serials)
        )
        self._place = np.concatenate([self._place[:size], np.arange(size, 2 * size)])
        self._all = np.concatenate([self._all, np.arange(size, 2 * size)])

    def detach_id(self, id_: str) -> None:
        """Remove the id of a stored episode from the lookup. A later chunk with this id starts a new episode."""
        self._entries.pop(id_, None)

    # --- state ---------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return the contents of the table as a dict of copies, for a checkpoint."""
        used = self.order.tolist()
        ids: list[str | None] = [None] * len(self._all)
        facts: list[Any] = [None] * len(self._all)
        custom_data: list[Any] = [None] * len(self._all)
        for entry in used:
            ids[entry] = self.id_of(entry)
            fact = self.facts.get(entry)
            facts[entry] = None if fact is None else deepcopy(fact._asdict())
            custom_data[entry] = deepcopy(self.custom_data.get(entry))
        free = self._all[self._num_used :][::-1].tolist()  # the last one is used next
        lists = {
            "facts": facts,
            "custom_data": custom_data,
            "ids": ids,
            "lookbacks": {entry: self.lookbacks[entry].get_state() for entry in self.lookbacks},
            "order": used,
            "free": free,
            "entries": dict(self._entries),
            "acting_pipeline": self.facts.recorded.acting_pipeline,
        }
        arrays = {name: getattr(self, name).copy() for name in _ARRAYS}
        return {**arrays, **lists, "names": self.names.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the contents of the table from a dict that `get_state` returned."""
        self.first, self.last = state["first"].copy(), state["last"].copy()
        self.serials = np.array(state["serials"])
        self.names = EpisodeIds.of_state(state["names"])
        used = state["order"]
        self._all = np.array([*used, *state["free"][::-1]], np.int64)
        self._place = np.empty_like(self._all)
        self._place[self._all] = np.arange(len(self._all))
        self._num_used = len(used)
        self._ids = {entry: state["ids"][entry] for entry in used}
        self._entries = dict(state["entries"])
        self.facts = _Facts({e: EpisodeFacts(**state["facts"][e]) for e in used if state["facts"][e] is not None})
        self.facts.recorded = NO_FACTS._replace(acting_pipeline=state.get("acting_pipeline"))
        self.custom_data = {e: state["custom_data"][e] for e in used}
        lookbacks = state.get("lookbacks", {})  # states of earlier versions have none
        self.lookbacks = {entry: SingleAgentEpisode.from_state(lookbacks[entry]) for entry in lookbacks}
        self._pipelines = self.context = None


def _longer(array: np.ndarray, size: int) -> np.ndarray:
    """Return a zero-padded copy [2 * size] of the first `size` elements of an array."""
    return np.concatenate([array[:size], np.zeros(size, array.dtype)])

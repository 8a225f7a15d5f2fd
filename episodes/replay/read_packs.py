"""Reading of all episodes of a replay buffer as packs of limited size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from episodes.facts import PackFacts
from episodes.facts.ending import codes_of
from episodes.facts.policy_versions import VersionColumn
from episodes.pack import EpisodePack
from episodes.replay.ring.linked_ring import ACTIONS, REWARDS, TERMINATEDS, TRUNCATEDS, LinkedRing
from episodes.replay.ring.track_ring import positions
from episodes.tracks import Tracks
from episodes.tracks.infos.infos import EmptyInfos


def packs_of(ring: LinkedRing, spaces: tuple[Any, Any], most_steps: int, first: int = 0) -> Iterator[EpisodePack]:
    """Yield all stored episodes in packs of at most `most_steps` steps, ordered by their oldest stored steps.

    Args:
        ring: ring of the steps.
        spaces: observation space and action space of the packs.
        most_steps: maximum number of steps in a pack. A longer episode has a pack to itself.
        first: index of the oldest step to include. Of an episode that began before, the steps from there on.
    """
    first = max(ring.tail, first)
    slots = positions(first, ring.head - first, ring.capacity)
    entry_of = ring.links.entry[slots]
    lengths, ranks = np.bincount(entry_of, minlength=len(ring.table.first)), np.zeros(len(ring.table.first), np.int64)
    ranks[entry_of[::-1]] = np.arange(len(slots))[::-1]  # index of the first step of each entry
    entries = np.flatnonzero(lengths)
    entries = entries[ranks[entries].argsort()]
    ranks[entries] = np.arange(len(entries))
    slots = slots[np.argsort(ranks[entry_of], kind="stable")]  # episode after episode
    ends = np.cumsum(lengths[entries])
    begin = 0
    while begin < len(entries):
        first_step = int(ends[begin - 1]) if begin else 0
        end = max(int(np.searchsorted(ends, first_step + most_steps, "right")), begin + 1)
        part = entries[begin:end]
        yield _pack(ring, part, lengths[part], slots[first_step : ends[end - 1]], spaces)
        begin = end


def entries_in_order(ring: LinkedRing) -> np.ndarray:
    """Return the episode table rows of all stored episodes, ordered by their oldest stored steps, int [n]."""
    entries = np.array(ring.table.order, np.int64)
    return entries[np.argsort(ring.slot_numbers(ring.table.first[entries]))]


def _pack(
    ring: LinkedRing, entries: np.ndarray, lengths: np.ndarray, slots: np.ndarray, spaces: tuple[Any, Any]
) -> EpisodePack:
    """Return a pack of stored episodes, with copied arrays.

    Args:
        entries: the episodes' entries in the table.
        lengths: stored steps of each episode.
        slots: positions of all these steps, episode after episode.
        spaces: observation and action space of the pack.
    """
    table, begins = ring.table, np.cumsum(lengths) - lengths
    firsts, lasts = slots[begins], table.last[entries]
    rows = np.insert(ring.links.next_row[slots], begins, ring.links.row[firsts])
    columns = {name: track.take(slots) for name, track in ring.tracks.items() if name not in (TERMINATEDS, TRUNCATEDS)}
    known = entries.tolist()
    facts = PackFacts.of(
        [table.facts[entry] for entry in known], [table.custom_data.get(entry) or {} for entry in known]
    )
    numbers = ring.row_numbers(rows.astype(np.int64)).tolist() if ring.infos.starts else []
    tracks = Tracks.finished(
        ring.observations.take(rows),
        ring.infos.infos(numbers) if numbers else EmptyInfos(len(rows)),
        columns.pop(ACTIONS),
        columns.pop(REWARDS),
        columns,
    )
    facts = facts.changed(
        ids=[table.id_of(entry) for entry in known],
        t_started=ring.links.t[firsts],
        policy_versions=VersionColumn.of_steps(ring.versions.at(slots), lengths),
        endings=codes_of(ring.track(TERMINATEDS)[lasts], ring.track(TRUNCATEDS)[lasts]),
        observation_space=spaces[0],
        action_space=spaces[1],
    )
    return EpisodePack.of(tracks, facts, lengths, np.zeros_like(lengths))

"""Reading of all episodes of a replay buffer as packs of limited size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from episodes.errors import EpisodeStateError
from episodes.facts import PackFacts
from episodes.facts.ending import codes_of
from episodes.facts.policy_versions import VersionColumn
from episodes.pack import EpisodePack
from episodes.replay.read_episodes import episode_at, with_lookback
from episodes.replay.ring.linked_ring import ACTIONS, REWARDS, TERMINATEDS, TRUNCATEDS, LinkedRing
from episodes.replay.ring.track_ring import positions
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import Tracks


def packs_of(ring: LinkedRing, spaces: tuple[Any, Any], most_steps: int, first: int = 0) -> Iterator[EpisodePack]:
    """Yield all stored episodes in packs of at most `most_steps` steps, ordered by their oldest stored steps.

    The steps are those of the call. Steps that are evicted before their pack is yielded are left out.

    Args:
        ring: ring of the steps.
        spaces: observation space and action space of the packs.
        most_steps: maximum number of steps in a pack. A longer episode has a pack to itself.
        first: index of the oldest step to include. Of an episode that began before, the steps from there on.
    """
    with ring.lock:
        ring.flush_staged()
        generation, first = ring.generation, max(ring.tail, first)
        slots = positions(first, ring.head - first, ring.capacity)
        entry_of = ring.links.entry[slots]
        num_entries = len(ring.table.first)
        lengths, ranks = np.bincount(entry_of, minlength=num_entries), np.zeros(num_entries, np.int64)
        ranks[entry_of[::-1]] = np.arange(len(slots))[::-1]  # index of the first step of each entry
        entries = np.flatnonzero(lengths)
        entries = entries[ranks[entries].argsort()]
        ranks[entries] = np.arange(len(entries))
        order = np.argsort(ranks[entry_of], kind="stable")  # episode after episode
        numbers, entry_of = first + order, entry_of[order]
    ends = np.cumsum(lengths[entries])
    begin = 0
    while begin < len(entries):
        first_step = int(ends[begin - 1]) if begin else 0
        end = max(int(np.searchsorted(ends, first_step + most_steps, "right")), begin + 1)
        with ring.lock:
            ring.flush_staged()
            if ring.generation != generation:
                raise EpisodeStateError("the buffer was cleared or restored during the iteration; iterate again")
            steps = slice(first_step, int(ends[end - 1]))
            stored = numbers[steps] >= ring.tail
            slots, owners = numbers[steps][stored] % ring.capacity, entry_of[steps][stored]
            pack = _pack(ring, owners, slots, spaces) if len(slots) else None
        if pack is not None:
            yield pack
        begin = end


def episodes_of(ring: LinkedRing, spaces: tuple[Any, Any]) -> Iterator[SingleAgentEpisode]:
    """Yield a copy of each episode that is stored now and still has steps when it is yielded, oldest first."""
    with ring.lock:
        ring.flush_staged()
        entries = entries_in_order(ring)
        generation, serials = ring.generation, ring.table.serials[entries]
    for entry, serial in zip(entries.tolist(), serials.tolist(), strict=True):
        with ring.lock:
            ring.flush_staged()
            if ring.generation != generation:
                raise EpisodeStateError("the buffer was cleared or restored during the iteration; iterate again")
            episode = episode_at(ring, entry, *spaces) if ring.table.is_stored(entry, serial) else None
        if episode is not None:
            yield episode


def entries_in_order(ring: LinkedRing) -> np.ndarray:
    """Return the episode table rows of all stored episodes, ordered by their oldest stored steps, int [n]."""
    entries = np.array(ring.table.order, np.int64)
    return entries[np.argsort(ring.slot_numbers(ring.table.first[entries]))]


def _pack(ring: LinkedRing, owners: np.ndarray, slots: np.ndarray, spaces: tuple[Any, Any]) -> EpisodePack:
    """Return a pack of stored episodes, with copied arrays.

    Args:
        ring: ring of the steps.
        owners: row of each step's episode in the table, episode after episode.
        slots: positions of the steps.
        spaces: observation and action space of the pack.
    """
    table, begins = ring.table, np.flatnonzero(np.diff(owners, prepend=-1))
    entries, lengths = owners[begins], np.diff(begins, append=len(owners))
    firsts, lasts = slots[begins], slots[begins + lengths - 1]
    rows = np.insert(ring.links.next_row[slots], begins, ring.links.row[firsts])
    columns = {name: track.take(slots) for name, track in ring.tracks.items() if name not in (TERMINATEDS, TRUNCATEDS)}
    known = entries.tolist()
    facts = PackFacts.of(
        [table.facts[entry] for entry in known], [table.custom_data.get(entry) or {} for entry in known]
    )
    tracks = Tracks.finished(
        ring.observations.take(rows),
        ring.infos_at(rows),
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
    pack = EpisodePack.of(tracks, facts, lengths, np.zeros_like(lengths))
    before = [table.lookbacks.get(entry) for entry in known] if table.lookbacks else []
    if not any(before):
        return pack
    episodes = [*pack]
    for i, (part, slot, entry) in enumerate(zip(before, firsts.tolist(), known, strict=True)):
        if part is not None and slot == table.first[entry]:
            tracks = with_lookback(episodes[i].tracks, part)
            episodes[i] = SingleAgentEpisode.of(episodes[i].facts, tracks, episodes[i].custom_data)
    return EpisodePack.from_episodes(episodes)

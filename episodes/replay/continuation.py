"""Comparison of chunks that are to be added to a replay ring with the stored steps that they continue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.errors import ChunkMismatch
from episodes.facts.chunk_order import contents_message
from episodes.pack import EpisodePack
from episodes.replay.ring.linked_ring import ACTIONS, LinkedRing
from episodes.single_agent.overlap import first_unequal_row
from episodes.tracks import nested
from episodes.tracks.indexing import ranges

if TYPE_CHECKING:
    from episodes.facts.facts import EpisodeFacts


def check_contents(ring: LinkedRing, pack: EpisodePack, ids: list[str]) -> None:
    """Raise `ChunkMismatch` if a chunk does not begin with the newest observation of the episode that it continues, has
    other values in its lookback than the steps before it, or is of another agent.

    Rewards are not compared, since they may be changed before they are added, for example normalized.

    Args:
        ring: where the chunks are to be added.
        pack: the chunks, whose times fit to the stored ones.
        ids: ids of the chunks.
    """
    entries = ring.table.find(ids)
    if len(set(ids)) == len(ids):
        stored, inside = np.flatnonzero((entries >= 0) & (pack.lengths > 0)), []
    else:
        stored, inside = _continued(pack, ids, entries)
    if len(stored):
        for i in stored.tolist():
            _check_agent(ids[i], ring.table.facts[int(entries[i])], pack.facts.at(i))
        _check_stored(ring, pack, stored, entries[stored])
    if inside:
        for i, j in inside:
            _check_agent(ids[j], pack.facts.at(i), pack.facts.at(j))
        _check_inside(pack, *np.array(inside).T)


def _continued(pack: EpisodePack, ids: list[str], entries: np.ndarray) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """Return the chunks that continue stored episodes, int64 [n], and the pairs of chunks of which the second continues
    the first.
    """
    newest: dict[str, int] = {}
    stored, inside = [], []
    for i in np.flatnonzero(pack.lengths).tolist():
        if ids[i] in newest:
            inside.append((newest[ids[i]], i))
        elif entries[i] >= 0:
            stored.append(i)
        newest[ids[i]] = i
    return np.array(stored, np.int64), inside


def _check_agent(id_: str, before: EpisodeFacts, later: EpisodeFacts) -> None:
    """Raise `ChunkMismatch` if two chunks with one id are of two agents or multi-agent episodes."""
    for name in ("agent_id", "multi_agent_episode_id"):
        first, second = getattr(before, name), getattr(later, name)
        if first != second:
            raise ChunkMismatch(
                f"episode {id_}: a chunk with the {name} {second!r}, but the steps before it have {first!r}; "
                "give the episodes of each agent ids of their own"
            )


def _check_stored(ring: LinkedRing, pack: EpisodePack, chunks: np.ndarray, entries: np.ndarray) -> None:
    """Raise `ChunkMismatch` if a chunk has an item that differs from the stored one of the same time.

    Args:
        ring: of the stored steps.
        pack: of the chunks.
        chunks: indices of the chunks, int64 [n].
        entries: entries of the episodes that they continue, int64 [n].
    """
    links, last = ring.links, ring.table.last[entries]
    columns = {"observations": (ring.observations.take(links.next_row[last]), pack.observations)}
    _compare(pack, chunks, np.zeros(len(chunks), np.int64), columns)
    wanted = pack.lookbacks[chunks]
    of, slots, back = np.flatnonzero(wanted), last[wanted > 0], 1
    while len(of):
        rows = {
            "observations": (ring.observations.take(links.row[slots]), pack.observations),
            "actions": (ring.tracks[ACTIONS].take(slots), pack.actions),
        }
        _compare(pack, chunks[of], np.full(len(of), -back), rows)
        goes_on = (wanted[of] > back) & (slots != ring.table.first[entries[of]])
        of, slots, back = of[goes_on], links.previous[slots[goes_on]], back + 1


def _check_inside(pack: EpisodePack, before: np.ndarray, later: np.ndarray) -> None:
    """Raise `ChunkMismatch` if chunks have an item that differs from that of the chunk before them in the pack.

    Args:
        pack: of the chunks.
        before, later: indices of the chunks, int64 [n] each.
    """
    num = np.minimum(pack.lookbacks[later], pack.lookbacks[before] + pack.lengths[before])
    for name, begins in (("observations", pack.observation_offsets), ("actions", pack.offsets)):
        counts = num + (name == "observations")
        of, back = np.repeat(np.arange(len(later)), counts), ranges(-num, counts)
        rows = (begins[:-1] + pack.lookbacks + pack.lengths)[before[of]] + back
        items = getattr(pack, name)
        _compare(pack, later[of], back, {name: (nested.take(items, rows), items)})


def _compare(pack: EpisodePack, chunks: np.ndarray, times: np.ndarray, earlier: dict[str, tuple[Any, Any]]) -> None:
    """Raise `ChunkMismatch` if items of chunks differ from the earlier ones.

    Args:
        pack: of the chunks.
        chunks: the chunk of each item, int64 [n].
        times: the time of each item after the beginning of its chunk, int64 [n]. It is negative in the lookback.
        earlier: by name the items [n, ...] that the earlier steps have, and the track of the pack.
    """
    rows = {
        name: (pack.observation_offsets if name == "observations" else pack.offsets)[chunks]
        + pack.lookbacks[chunks]
        + times
        for name in earlier
    }
    found = first_unequal_row(
        {name: (items, nested.take(track, rows[name])) for name, (items, track) in earlier.items()}
    )
    if found is not None:
        i, t_started = chunks[found[1]], int(pack.t_started[chunks[found[1]]])
        at = f"{found[0]} at t={t_started + int(times[found[1]])}"
        raise ChunkMismatch(contents_message(pack.ids[i], at, t_started))

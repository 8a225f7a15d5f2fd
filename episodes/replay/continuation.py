"""Comparison of chunks that are to be added to a replay ring with the stored steps that they continue."""

from __future__ import annotations

from typing import Any

import numpy as np

from episodes.errors import ChunkMismatch
from episodes.pack import EpisodePack
from episodes.replay.ring.linked_ring import LinkedRing
from episodes.tracks import nested


def check_contents(ring: LinkedRing, pack: EpisodePack, ids: list[str]) -> None:
    """Raise `ChunkMismatch` if a chunk does not begin with the newest observation of the episode that it continues, or
    is of another agent.

    Args:
        ring: where the chunks are to be added.
        pack: the chunks, whose times fit to the stored ones.
        ids: ids of the chunks.
    """
    entries = ring.table.find(ids)
    if len(set(ids)) == len(ids):
        stored, inside = np.flatnonzero((entries >= 0) & (pack.lengths > 0)).tolist(), []
    else:
        stored, inside = _continued(pack, ids, entries)
    firsts = pack.observation_offsets[:-1] + pack.lookbacks
    if stored:
        for i in stored:
            _check_agent(ids[i], ring.table.facts[int(entries[i])], pack.facts.at(i))
        rows = ring.links.next_row[ring.table.last[entries[stored]]]
        _check_equal(ring.observations.take(rows), nested.take(pack.observations, firsts[stored]), pack, stored)
    if inside:
        before, later = (list(part) for part in zip(*inside, strict=True))
        for i, j in inside:
            _check_agent(ids[j], pack.facts.at(i), pack.facts.at(j))
        lasts = nested.take(pack.observations, (firsts + pack.lengths)[before])
        _check_equal(lasts, nested.take(pack.observations, firsts[later]), pack, later)


def _continued(pack: EpisodePack, ids: list[str], entries: np.ndarray) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the chunks that continue stored episodes, and the pairs of chunks of which the second continues the
    first.
    """
    newest: dict[str, int] = {}
    stored, inside = [], []
    for i in np.flatnonzero(pack.lengths).tolist():
        if ids[i] in newest:
            inside.append((newest[ids[i]], i))
        elif entries[i] >= 0:
            stored.append(i)
        newest[ids[i]] = i
    return stored, inside


def _check_agent(id_: str, before: Any, later: Any) -> None:
    """Raise `ChunkMismatch` if two chunks with one id are of two agents or multi-agent episodes."""
    for name in ("agent_id", "multi_agent_episode_id"):
        first, second = getattr(before, name), getattr(later, name)
        if first != second:
            raise ChunkMismatch(
                f"episode {id_}: a chunk with the {name} {second!r}, but the steps before it have {first!r}; "
                "give the episodes of each agent ids of their own"
            )


def _check_equal(newest: Any, first: Any, pack: EpisodePack, chunks: list[int]) -> None:
    """Raise `ChunkMismatch` if an observation differs.

    Args:
        newest: last observations of the stored steps, [n, ...].
        first: first observations of the chunks that continue them, [n, ...].
        pack: of the chunks.
        chunks: indices of the chunks, [n].
    """
    if nested.equal(newest, first):
        return
    for k, i in enumerate(chunks):
        if not nested.equal(nested.take(newest, slice(k, k + 1)), nested.take(first, slice(k, k + 1))):
            raise ChunkMismatch(
                f"episode {pack.ids[i]}: the first observation of the chunk that begins at t={pack.t_started[i]} is "
                "not the one at which the steps before it stop; an id belongs to one episode: give each one its own"
            )

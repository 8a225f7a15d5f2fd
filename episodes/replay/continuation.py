"""Comparison of chunks that are to be added to a replay ring with the stored steps that they continue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from episodes.errors import ChunkMismatch
from episodes.pack import EpisodePack
from episodes.replay.ring.linked_ring import ACTIONS, LinkedRing
from episodes.tracks import nested


def check_contents(ring: LinkedRing, pack: EpisodePack, ids: list[str]) -> None:
    """Raise `ChunkMismatch` if a chunk does not begin with the newest observation of the episode that it continues, has
    a lookback that differs from the stored steps, or is of another agent.

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
        with_lookback = [i for i in stored if pack.lookbacks[i]]
        if with_lookback:
            _check_lookbacks(ring, pack, with_lookback, entries[with_lookback])
    if inside:
        before, later = (list(part) for part in zip(*inside, strict=True))
        for i, j in inside:
            _check_agent(ids[j], pack.facts.at(i), pack.facts.at(j))
        lasts = nested.take(pack.observations, (firsts + pack.lengths)[before])
        _check_equal(lasts, nested.take(pack.observations, firsts[later]), pack, later)
        for i, j in inside:
            count = int(min(pack.lengths[i], pack.lookbacks[j]))
            if count:
                _check_inside(pack, i, j, count)


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


def _check_lookbacks(ring: LinkedRing, pack: EpisodePack, chunks: list[int], entries: np.ndarray) -> None:
    """Raise `ChunkMismatch` if the lookback of a chunk has other observations or actions than the stored steps.

    Rewards are not compared, since they may be changed before they are added, for example normalized.

    Args:
        chunks: indices of chunks with a lookback, [n].
        entries: table entries of the episodes that they continue, [n].
    """
    picked, lengths = np.array(chunks), pack.lookbacks[chunks]
    most, links = int(lengths.max()), ring.links
    path = [ring.table.last[entries]]  # the newest step first
    for _ in range(most - 1):
        path.append(links.previous[path[-1]])
    slots = np.array(path)  # [most, n]
    back = np.arange(most)[:, None]
    inside = (back < lengths) & (links.t[slots] == pack.t_started[picked] - 1 - back)
    back, owner = inside.nonzero()
    steps = (pack.offsets[picked] + lengths - 1)[owner] - back
    stored, own = slots[inside], steps + picked[owner]  # each chunk before has one observation more
    _check_equal(ring.observations.take(links.row[stored]), nested.take(pack.observations, own), pack, picked[owner])
    _check_equal(ring.tracks[ACTIONS].take(stored), nested.take(pack.actions, steps), pack, picked[owner])


def _check_inside(pack: EpisodePack, i: int, j: int, count: int) -> None:
    """Raise `ChunkMismatch` if the `count` last steps of chunk `i` differ from the lookback of the next chunk `j`."""
    back = np.arange(count, 0, -1)
    before, later = (int(pack.offsets[k] + pack.lookbacks[k]) + add - back for k, add in ((i, pack.lengths[i]), (j, 0)))
    chunks = np.full(count, j)
    rows = [nested.take(pack.observations, steps + k) for steps, k in ((before, i), (later, j))]
    _check_equal(rows[0], rows[1], pack, chunks)
    _check_equal(nested.take(pack.actions, before), nested.take(pack.actions, later), pack, chunks)


def _check_agent(id_: str, before: Any, later: Any) -> None:
    """Raise `ChunkMismatch` if two chunks with one id are of two agents or multi-agent episodes."""
    for name in ("agent_id", "multi_agent_episode_id"):
        first, second = getattr(before, name), getattr(later, name)
        if first != second:
            raise ChunkMismatch(
                f"episode {id_}: a chunk with the {name} {second!r}, but the steps before it have {first!r}; "
                "give the episodes of each agent ids of their own"
            )


def _check_equal(newest: Any, first: Any, pack: EpisodePack, chunks: Sequence[int] | np.ndarray) -> None:
    """Raise `ChunkMismatch` if an item differs.

    Args:
        newest: last observations of the stored steps, or earlier items, [n, ...].
        first: first observations of the chunks that continue them, or items of their lookbacks, [n, ...].
        pack: of the chunks.
        chunks: indices of the chunks, [n].
    """
    if nested.equal(newest, first):
        return
    for k, i in enumerate(chunks):
        if not nested.equal(nested.take(newest, slice(k, k + 1)), nested.take(first, slice(k, k + 1))):
            raise ChunkMismatch(
                f"episode {pack.ids[i]}: the first observation of the chunk that begins at t={pack.t_started[i]} is "
                "not the one at which the steps before it stop, or its lookback differs from them; an id belongs to "
                "one episode: give each one its own"
            )

"""Adding of a data set's episodes to a replay buffer, without the steps that the buffer already stores.

A buffer takes the chunks of an episode in the order of time. The chunks of a data set may be in any order: several
writers wrote them, or a selection changed it. Each episode keeps its places among the others, and its chunks take them
in the order of time:

    stored     a t=5..9    b t=0..3    a t=0..4
    added      a t=0..4    b t=0..3    a t=5..9
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from episodes.errors import ChunkMismatch
from episodes.facts.chunk_order import KEY_COLUMNS, ChunkOrder, codes_of_table, episode_codes, keys_of
from episodes.pack import EpisodePack
from episodes.replay.read_episodes import episode_at
from episodes.replay.ring.linked_ring import LinkedRing
from episodes.single_agent.overlap import first_difference
from episodes.storage import EpisodeDataset
from episodes.storage.chunk_checks import conflict_texts, difference, order_of


def in_episode_order(dataset: EpisodeDataset) -> EpisodeDataset:
    """Return a view of a data set in which the chunks of each episode are in the order of time, or the data set itself.

    With ragged tracks the chunks of an episode also follow each other, since the replay buffer stores such episodes in
    one piece. These episodes are in the order of their last chunks.

    Raises:
        ChunkMismatch: two chunks have one id and are not of one episode.
    """
    table = dataset.metadata
    episodes = codes_of_table(table)
    _check(dataset, order_of(table))
    if len(episodes) and episode_codes(table["id"].tolist()).max() < episodes.max():
        raise _agents_error(table)
    in_time = table["length"], table["t_started"], episodes
    places, chunks = np.argsort(episodes, kind="stable"), np.lexsort(in_time)
    order = np.empty_like(chunks)
    order[places] = chunks
    if any(field.is_ragged for field in dataset.stored_header.tracks.values()):
        last = np.zeros(len(episodes), np.int64)
        last[episodes] = np.arange(len(episodes))
        order = np.lexsort((*in_time[:2], last[episodes]))
    return dataset if (order[1:] > order[:-1]).all() else dataset.select(order)


def _check(dataset: EpisodeDataset, chunks: ChunkOrder) -> None:
    """Raise `ChunkMismatch` if two chunks have one id and are not of one episode.

    Chunks may overlap, as in several snapshots of one buffer, if they are equal where they do. Steps that occur twice
    are added once.
    """
    table = dataset.metadata
    stops, ended = table["t_started"] + table["length"], table["terminated"] | table["truncated"]
    for (first, second), text in zip(chunks.pairs(chunks.is_conflict), conflict_texts(table, chunks), strict=True):
        is_after_end = stops[second] > stops[first] and ended[first]
        if is_after_end or table["t_started"][second] >= stops[first]:
            raise ChunkMismatch(text)
        if stops[second] == stops[first] and ended[first] != ended[second]:
            raise ChunkMismatch(text)
        found = difference(dataset, first, second, whole=True)
        if found is not None:
            raise ChunkMismatch(f"{text} ({found} differ)")


def _agents_error(table: Mapping[str, np.ndarray]) -> ChunkMismatch:
    """Return the error for two agents whose chunks have one id, which a buffer takes as one episode."""
    agents: dict[Any, Any] = {}
    for id_, agent in zip(table["id"].tolist(), table["agent_id"].tolist(), strict=True):
        if agents.setdefault(id_, agent) != agent:
            return ChunkMismatch(
                f"episode {id_}: chunks of the agents {agents[id_]} and {agent} have one id, a buffer needs an id for "
                "each agent's episode; select the episodes of one agent, or write them with other ids"
            )
    return ChunkMismatch("two multi-agent episodes have agents with one id; select the episodes of one of them")


def without_stored(pack: EpisodePack, dataset: EpisodeDataset) -> EpisodePack:
    """Return the pack without the beginnings of its chunks that the data set has already.

    Raises:
        ChunkMismatch: the data set has other values there.
    """
    table = dataset.metadata
    stored: dict[Any, list[int]] = {}
    for i, key in enumerate(keys_of(*(table[name] for name in KEY_COLUMNS))):
        stored.setdefault(key, []).append(i)
    skipped = np.zeros(len(pack), np.int64)
    for i, key in enumerate(keys_of(pack.ids, pack.facts.agent_ids, pack.facts.multi_agent_episode_ids)):
        for row in stored.get(key, ()):
            begin, stop = int(table["t_started"][row]), int(table["t_started"][row] + table["length"][row])
            episode = pack[i]
            if max(begin, episode.t_started) >= min(stop, episode.t):
                continue
            found = first_difference(dataset[row], episode)
            if found is not None:
                raise ChunkMismatch(
                    f"episode {episode.id_}: {found} differ from those that {dataset.path} has; an id belongs to one "
                    "episode: give another path"
                )
            if begin <= episode.t_started + skipped[i]:
                skipped[i] = max(skipped[i], min(stop, episode.t) - episode.t_started)
    return _without_beginnings(pack, skipped)


def late_endings(ring: LinkedRing, spaces: tuple[Any, Any], dataset: EpisodeDataset) -> EpisodePack | None:
    """Return a chunk without steps for each stored episode that has ended, and that the data set has cut at its last
    step. None is returned if there are none.

    Args:
        ring: ring of the steps.
        spaces: observation space and action space of the pack.
        dataset: data set, which has all stored steps.
    """
    table, chunks = dataset.metadata, order_of(dataset.metadata)
    is_cut = (table["length"] > 0) & ~(table["terminated"] | table["truncated"])
    is_cut[chunks.ended] = False
    rows = np.flatnonzero(is_cut)
    stops = (table["t_started"] + table["length"])[rows].tolist()
    cut = {repr(key) for key in zip(*(table[name][rows].tolist() for name in KEY_COLUMNS), stops, strict=True)}
    with ring.lock:
        ring.flush_staged()
        entries = np.array(ring.table.order, np.int64)
        if len(entries):
            entries = entries[ring.have_ended(entries)]
        episodes = []
        for entry, stop in zip(entries.tolist(), ring.t_next(entries).tolist() if len(entries) else (), strict=True):
            facts = ring.table.facts[entry]
            key = (ring.table.id_of(entry), facts.agent_id, facts.multi_agent_episode_id, stop)
            if repr(key) in cut:
                episode = episode_at(ring, entry, *spaces)
                episodes.append(episode.window(len(episode), len(episode), 0, reaches_end=True))
    return EpisodePack.from_episodes(episodes) if episodes else None


def addable_packs(ring: LinkedRing, pack: EpisodePack) -> Iterator[EpisodePack]:
    """Split a pack into packs that can be added to the ring in order, without steps that the ring already stores.

    If steps are missing between two chunks of an episode, because they were evicted before a snapshot, the later chunk
    becomes a separate entry with the same id:

        read before      t = 0..9
        chunk            t = 6..14     10..14 are new
        chunk            t = 20..25    15..19 are missing
    """
    chunks = list(zip(pack.ids.tolist(), pack.t_started.tolist(), pack.lengths.tolist(), strict=True))
    begin = 0
    while begin < len(pack):
        next_times: dict[str, int] = {}
        skipped: list[int] = []  # number of steps of each chunk that the ring has already
        for id_, t_started, length in chunks[begin:]:
            t_next = next_times.get(id_, _t_next(ring, id_))
            if t_next is not None and t_started > t_next and length:
                if id_ in next_times:
                    break
                ring.table.detach_id(id_)
                t_next = None
            skip = 0 if t_next is None else max(min(t_next - t_started, length), 0)
            skipped.append(skip)
            if skip < length:
                next_times[id_] = t_started + length
        end = begin + len(skipped)
        chunks_to_add = pack[begin:end]
        counts, is_late = np.array(skipped, np.int64), (chunks_to_add.lengths == 0) & (chunks_to_add.facts.endings > 0)
        yield _without_beginnings(chunks_to_add, counts, is_late)
        begin = end


_NEVER = sys.maxsize  # later than the time of any step


def _t_next(ring: LinkedRing, id_: str) -> int | None:
    """Return the time that follows the newest stored step of the episode `id_`, or None if the episode is not stored.

    If the episode has ended, the result is later than any step.
    """
    entries = ring.table.find([id_])
    if entries[0] < 0:
        return None
    return _NEVER if ring.have_ended(entries)[0] else int(ring.t_next(entries)[0])


def _without_beginnings(pack: EpisodePack, skipped: np.ndarray, is_kept: np.ndarray | None = None) -> EpisodePack:
    """Return the pack without the first `skipped[i]` steps of each chunk i. Chunks that become empty are removed,
    except where `is_kept`, bool [n], is True.
    """
    if skipped.any():
        pack = pack.move_starts(skipped)
    kept = np.array(pack.lengths > 0) if is_kept is None else is_kept | (pack.lengths > 0)
    return pack if kept.all() else pack.select(np.flatnonzero(kept))

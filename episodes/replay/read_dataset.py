"""Adding of a data set's episodes to a replay buffer, without the steps that the buffer already stores."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np

from episodes.pack import EpisodePack
from episodes.replay.ring.linked_ring import LinkedRing
from episodes.storage import EpisodeDataset


def in_episode_order(dataset: EpisodeDataset) -> EpisodeDataset:
    """Return a view of a data set with ragged tracks in which the chunks of each episode follow each other. Any other
    data set is returned itself.

    The replay buffer stores episodes with ragged tracks in one piece.

    The episodes are in the order of their last chunks.
    """
    if not any(field.is_ragged for field in dataset.stored_header.tracks.values()):
        return dataset
    ids = dataset.metadata["id"].tolist()
    last = {id_: i for i, id_ in enumerate(ids)}
    order = np.argsort([last[id_] for id_ in ids], kind="stable")
    return dataset if (order[1:] > order[:-1]).all() else dataset.select(order)


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
        yield _without_beginnings(pack[begin:end], np.array(skipped, np.int64))
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


def _without_beginnings(pack: EpisodePack, skipped: np.ndarray) -> EpisodePack:
    """Return the pack without the first `skipped[i]` steps of each chunk i. Chunks that become empty are removed."""
    if skipped.any():
        pack = pack.move_starts(skipped)
    return pack if pack.lengths.all() else pack.select(np.flatnonzero(pack.lengths))

"""Adding of episode chunks to a replay ring: new steps are linked to earlier stored steps of the same episode.

The second chunk of episode a continues the stored first one. Its first observation is the last observation of the first
chunk, and is not stored again:

    position       0  1  2  3  4  5  6
    episode        a  a  b  b  b  a  a         position 5 continues position 1
    t              0  1  0  1  2  2  3
    previous       0  0  2  2  3  1  5
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from episodes.errors import ChunkMismatch, InvalidArgument, TrackMismatch, WrongType, rejected_type
from episodes.facts import Ending
from episodes.facts.policy_versions import UNKNOWN
from episodes.pack import EpisodePack
from episodes.replay.continuation import check_contents
from episodes.replay.ring.addition import Addition, Block
from episodes.replay.ring.episode_table import NONE, TableChange
from episodes.replay.ring.linked_ring import (
    ACTIONS,
    OBSERVED,
    REWARDS,
    TERMINATEDS,
    TRUNCATEDS,
    LinkedRing,
)
from episodes.replay.ring.step_links import ENTRY, NEXT, NEXT_ROW, NUM_LINKS, PREVIOUS, ROW, T
from episodes.replay.ring.track_ring import positions
from episodes.replay.stored_outputs import checked_extra
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks.infos import Infos

OBSERVATIONS = "observations"


def as_sequence(episodes: object, kind: type) -> Any:
    """Return the argument of `add` (an episode, an iterable of episodes or a pack) as a list of episodes or as a pack.

    Args:
        episodes: one episode, an iterable of episodes, or a pack.
        kind: class of the episodes.

    Raises:
        WrongType: `episodes` is something else, or contains something else.
    """
    if isinstance(episodes, kind):
        return [episodes]
    wrong = episodes
    if isinstance(episodes, EpisodePack) and kind is SingleAgentEpisode:
        return episodes
    if isinstance(episodes, Iterable) and not isinstance(episodes, (str, bytes, Mapping, EpisodePack, kind)):
        episodes = list(episodes)
        if all(isinstance(each, kind) for each in episodes):
            return episodes
        wrong = next(each for each in episodes if not isinstance(each, kind))
    raise WrongType(f"add takes a {kind.__name__}, or a sequence of them; this is a {rejected_type(wrong, kind)}")


def add_pack(ring: LinkedRing, pack: EpisodePack, order: np.ndarray | None = None) -> None:
    """Write the episode chunks of a pack to the replay ring. If the chunks do not fit, the ring is unchanged.

    Args:
        ring: where the steps are written.
        pack: chunks, written one after another.
        order: another order of the steps, as indices [num_steps]. The pack must fit into the ring, and no episode may
            occur twice in it.
    """
    with ring.lock:
        ring.flush_staged()
        _add(ring, pack, order)


def _add(ring: LinkedRing, pack: EpisodePack, order: np.ndarray | None) -> None:
    """Check a pack, and add its steps to the ring. Episodes of ragged tracks that lose their beginning are evicted.

    Args:
        order: order in which the steps are written, or None for the order of the pack.
    """
    check_pack(ring, pack)
    if pack.num_steps:
        try:
            _write(ring, pack, order)
        finally:
            if ring.ragged:
                _evict_cut_episodes(ring)
    empty = np.flatnonzero((pack.lengths == 0) & (pack.facts.endings > 0))
    if len(empty):
        end_stored(ring, pack.ids[empty].tolist(), pack.t_started[empty], pack.terminated[empty], pack.truncated[empty])


def end_stored(
    ring: LinkedRing, ids: list[str], t_started: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
) -> None:
    """Set the endings of stored episodes that chunks without steps end, see `chunk_order`. A repeated call has no
    further effect.

    Args:
        ring: where the steps before these chunks are stored. Chunks of other episodes are left out.
        ids: ids of the n chunks.
        t_started: times at which they begin, int [n].
        terminated, truncated: their endings, bool [n].
    """
    entries = ring.table.find(ids)
    known = np.flatnonzero(entries >= 0)
    if len(known):
        entries = entries[known]
        is_next = ~ring.have_ended(entries) & (ring.t_next(entries) == t_started[known])
        known, slots = known[is_next], ring.table.last[entries[is_next]]
        ring.end_at(slots, {TERMINATEDS: terminated[known], TRUNCATEDS: truncated[known]})


def _evict_cut_episodes(ring: LinkedRing) -> None:
    """Evict the rest of each token episode that lost its first steps, because later tokens depend on earlier tokens."""
    while len(ring) and ring.links.t.item(slot := ring.tail % ring.capacity):
        last = ring.table.last[ring.links.entry[slot]]
        ring.evict_before(int(ring.slot_numbers(np.array([last]))[0]) + 1)


def _write(ring: LinkedRing, pack: EpisodePack, order: np.ndarray | None) -> None:
    """Write the steps of a pack into the ring, in several parts if they cannot be written at once.

    Parts are needed if two chunks have the same id, or if there are more steps than the ring can hold. Of a chunk
    longer than the ring, only the last steps are written.
    """
    ring.create_missing(pack.observations, step_tracks_of(pack), pack.facts.policy_versions is not None)
    ids = pack.ids.tolist()
    if len(set(ids)) == len(ids) and pack.num_steps <= ring.capacity:
        ring.add(addition_of(ring, pack, order))
        return
    for part in split_pack(pack, ids, ring.capacity):
        if part.num_steps:
            surplus = max(part.num_steps - ring.capacity, 0)
            written = part.move_starts(np.array([surplus])) if surplus else part
            ring.add(addition_of(ring, written, None, surplus))
            if surplus and (runs := part.facts.policy_versions) is not None:
                ring.versions.keep_newest(int(runs.versions.max(initial=UNKNOWN)))


def check_pack(ring: LinkedRing, pack: EpisodePack) -> None:
    """Raise the error that `add_pack` would raise for this pack. Nothing is written.

    Raises:
        ChunkMismatch: a chunk does not continue the stored steps of its episode: it begins at another time or with
            another observation, or is of another agent.
        TrackMismatch, ShapeMismatch: tracks differ from the stored ones.
        InvalidArgument: a ragged episode does not fit into the ring.
    """
    ids = pack.ids.tolist()
    check_chunks(pack, ids, ring, len(set(ids)) == len(ids))
    if pack.columns.ragged_kinds():
        _check_whole(pack, ids, ring)
    if pack.num_steps:  # the tracks of a pack without steps have no dtypes yet
        ring.check(pack.observations, step_tracks_of(pack))
        check_contents(ring, pack, ids)


def _check_whole(pack: EpisodePack, ids: list[str], ring: LinkedRing) -> None:
    """Raise an error if an episode with variable-length items would not be stored whole and in one piece.

    The oldest steps are evicted first. So only an episode whose steps are next to each other can be evicted whole
    without other episodes.

    Raises:
        ChunkMismatch: a chunk begins later, and the steps before it are not the newest stored ones.
        InvalidArgument: an episode has more steps than the ring.
    """
    newest = ring.links.entry.item((ring.head - 1) % ring.capacity) if len(ring) else NONE
    newest_id = next((id_ for id_, entry in zip(ids, ring.table.find(ids), strict=True) if entry == newest >= 0), None)
    for id_, t_started, length in zip(ids, pack.t_started.tolist(), pack.lengths.tolist(), strict=True):
        if t_started and length and id_ != newest_id:
            raise ChunkMismatch(
                f"episode {id_}: a chunk that begins at t={t_started}, and the steps before it are not the newest "
                "ones; episodes with ragged tracks are stored in one piece, from t=0 on: add all their chunks one "
                "after another, or join them"
            )
        if t_started + length > ring.capacity:
            raise InvalidArgument(
                f"episode {id_} has {t_started + length} steps and ragged tracks, and is stored whole or not at all; "
                f"make a buffer with a larger capacity than {ring.capacity}"
            )
        newest_id = id_ if length else newest_id


def check_rows(ring: LinkedRing, keys: Iterable[str]) -> None:
    """Raise `TrackMismatch` if a requested batch column has items of different lengths, which cannot be stacked."""
    names = {OBSERVATIONS if key in OBSERVED else key for key in keys}
    ragged = [name for name in ring.ragged if name in names]
    if ragged:
        raise TrackMismatch(
            f"the tracks {ragged} are ragged: items of several lengths are no rows of a batch; use sample_chunks or "
            "sample_episodes, or leave the columns out of keys"
        )


def step_tracks_of(pack: EpisodePack) -> dict[str, Any]:
    """Return the per-step arrays of a pack by name: actions, rewards, ending flags and extra model outputs.


    The ending flags are empty arrays, since only their dtype is needed.
    """
    flags = np.zeros(0, bool)
    named = {ACTIONS: pack.actions, REWARDS: pack.rewards, TERMINATEDS: flags, TRUNCATEDS: flags}
    return named | checked_extra(pack.extra_model_outputs)


def check_chunks(pack: EpisodePack, ids: list[str], ring: LinkedRing, distinct: bool) -> None:
    """Raise `ChunkMismatch` if a chunk of a stored, unfinished episode does not begin where the stored part stops.

    Args:
        pack: chunks to be added.
        ids: ids of the chunks.
        ring: where they are to be added.
        distinct: whether no id occurs twice.
    """
    entries = ring.table.find(ids)
    known = (entries >= 0) & (pack.lengths > 0)
    if not distinct:
        _check_in_turn(pack, ids, ring, entries)
    elif known.any():
        t_next, ended = ring.t_next(entries), ring.have_ended(entries)
        wrong = known & (ended | (t_next != pack.t_started))
        if wrong.any():
            i = int(wrong.argmax())
            raise _mismatch_error(ids[i], int(pack.t_started[i]), int(t_next[i]), bool(ended[i]))


def _check_in_turn(pack: EpisodePack, ids: list[str], ring: LinkedRing, entries: np.ndarray) -> None:
    """Raise `ChunkMismatch` unless each chunk continues a stored episode that has not ended, or starts a new one.

    Args:
        entries: the entry of each chunk's id in the ring's table, or -1.
    """
    known = np.flatnonzero(entries >= 0)
    stored: dict[str, tuple[int, bool]] = {}
    if len(known):
        pairs = zip(ring.t_next(entries[known]).tolist(), ring.have_ended(entries[known]).tolist(), strict=True)
        stored = dict(zip((ids[i] for i in known.tolist()), pairs, strict=True))
    columns = (pack.t_started, pack.lengths, pack.terminated | pack.truncated)
    for id_, t_started, length, done in zip(ids, *(column.tolist() for column in columns), strict=True):
        t_next, ended = stored.get(id_, (t_started, False))
        if length and (ended or t_next != t_started):
            raise _mismatch_error(id_, t_started, t_next, ended)
        stored[id_] = t_started + length, done


def _mismatch_error(id_: str, t_started: int, t_next: int, ended: bool) -> ChunkMismatch:
    """Return the error for a chunk that does not continue the stored episode at `t_next`, or that ended."""
    stored = f"ended at t={t_next}" if ended else f"continues at t={t_next}"
    return ChunkMismatch(
        f"episode {id_}: a chunk that begins at t={t_started}, but the episode in the buffer {stored}; "
        "add an episode's chunks in order, each once"
    )


def split_pack(pack: EpisodePack, ids: list[str], capacity: int) -> Iterator[EpisodePack]:
    """Split a pack of chunks into smaller packs in which no episode occurs twice, and yield these packs in order.

    A part has at most `capacity` steps, or one chunk.
    """
    start, num_steps, ids_in_part = 0, 0, set()
    for i, (id_, length) in enumerate(zip(ids, pack.lengths.tolist(), strict=True)):
        if i > start and (id_ in ids_in_part or num_steps + length > capacity):
            yield pack[start:i]
            start, num_steps, ids_in_part = i, 0, set()
        num_steps += length
        ids_in_part.add(id_)
    yield pack[start:]


@dataclass(frozen=True, slots=True)
class NewChunks:
    """Chunks that are being added to a replay ring, with the stored episodes that they continue, as arrays [n].

    Attributes:
        chunks: indices of the chunks in the pack.
        lengths: numbers of steps.
        first: index of each chunk's first step among all new steps.
        last: index of each chunk's last step among all new steps.
        known: table entries of continued episodes, NONE for new ones.
        survives: whether the episode's newest step is still stored after the addition.
        reuses: whether its newest observation is recent enough to be the first observation of the chunk. If not, that
            observation is stored again.
    """

    chunks: np.ndarray
    lengths: np.ndarray
    first: np.ndarray
    last: np.ndarray
    known: np.ndarray
    survives: np.ndarray
    reuses: np.ndarray

    @property
    def num_steps(self) -> int:
        return int(self.last[-1]) + 1

    @property
    def num_rows(self) -> int:
        return self.num_steps + len(self.chunks) - int(self.reuses.sum())


def _new_chunks(ring: LinkedRing, pack: EpisodePack, chunks: np.ndarray, num_passed: int) -> NewChunks:
    """Find the stored episodes that the chunks with the indices `chunks` continue, before the chunks are written to the
    ring.

    Args:
        num_passed: number of steps that are counted as added but not written.
    """
    table, lengths = ring.table, pack.lengths[chunks]
    stops = np.cumsum(lengths)
    num_steps = int(stops[-1])
    known = table.find(pack.ids[chunks].tolist())
    oldest = ring.head + num_passed + num_steps - ring.capacity
    survives = (known >= 0) & (ring.slot_numbers(table.last[known]) >= oldest)
    survives &= ring.t_next(known) == pack.t_started[chunks]
    # Rows stay for `window` rows longer than their steps. References to old rows would make the ring larger.
    gaps = ring.rows_head + stops - lengths - ring.row_numbers(_last_rows(ring, known)) + len(chunks)
    limit = min(max(ring.capacity // 32, 4 * len(chunks)), ring.num_rows - num_steps)
    reuses = survives & (gaps <= limit)
    ring.widen(int(gaps[reuses].max(initial=0)))
    return NewChunks(chunks, lengths, stops - lengths, stops - 1, known, survives, reuses)


def addition_of(ring: LinkedRing, pack: EpisodePack, order: np.ndarray | None = None, num_passed: int = 0) -> Addition:
    """Compute all writes that add a pack to the ring: positions and links of its steps, and evictions of old steps.

    The lookbacks of chunks are stored as context, unless the steps before a chunk are stored.

    Args:
        order: order in which the steps are written, or None for the order of the pack.
        num_passed: number of steps before the pack's that are counted as added, but not written. They are evicted, so
            they are no context.
    """
    chunks = np.flatnonzero(pack.lengths)
    incoming = _new_chunks(ring, pack, chunks, num_passed)
    if order is not None:  # observation rows are not in the order of the steps
        ring.widen(max(ring.capacity // 32, 4 * len(chunks)) + incoming.num_rows)
    reservation = ring.reserve(incoming.num_steps, incoming.num_rows, num_passed)
    slots = positions(reservation.head, incoming.num_steps, ring.capacity)
    if order is not None:
        slots = slots[order.argsort()]
    new = np.flatnonzero(~incoming.survives)
    episodes = ring.table.change(reservation.closed, len(new))
    episodes.ids, episodes.first = pack.ids[chunks[new]].tolist(), slots[incoming.first[new]]
    entries = np.where(incoming.survives, incoming.known, NONE)
    entries[new] = episodes.opened
    if not num_passed:
        with_lookback = new[pack.lookbacks[chunks[new]] > 0]
        at = zip(entries[with_lookback].tolist(), chunks[with_lookback].tolist(), strict=True)
        episodes.lookbacks = {entry: _lookback_of(pack, i) for entry, i in at}
    _put_facts(ring, pack, incoming, entries, episodes)
    block = _build_block(ring, pack, incoming, entries, slots)
    if order is not None:
        block = block.in_order(order)
    return Addition(reservation, episodes, block, (entries, slots[incoming.last]))


def _lookback_of(pack: EpisodePack, i: int) -> SingleAgentEpisode:
    """Return the lookback of the chunk `pack[i]` as an episode part with copied arrays."""
    count, start = pack.lookbacks.item(i), pack.offsets.item(i)
    tracks = pack.columns.window(start, start + count, 0, i).map_tracks(lambda track: track.copied())
    t_started = pack.t_started.item(i) - count
    facts = pack.facts.at(i)._replace(policy_versions=None, ending=Ending.OPEN, t_started=t_started)
    return SingleAgentEpisode.of(facts._replace(observation_space=None, action_space=None), tracks, {})


def _build_block(
    ring: LinkedRing, pack: EpisodePack, incoming: NewChunks, entries: np.ndarray, slots: np.ndarray
) -> Block:
    """Return the steps of a pack, with links to their observations and neighbouring steps, for the ring positions
    `slots` [n].

    Args:
        incoming: how the chunks are linked to stored steps.
        entries: entry of each chunk in the episode table.
    """
    first, lengths, reuses = incoming.first, incoming.lengths, incoming.reuses
    steps = np.arange(incoming.num_steps)
    links = np.empty((NUM_LINKS, len(steps)), np.int64)
    next_row = steps + np.repeat(ring.rows_head + np.cumsum(~reuses), lengths)
    links[ROW] = (next_row - 1) % ring.num_rows
    links[ROW, first[reuses]] = _last_rows(ring, entries[reuses])
    links[NEXT_ROW] = next_row % ring.num_rows
    links[NEXT] = slots
    links[PREVIOUS, 1:] = slots[:-1]
    links[PREVIOUS, first] = np.where(incoming.survives, ring.table.last[entries], slots[first])
    links[ENTRY] = np.repeat(entries, lengths)
    links[T] = steps + np.repeat(pack.t_started[incoming.chunks] - first, lengths)
    rows = observation_rows(pack, incoming.chunks, reuses)
    flags = {TERMINATEDS: pack.terminated, TRUNCATEDS: pack.truncated}
    return Block(
        observations=pack.observations,
        observation_rows=rows,
        num_rows=incoming.num_rows,
        tracks={ACTIONS: pack.actions, REWARDS: pack.rewards} | pack.extra_model_outputs,
        endings={name: incoming.last[flag[incoming.chunks]] for name, flag in flags.items()},
        step_rows=pack.step_rows(),
        links=links,
        infos=_infos(pack.infos, rows),
        versions=None if pack.facts.policy_versions is None else pack.get_policy_versions(),
    )


def observation_rows(pack: EpisodePack, chunks: np.ndarray, reuses: np.ndarray) -> Any:
    """Return the indices of the pack's observations that the ring does not store yet.

    Of the chunks `chunks`, the first observation is left out if `reuses` is True, since the ring has it; so is that of
    chunks without steps.
    """
    rows = pack.all_observation_rows()
    skipped = np.ones(len(pack), bool)
    skipped[chunks] = reuses
    if not skipped.any():
        return rows
    is_written = np.ones(len(pack) + pack.num_steps, bool)
    is_written[(np.cumsum(pack.lengths + 1) - pack.lengths - 1)[skipped]] = False
    return np.flatnonzero(is_written) if isinstance(rows, slice) else rows[is_written]


def _infos(infos: Infos, rows: slice | np.ndarray) -> Infos:
    return infos[rows] if isinstance(rows, slice) else infos.take(rows)


def _last_rows(ring: LinkedRing, entries: np.ndarray) -> np.ndarray:
    """Return the position in the observation ring of the newest observation of each episode in `entries`, int [n]."""
    return ring.links.next_row[ring.table.last.take(entries)]


def _put_facts(
    ring: LinkedRing, pack: EpisodePack, incoming: NewChunks, entries: np.ndarray, episodes: TableChange
) -> None:
    """Add agent ids, custom data and other metadata of the pack's episodes to the planned table change `episodes`."""
    facts, table = pack.facts._replace(policy_versions=None), ring.table  # the ring has the versions of steps
    if facts.custom_data is None and all(column is None for column in facts.optional):
        return
    episodes.facts, episodes.custom_data = {}, {}
    for entry, i, goes_on in zip(*(a.tolist() for a in (entries, incoming.chunks, incoming.survives)), strict=True):
        chunk_facts = facts.at(i)._replace(id_="", observation_space=None, action_space=None)
        episodes.facts[entry] = table.facts[entry].followed_by(chunk_facts) if goes_on else chunk_facts
        if not goes_on and facts.custom_data is not None:
            episodes.custom_data[entry] = facts.custom_data[i]

"""Which chunks belong to one episode, and in which order. This is the one place that decides it.

Chunks are of one episode if their id, agent id and multi-agent episode id are equal. Each step is in one chunk, and
nothing follows an ending. Chunks without steps belong to any time. One with an ending, at the time at which the last
chunk of its episode was cut, is a *late ending*: an agent has its last observation, and the others play on.

    chunk            id  t      ending        with the chunk before it in time
    0                a   0..4   cut
    1                b   3..5   cut
    2                a   5..7   cut           follows chunk 0
    3                a   9..9   terminated    after a gap: step 8 is missing
    4                a   9..12  cut           conflict: step 9 is in two chunks
    5                a   13..14 cut           follows chunk 4; a conflict if chunk 4 had an ending
    6                a   none   terminated    late ending at t=15: it ends chunk 5
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from episodes.facts.facts import EpisodeFacts

KEY_COLUMNS = ("id", "agent_id", "multi_agent_episode_id")
REMEDY = "give each episode an id of its own, for example with a prefix for each source"


class Span(NamedTuple):
    """Steps of one chunk: `t_started` to `stop` - 1, and whether the chunk has an ending."""

    t_started: int
    stop: int
    ended: bool

    def __str__(self) -> str:
        steps = f"t={self.t_started}..{self.stop - 1}" if self.stop > self.t_started else f"no step at {self.t_started}"
        return f"{steps} ({'ended' if self.ended else 'cut'})"


_new_span: Any = partial(tuple.__new__, Span)  # takes a third of the time of calling the class


def conflicts(stop: int | np.ndarray, ended: bool | np.ndarray, later_t_started: int | np.ndarray) -> Any:
    """Return True if a chunk cannot be of the same episode as an earlier one. All are numbers, or arrays [n].

    Args:
        stop: the time at which the earlier chunk stops.
        ended: whether the earlier chunk has an ending.
        later_t_started: the time at which the later chunk begins.
    """
    return ended | (later_t_started < stop)


def key_of(facts: EpisodeFacts) -> Hashable:
    """Return what identifies the episode of a chunk: its id, or its id with the ids of its agent and multi-agent
    episode.
    """
    id_, agent, whole = facts.id_, facts.agent_id, facts.multi_agent_episode_id
    return id_ if agent is None and whole is None else (id_, agent, whole)


def keys_of(ids: np.ndarray, agent_ids: np.ndarray | None, multi_agent_episode_ids: np.ndarray | None) -> list[Any]:
    """Return the keys of n chunks, as `key_of`, from arrays of ids [n]. An array that is None has only the value
    None.
    """
    names = ids.tolist()
    if agent_ids is None and multi_agent_episode_ids is None:
        return names
    agents, wholes = (
        [None] * len(names) if column is None else column.tolist() for column in (agent_ids, multi_agent_episode_ids)
    )
    triples = zip(names, agents, wholes, strict=True)
    return [key[0] if key[1] is None and key[2] is None else key for key in triples]


def episode_codes(keys: Sequence[Any]) -> np.ndarray:
    """Return for each chunk the number of its episode, int64 [n]. Episodes are numbered in the order of their first
    chunks.

    Args:
        keys: what identifies the episode of each chunk, [n].
    """
    codes: dict[Any, int] = {}
    try:
        numbers = [codes.setdefault(key, len(codes)) for key in keys]
    except TypeError:  # an id that cannot be hashed, such as a list
        codes = {}
        numbers = [codes.setdefault(repr(key), len(codes)) for key in keys]
    return np.array(numbers, np.int64)


def codes_of_table(table: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the episode codes of the chunks in a metadata table with columns [n]."""
    return episode_codes(keys_of(*(table[name] for name in KEY_COLUMNS)))


class ChunkOrder(NamedTuple):
    """Chunks with steps, sorted by episode and time, and the relation of each to the one before it.

    Attributes:
        order: indices of the chunks, int64 [m]. Of chunks that begin together, the shorter one is first.
        before: of the earlier chunks of its episode, the one that stops last, int64 [m]; of the first one itself.
        is_first: whether the chunk is the first one of its episode, bool [m].
        follows: whether it begins where the chunk before it was cut, bool [m].
        is_conflict: whether it cannot be of the same episode as an earlier one, bool [m].
        late: the chunks without steps that are late endings, int64 [k].
        ended: the chunks that they end, int64 [k].
    """

    order: np.ndarray
    before: np.ndarray
    is_first: np.ndarray
    follows: np.ndarray
    is_conflict: np.ndarray
    late: np.ndarray
    ended: np.ndarray

    @staticmethod
    def of(episodes: np.ndarray, t_started: np.ndarray, lengths: np.ndarray, ended: np.ndarray) -> ChunkOrder:
        """Sort n chunks, and compare neighbours.

        Args:
            episodes: the number of each chunk's episode, int64 [n].
            t_started: time of each chunk's first step, int64 [n].
            lengths: number of steps, int64 [n].
            ended: whether the chunk has an ending, bool [n].
        """
        order = np.lexsort((lengths, t_started, episodes))
        order = order[lengths[order] > 0]
        is_first = np.ones(len(order), bool)
        is_first[1:] = np.diff(episodes[order]) > 0
        begins, stops, ends = t_started[order], (t_started + lengths)[order], ended[order]
        before = np.arange(len(order)) - ~is_first
        is_conflict = ~is_first & conflicts(stops[before], ends[before], begins)
        if is_conflict.any():  # the neighbour may stop before an earlier chunk does
            for i in np.flatnonzero(~is_first).tolist():
                before[i] = max(before[i - 1], i - 1, key=stops.__getitem__)
            is_conflict = ~is_first & conflicts(stops[before], ends[before], begins)
        follows = ~is_first & ~is_conflict & (begins == stops[before])
        late = _late_endings(episodes, t_started, lengths, ended)
        return ChunkOrder(order, order[before], is_first, follows, is_conflict, *late)

    def pairs(self, mask: np.ndarray) -> list[tuple[int, int]]:
        """Return the pairs (chunk before, chunk) of the chunks that `mask`, bool [m], selects."""
        return list(zip(self.before[mask].tolist(), self.order[mask].tolist(), strict=True))

    def heads(self, num_chunks: int) -> np.ndarray:
        """Return for each of n chunks the first chunk of those that follow each other up to it, int64 [n]."""
        heads = np.arange(num_chunks)
        starts = np.flatnonzero(~self.follows)
        runs = np.diff(np.append(starts, len(self.order)))
        heads[self.order] = np.repeat(self.order[starts], runs)
        heads[self.late] = heads[self.ended]
        return heads


def _late_endings(
    episodes: np.ndarray, t_started: np.ndarray, lengths: np.ndarray, ended: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the chunks that are late endings, and the chunks that they end, int64 [k] each. See `ChunkOrder.of`."""
    empty = np.flatnonzero((lengths == 0) & ended)
    if not len(empty):
        return empty, empty
    stops = t_started + lengths
    newest = np.full(len(lengths), -1)  # of each episode the chunk with steps that stops last
    with_steps = np.flatnonzero(lengths)
    with_steps = with_steps[stops[with_steps].argsort(kind="stable")]
    newest[episodes[with_steps]] = with_steps
    chunks = newest[episodes[empty]]
    is_late = (chunks >= 0) & ~ended[chunks] & (stops[chunks] == t_started[empty])
    chunks, first = np.unique(chunks[is_late], return_index=True)  # several chunks may say it
    return empty[is_late][first], chunks


def conflict_message(key: object, first: Span, second: Span) -> str:
    """Return the error message for two chunks with the key `key` that cannot be of one episode."""
    id_, agent, _ = key if type(key) is tuple and len(key) == 3 else (key, None, None)
    owner = "" if agent is None else f" of agent {agent}"
    if first[:2] == second[:2]:
        what = f"two chunks have the steps {first}"
    elif max(first.t_started, second.t_started) < min(first.stop, second.stop):
        what = f"the chunks with the steps {first} and {second} overlap"
    else:
        what = f"a chunk with the steps {max(first, second)} follows one that ended, {min(first, second)}"
    return f"episode {id_}{owner}: {what}; an id belongs to one episode: {REMEDY}"


def contents_message(id_: object, difference: str, t_started: int) -> str:
    """Return the error message for a chunk that begins at `t_started` and differs from the steps before it.

    Args:
        id_: the id of both.
        difference: in what they differ, such as "rewards at t=3".
        t_started: the time at which the chunk begins.
    """
    return (
        f"episode {id_}: {difference}: the chunk from t={t_started} on does not continue the steps before it; "
        f"an id belongs to one episode: {REMEDY}"
    )


def spans_of(t_started: np.ndarray, lengths: np.ndarray, ended: np.ndarray) -> Iterable[Span]:
    """Return the spans of n chunks, given as columns [n]."""
    return map(_new_span, zip(t_started.tolist(), (t_started + lengths).tolist(), ended.tolist(), strict=True))

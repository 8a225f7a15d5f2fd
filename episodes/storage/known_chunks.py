"""Steps of all episodes that a data set has, with which a writer compares new chunks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from episodes.errors import ChunkMismatch
from episodes.facts.chunk_order import KEY_COLUMNS, Span, conflict_message, conflicts, key_of, keys_of, spans_of
from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode
from episodes.storage.small_episodes import SmallEpisodes


class NewChunks(NamedTuple):
    """Chunks that a writer is about to add.

    Attributes:
        keys: what identifies the episode of each chunk.
        spans: their steps; None for small episodes with new ids, whose spans are read when an id returns.
    """

    keys: Sequence[Any]
    spans: Sequence[Span] | None = None


class KnownChunks:
    """Spans of the chunks of each episode. Spans that follow each other are joined to one.

    Args:
        directory: data set whose chunks are known, or None. It is read at the first call.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._spans: dict[Any, Span | list[Span] | None] = {}  # None: it is in the queue

    def check(self, episodes: list[SingleAgentEpisode] | EpisodePack, queue: SmallEpisodes) -> NewChunks:
        """Return the chunks, for `add`.

        Args:
            episodes: the new chunks.
            queue: queue of small episodes of the writer. Their spans are read from there when they are needed.

        Raises:
            ChunkMismatch: an id has these steps already, or has ended before them.
        """
        if self._directory is not None:
            self._read(self._directory)
            self._directory = None
        known = self._spans
        try:
            if type(episodes) is list:
                keys, is_new = [], True
                for episode in episodes:  # without calls, since one small episode is added in 12 us
                    facts = episode.facts
                    key = facts[0] if facts[3] is None and facts[5] is None else key_of(facts)
                    is_new = is_new and key not in known
                    keys.append(key)
                if is_new and (len(keys) == 1 or len(set(keys)) == len(keys)):
                    return NewChunks(keys)
            new = _chunks_of(episodes)
            is_new = len(set(new.keys)) == len(new.keys) and known.keys().isdisjoint(new.keys)
        except TypeError:  # an id that cannot be hashed, such as a list
            new, is_new = _chunks_of(episodes), False
            new = new._replace(keys=[*map(repr, new.keys)])
        self.note_queue(queue)
        if not is_new:
            self._check_known(new)
        return new

    def _check_known(self, new: NewChunks) -> None:
        """Raise `ChunkMismatch` if a new chunk cannot be of one episode with a known chunk, or with another new one."""
        added: dict[Any, list[Span]] = {}
        for key, span in zip(new.keys, new.spans or (), strict=True):
            for other in (*_as_list(self._spans.get(key)), *added.get(key, ())):
                first, second = sorted((other, span))
                if conflicts(first.stop, first.ended, second.t_started):
                    raise ChunkMismatch(conflict_message(key, other, span))
            added.setdefault(key, []).append(span)

    def add(self, new: NewChunks) -> None:
        """Remember chunks that `check` returned, after they were queued or written."""
        if new.spans is None:
            for key in new.keys:
                self._spans[key] = None
            return
        if len(set(new.keys)) == len(new.keys) and self._spans.keys().isdisjoint(new.keys):
            self._spans.update(zip(new.keys, new.spans, strict=True))
            return
        for key, span in zip(new.keys, new.spans, strict=True):
            known = self._spans.get(key)
            self._spans[key] = span if known is None else _joined(_as_list(known), span)

    def note_queue(self, queue: SmallEpisodes) -> None:
        """Replace the unknown spans of queued episodes by their spans. Call it before the queue is cleared."""
        for facts, tracks, _ in queue.take_unread():
            key, num_steps = key_of(facts), len(tracks.rewards)
            if self._spans.get(key) is None:
                self._spans.pop(key, None)
                if num_steps:
                    t_started = facts.t_started
                    self._spans[key] = Span(t_started, t_started + num_steps, facts.ending.is_done)

    def _read(self, directory: Path) -> None:
        """Read the facts of the chunks that the data set has. Its tracks are not read."""
        from episodes.storage.dataset import EpisodeDataset  # its sampler writes caches

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a reader tells of damage
            table: Mapping[str, np.ndarray] = EpisodeDataset(directory).metadata
        spans = spans_of(table["t_started"], table["length"], table["terminated"] | table["truncated"])
        new = _with_steps(keys_of(*(table[name] for name in KEY_COLUMNS)), [*spans], table["length"])
        try:
            self.add(new)
        except TypeError:
            self._spans.clear()
            self.add(new._replace(keys=[*map(repr, new.keys)]))


def _chunks_of(episodes: list[SingleAgentEpisode] | EpisodePack) -> NewChunks:
    """Return keys and spans of all chunks that have steps."""
    if isinstance(episodes, EpisodePack):
        facts, lengths = episodes.facts, episodes.lengths
        keys = keys_of(facts.ids, facts.agent_ids, facts.multi_agent_episode_ids)
        return _with_steps(keys, [*spans_of(facts.t_started, lengths, facts.endings > 0)], lengths)
    spans = [Span(e.t_started, e.t, e.is_done) for e in episodes]
    return _with_steps([key_of(e.facts) for e in episodes], spans, np.array([*map(len, episodes)]))


def _with_steps(keys: list[Any], spans: list[Span], lengths: np.ndarray) -> NewChunks:
    """Return the chunks without those that have no steps."""
    if lengths.all():
        return NewChunks(keys, spans)
    picked = np.flatnonzero(lengths).tolist()
    return NewChunks([keys[i] for i in picked], [spans[i] for i in picked])


def _as_list(spans: Span | list[Span] | None) -> list[Span]:
    return [] if spans is None else [spans] if type(spans) is Span else spans  # type: ignore[reportReturnType]


def _joined(spans: list[Span], new: Span) -> Span | list[Span]:
    """Return spans in the order of time, with `new` among them. Spans that follow each other are joined."""
    result: list[Span] = []
    for span in sorted([*spans, new]):
        if result and result[-1].stop == span.t_started and not result[-1].ended:
            span = Span(result.pop().t_started, span.stop, span.ended)
        result.append(span)
    return result[0] if len(result) == 1 else result

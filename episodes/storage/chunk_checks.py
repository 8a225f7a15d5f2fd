"""Search for stored chunks that have one id and are not of one episode, by their facts and by their contents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Protocol

import numpy as np

from episodes.facts.chunk_order import (
    KEY_COLUMNS,
    ChunkOrder,
    codes_of_table,
    conflict_message,
    contents_message,
    keys_of,
    spans_of,
)
from episodes.single_agent import SingleAgentEpisode
from episodes.single_agent.overlap import first_difference

_MOST_TEXTS = 5
Table = Mapping[str, np.ndarray]


class StoredChunks(Protocol):
    """The part of a data set's interface that the search needs."""

    @property
    def metadata(self) -> Any: ...
    def steps(self, index: int, start: int | None = None, stop: int | None = None) -> SingleAgentEpisode: ...


def order_of(table: Table) -> ChunkOrder:
    """Return the order of the chunks in a metadata table."""
    ended = table["terminated"] | table["truncated"]
    return ChunkOrder.of(codes_of_table(table), table["t_started"], table["length"], ended)


def conflict_texts(table: Table, chunks: ChunkOrder) -> Iterator[str]:
    """Yield a message for each chunk of a metadata table that cannot be of one episode with an earlier one.

    Args:
        table: columns [n] of the chunks' facts.
        chunks: the order of these chunks.
    """
    for pair in chunks.pairs(chunks.is_conflict):
        picked = np.array(pair)
        starts, lengths, *flags = (table[name][picked] for name in ("t_started", "length", "terminated", "truncated"))
        key = keys_of(*(table[name][picked[:1]] for name in KEY_COLUMNS))[0]
        yield conflict_message(key, *spans_of(starts, lengths, flags[0] | flags[1]))


def difference(dataset: StoredChunks, first: int, second: int, *, whole: bool = False) -> str | None:
    """Return in what the chunk `second` differs from an earlier chunk of its episode, such as "rewards at t=3", or
    None. Compared are the observation at which one stops and the other begins, and the lookback.

    Args:
        first, second: indices in the data set.
        whole: compare all steps that both have. Otherwise the later steps of both are not read.
    """
    if whole:
        return first_difference(dataset.steps(first), dataset.steps(second))
    table = dataset.metadata
    num = table["t_started"][first] + table["length"][first] - table["t_started"][second] + table["lookback"][second]
    begin = max(int(table["length"][first] - num), 0)
    return first_difference(dataset.steps(first, begin), dataset.steps(second, 0, 0))


def chunk_problems(dataset: StoredChunks) -> list[str]:
    """Return texts on chunks with one id that are not of one episode: repeated and overlapping chunks, chunks after an
    ending, and chunks that do not begin with what the chunk before them has.
    """
    table = dataset.metadata
    chunks = order_of(table)
    return [*_shortened(conflict_texts(table, chunks)), *_shortened(_differences(dataset, chunks))]


def _differences(dataset: StoredChunks, chunks: ChunkOrder) -> Iterator[str]:
    """Yield a message for each chunk that differs from the chunk before it in what both have."""
    table = dataset.metadata
    has_lookback = table["lookback"][chunks.order] > 0
    for first, second in chunks.pairs(~chunks.is_conflict & (chunks.follows | has_lookback)):
        found = difference(dataset, first, second)
        if found is not None:
            yield contents_message(table["id"][second], found, table["t_started"][second])


def _shortened(texts: Iterable[str]) -> list[str]:
    """Return the first texts, and how many more there are."""
    rest: Any = iter(texts)
    result = [*islice(rest, _MOST_TEXTS)]
    more = sum(1 for _ in rest)
    return [*result, f"{more} more chunks like these"] if more else result

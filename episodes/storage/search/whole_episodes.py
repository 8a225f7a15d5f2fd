"""Length, return and completeness of whole episodes, which may be stored in several chunks.

chunk            id  t_started  length  return  ending       episode_length  episode_return  is_complete
0                a   0          5       5.0     cut          8               6.5             True
1                b   0          4       1.0     cut          4               1.0             False
2                a   5          3       1.5     terminated   8               6.5             True
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial

import numpy as np

from episodes.errors import ChunkMismatch
from episodes.facts.chunk_order import KEY_COLUMNS, ChunkOrder, codes_of_table
from episodes.storage.chunk_checks import conflict_texts

NAMES = ("episode_length", "episode_return", "is_complete")


def columns_of_whole_episodes(
    table: Mapping[str, np.ndarray], rows: np.ndarray | None, of: np.ndarray | None
) -> dict[str, Callable[[], np.ndarray]]:
    """Return functions that compute the columns `episode_length`, `episode_return` and
    `is_complete` of a metadata table.

    Args:
        table: columns [N] of the chunks' facts.
        rows: the chunks that belong to the data set, int64 [n], or None for all.
        of: the chunks to return values for, int64 [k], or None for all.
    """

    @cache
    def compute() -> dict[str, np.ndarray]:
        """Return all columns, computed at the first call."""
        num = len(table["length"])
        chunks = np.arange(num) if rows is None else rows
        result = {}
        for name, values in _compute_columns({key: table[key][chunks] for key in _READ}).items():
            result[name] = np.zeros(num, values.dtype)
            result[name][chunks] = values
        return result if of is None else {name: values[of] for name, values in result.items()}

    return {name: partial(_read, compute, name) for name in NAMES}


_READ = (*KEY_COLUMNS, "t_started", "length", "return", "terminated", "truncated")


def _read(compute: Callable[[], dict[str, np.ndarray]], name: str) -> np.ndarray:
    return compute()[name]


def _compute_columns(table: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Compute for each chunk the length, the return and the completeness of its whole episode,
    as a dict of columns [n].

    Raises:
        ChunkMismatch: two chunks with one id cannot be of one episode.
    """
    episode = codes_of_table(table)
    if not len(episode):
        return {
            "episode_length": np.zeros(0, np.int64),
            "episode_return": np.zeros(0),
            "is_complete": np.zeros(0, bool),
        }
    lengths, starts, ended = table["length"], table["t_started"], table["terminated"] | table["truncated"]
    chunks = ChunkOrder.of(episode, starts, lengths, ended)
    for problem in conflict_texts(table, chunks):
        raise ChunkMismatch(problem)
    stops = np.full(episode.max() + 1, np.iinfo(np.int64).min)
    np.maximum.at(stops, episode, starts + lengths)
    is_complete = np.zeros(len(stops), bool)
    is_complete[episode[ended & (starts + lengths == stops[episode])]] = True
    first = chunks.order[chunks.is_first]
    is_complete[episode[first[starts[first] > 0]]] = False
    is_complete[episode[chunks.order[~chunks.is_first & ~chunks.follows]]] = False
    last = np.zeros_like(stops)  # where the steps of each episode stop
    np.maximum.at(last, episode, np.where(lengths > 0, starts + lengths, 0))
    is_complete[episode[(lengths == 0) & (starts > last[episode])]] = False  # steps before it are missing
    return {
        "episode_length": np.bincount(episode, lengths).astype(np.int64)[episode],
        "episode_return": np.bincount(episode, table["return"])[episode],
        "is_complete": is_complete[episode],
    }

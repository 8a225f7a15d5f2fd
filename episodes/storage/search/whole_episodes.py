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


_READ = ("id", "agent_id", "multi_agent_episode_id", "t_started", "length", "return", "terminated", "truncated")


def _read(compute: Callable[[], dict[str, np.ndarray]], name: str) -> np.ndarray:
    return compute()[name]


def _compute_columns(table: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Compute for each chunk the length, the return and the completeness of its whole episode,
    as a dict of columns [n]."""
    episode = episode_codes(table)
    if not len(episode):
        return {
            "episode_length": np.zeros(0, np.int64),
            "episode_return": np.zeros(0),
            "is_complete": np.zeros(0, bool),
        }
    lengths, starts = table["length"], table["t_started"]
    order = np.lexsort((lengths, starts, episode))
    first = np.ones(len(order), bool)
    first[1:] = np.diff(episode[order]) > 0
    last = np.append(first[1:], True)
    begin, end = starts[order], (starts + lengths)[order]
    follows = np.where(first, begin == 0, begin == np.roll(end, 1))
    ended = (table["terminated"] | table["truncated"])[order]
    is_complete = np.logical_and.reduceat(follows & (ended == last), np.flatnonzero(first))
    return {
        "episode_length": np.bincount(episode, lengths).astype(np.int64)[episode],
        "episode_return": np.bincount(episode, table["return"])[episode],
        "is_complete": is_complete[episode],
    }


def episode_codes(table: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return for each chunk the number of its episode, int64 [n]. Episodes are numbered in the
    order of their first chunks.

    Chunks are of one episode if their id, agent id and multi-agent episode id are equal.
    """
    keys = list(zip(table["id"], table["agent_id"], table["multi_agent_episode_id"], strict=True))
    codes: dict[object, int] = {}
    try:
        numbers = [codes.setdefault(key, len(codes)) for key in keys]
    except TypeError:  # an id that cannot be hashed, such as a list
        codes = {}
        numbers = [codes.setdefault(repr(key), len(codes)) for key in keys]
    return np.array(numbers, np.int64)

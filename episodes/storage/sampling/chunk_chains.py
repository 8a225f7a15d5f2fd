"""Search for stored chunks that continue each other, so that they can be sampled as one episode.

chunk   0: a, t = 0..4     1: b, t = 0..2     2: a, t = 5..7        chunk 2 continues chunk 0
head    0                  1                  0
"""

from __future__ import annotations

import numpy as np


def find_heads(
    t_started: np.ndarray, lengths: np.ndarray, ended: np.ndarray, ids: np.ndarray, agent_ids: np.ndarray
) -> np.ndarray | None:
    """Return for each of n stored chunks the index of its episode's first stored chunk, int64 [n],
    or None if no chunk continues another.

    A chunk continues the chunk of the same episode that stops, without an ending, at the step where it begins. Chunks
    without steps belong to no other.

    Args:
        t_started: time of each chunk's first step, int64 [n].
        lengths: number of steps, int64 [n].
        ended: whether the chunk has an ending, bool [n].
        ids, agent_ids: of the episodes [n].
    """
    continuing = np.flatnonzero((t_started > 0) & (lengths > 0))
    if not len(continuing):
        return None
    cut = np.flatnonzero(~ended & (lengths > 0))
    key = lambda i, t: (str(ids[i]), str(agent_ids[i]), t)  # noqa: E731
    stops = {key(i, t): i for i, t in zip(cut.tolist(), (t_started + lengths)[cut].tolist(), strict=True)}
    heads = np.arange(len(lengths))
    for i in continuing[np.argsort(t_started[continuing], kind="stable")].tolist():
        before = stops.pop(key(i, int(t_started[i])), None)
        if before is not None:
            heads[i] = heads[before]
    return None if (heads == np.arange(len(heads))).all() else heads

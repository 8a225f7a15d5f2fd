"""Sampling of replay steps that were collected by recent versions of the policy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from episodes.errors import EpisodeStateError
from episodes.replay.ring.linked_ring import LinkedRing
from episodes.replay.ring.track_ring import positions

_ROUNDS = 4  # if most steps are recent, few are sampled again

Drawn = tuple[np.ndarray, np.ndarray]


def sample_recent_steps(
    ring: LinkedRing, draw: Callable[[int], Drawn], n: int, max_age: int, rng: np.random.Generator
) -> Drawn:
    """Sample `n` steps whose policy is at most `max_age` versions older than the newest.

    Returns ring positions [n] and importance weights [n].

    Older steps are replaced by new samples, so the probabilities of the others keep their ratios. Steps that are too
    old after several rounds are replaced by uniform samples of recent steps. Steps of unknown version count as old.

    Args:
        draw: function that samples steps of any age, and returns their positions and weights.

    Raises:
        EpisodeStateError: no stored step is recent enough. The generator stays as it was.
    """
    before = rng.bit_generator.state
    slots, weights = draw(n)
    oldest = max(ring.versions.newest - max_age, 0)
    for _ in range(_ROUNDS):
        old = np.flatnonzero(ring.versions.at(slots) < oldest)
        if not len(old):
            return slots, weights
        slots[old], weights[old] = draw(len(old))
    stored = positions(ring.tail, len(ring), ring.capacity)
    young = stored[ring.versions.at(stored) >= oldest]
    if not len(young):
        rng.bit_generator.state = before
        raise EpisodeStateError(
            f"no stored step is of version {oldest} or newer, as max_age={max_age} asks of the newest, "
            f"{ring.versions.newest}; add newer ones, or allow older ones"
        )
    while len(old := np.flatnonzero(ring.versions.at(slots) < oldest)):
        slots[old] = young[rng.integers(0, len(young), len(old))]
    return slots, weights

"""`StoredSteps`: source of `Batch.origin`, which finds the episode and time of sampled replay steps."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from episodes.batch import Batch, EpisodeKey, StepLocations
from episodes.batch.batch import batch_of
from episodes.batch.origin import StepOrigin
from episodes.errors import EpisodeStateError
from episodes.facts import Ending
from episodes.replay.read_episodes import episode_at
from episodes.replay.ring.episode_table import NONE
from episodes.replay.ring.linked_ring import TERMINATEDS, TRUNCATEDS, LinkedRing
from episodes.single_agent import SingleAgentEpisode


class StoredSteps:
    """Source of `Batch.origin` for replay buffers: maps the indices of stored or logged steps to episodes and times."""

    def __init__(self, ring: LinkedRing) -> None:
        self._ring: Any = weakref.ref(ring)

    def step(self, number: int) -> StepOrigin:
        """Return the origin (episode, time, ending) of the step with index `number`.

        Raises:
            EpisodeStateError: the step is no longer stored, or the buffer was freed or is in another process.
        """
        with self._ring_of(number) as ring:
            slot = number % ring.capacity
            table, entry = ring.table, int(ring.links.entry[slot])
            first, last = int(table.first[entry]), int(table.last[entry])
            ending = Ending.of(ring.track(TERMINATEDS)[last], ring.track(TRUNCATEDS)[last])
            span = int(ring.links.t[first]), int(ring.links.t[last]) + 1
            owner, t = table.key_of(entry), int(ring.links.t[slot])
            return StepOrigin(owner.id_, t, owner.agent_id, owner.module_id, *span, ending, str(self))

    def episode(self, number: int) -> SingleAgentEpisode:
        """Return the stored part of the episode that contains the step with index `number`.

        Raises:
            EpisodeStateError: the step is no longer stored, or the buffer was freed or is in another process.
        """
        with self._ring_of(number) as ring:
            return episode_at(ring, int(ring.links.entry[number % ring.capacity]), None, None)

    def places(self, numbers: np.ndarray) -> StepLocations:
        """Return the episodes and times of the steps with indices `numbers` [n], with None for unknown episodes."""
        ring = self._held()
        if ring is None:
            return StepLocations([None], *np.zeros((2, len(numbers)), np.int64))
        with ring.lock:
            ring.flush_staged()
            keys, t = _keys(ring, numbers)
            distinct, index_of = np.unique(keys, return_inverse=True)
            return StepLocations([_key_of(ring, key) for key in distinct.tolist()], index_of, t)

    @contextmanager
    def _ring_of(self, number: int) -> Iterator[LinkedRing]:
        """Context manager that locks and returns the ring, after checking that the step with index `number` is stored.

        Raises:
            EpisodeStateError: the buffer or the step no longer exists.
        """
        ring = self._held()
        if ring is None:
            raise EpisodeStateError(
                f"step {number}: its replay buffer no longer exists, is in another process, or has another state"
            )
        with ring.lock:
            ring.flush_staged()
            if not ring.tail <= number < ring.head:
                (owner,), _, (t,) = self.places(np.array([number]))
                name = f"step {number}" if owner is None else f"step t={t} of episode {owner.id_}"
                raise EpisodeStateError(
                    f"{name} is evicted: the replay buffer holds steps {ring.tail}..{ring.head - 1}; make it larger to "
                    "look further back"
                )
            yield ring

    def _held(self) -> LinkedRing | None:
        """Return the ring, or None if it was freed or replaced."""
        ring = self._ring and self._ring()
        return None if ring is None or ring.source is not self else ring

    def __repr__(self) -> str:
        return "a replay buffer"

    def __deepcopy__(self, memo: dict[int, Any]) -> StoredSteps:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {"_ring": None}


def _keys(ring: LinkedRing, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return for each step a number that identifies its episode, and its time in the episode, int64 [n] each.

    A key is the table entry of a stored episode, -2 minus the serial number of an evicted one, or -1 if it is unknown.
    """
    is_stored = (numbers >= ring.tail) & (numbers < ring.head)
    slots = numbers % ring.capacity
    keys, t = ring.links.entry[slots], ring.links.t[slots]
    if not is_stored.all():
        evicted = np.flatnonzero(~is_stored)
        keys[evicted] = NONE
        if ring.log is not None:
            known, serials, times = ring.log.find(numbers[evicted], ring.head)
            keys[evicted[known]], t[evicted[known]] = -2 - serials, times
    return keys, t


def _key_of(ring: LinkedRing, key: int) -> EpisodeKey | None:
    """Return the ids of the episode that `_keys` identified by the number `key`, or None if the episode is unknown."""
    if key >= 0:
        return ring.table.key_of(key)
    return None if key == NONE or ring.log is None else ring.log.key_of(-2 - key, ring.table)


def make_batch(columns: dict[str, Any], ring: LinkedRing, numbers: np.ndarray) -> Batch:
    """Create a batch of `columns` whose steps have the indices `numbers` [B] or [B, W], for `Batch.origin`."""
    source = ring.source
    if source is None:
        source = ring.source = StoredSteps(ring)
    return batch_of(columns, (source, numbers))

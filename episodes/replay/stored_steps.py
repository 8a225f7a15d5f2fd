"""`StoredSteps`: the steps of a replay buffer by number: what the origin of its draws asks."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from episodes.batch import Batch, StepOrigin
from episodes.batch.batch import batch_of
from episodes.errors import EpisodeStateError
from episodes.facts import Ending
from episodes.replay.read_episodes import episode_at
from episodes.replay.ring.step_ring import TERMINATEDS, TRUNCATEDS, LinkedRing
from episodes.single_agent import SingleAgentEpisode


class StoredSteps:
    """What is stored now of the steps with these numbers; a step that was evicted is gone, and so is its name."""

    def __init__(self, ring: LinkedRing) -> None:
        self._ring: Any = weakref.ref(ring)

    def step(self, number: int) -> StepOrigin:
        """The step with this number."""
        ring = self._holds(number)
        with ring.lock:
            entry, t = self._entry(ring, number)
            table, facts = ring.table, ring.table.facts[entry]
            first, last = int(table.first[entry]), int(table.last[entry])
            ending = Ending.of(ring.track(TERMINATEDS)[last], ring.track(TRUNCATEDS)[last])
            span = int(ring.links.t[first]), int(ring.links.t[last]) + 1
            return StepOrigin(table.id_of(entry), t, facts.agent_id, facts.module_id, *span, ending, str(self))

    def episode(self, number: int) -> SingleAgentEpisode:
        """What is stored of the step's episode, as `sample_episodes` gives it."""
        ring = self._holds(number)
        with ring.lock:
            return episode_at(ring, self._entry(ring, number)[0], None, None)

    def _holds(self, number: int) -> LinkedRing:
        ring = self._ring and self._ring()
        if ring is None or ring.source is not self:
            raise EpisodeStateError(
                f"step {number}: its replay buffer is gone, in another process, or has taken up another state"
            )
        return ring

    def _entry(self, ring: LinkedRing, number: int) -> tuple[int, int]:
        ring.settle()
        if not ring.tail <= number < ring.head:
            raise EpisodeStateError(
                f"step {number} is gone: the replay buffer holds steps {ring.tail}..{ring.head - 1}; make it larger to "
                "look further back"
            )
        slot = number % ring.capacity
        return int(ring.links.entry[slot]), int(ring.links.t[slot])

    def __repr__(self) -> str:
        return "a replay buffer"

    def __deepcopy__(self, memo: Any) -> StoredSteps:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {"_ring": None}


def drawn(columns: dict[str, Any], ring: LinkedRing, numbers: np.ndarray) -> Batch:
    """A batch of the columns, which knows the numbers of its steps [B] or [B, W]."""
    source = ring.source
    if source is None:
        source = ring.source = StoredSteps(ring)
    return batch_of(columns, (source, numbers))

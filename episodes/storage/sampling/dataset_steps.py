"""Source for `batch.origin` of batches sampled from disk: it finds the episode and time of each step."""

from __future__ import annotations

from typing import Any

import numpy as np

from episodes.batch import EpisodeKey, StepLocations
from episodes.batch.origin import StepOrigin
from episodes.errors import EpisodeStateError
from episodes.facts.ending import ENDINGS
from episodes.single_agent import SingleAgentEpisode
from episodes.storage.sampling.stored_tracks import StoredTracks


class DatasetSteps:
    """Lookup, by step index, of the episode and time from which a sampled step of a data set comes."""

    def __init__(self, tracks: StoredTracks, path: str) -> None:
        self._tracks: StoredTracks | None = tracks
        self._path = path

    def step(self, number: int) -> StepOrigin:
        """Return where the step with index `number` comes from, as a `StepOrigin`:
        episode, time, and how the episode ends.

        Raises:
            EpisodeStateError: this object was pickled and is in another process.
        """
        tracks, chunk = self._chunk_of(number)
        table, (batch, row) = tracks.table, tracks.place(chunk)
        facts, chain = batch.whole.facts.at(row), table.chain(chunk)
        first, last = chain[0], chain[-1]
        batch_of_last, last_row = tracks.place(last)
        return StepOrigin(
            facts.id_,
            facts.t_started + number - int(table.starts[chunk]),
            facts.agent_id,
            facts.module_id,
            int(tracks.t_started[first]),
            int(tracks.t_started[last] + table.lengths[last]),
            ENDINGS[int(batch_of_last.whole.facts.endings[last_row])],
            str(self),
        )

    def episode(self, number: int) -> SingleAgentEpisode:
        """Return the whole episode that contains the step with index `number`. Chunks stored separately are joined.

        Raises:
            EpisodeStateError: this object was pickled and is in another process.
        """
        tracks, chunk = self._chunk_of(number)
        return tracks.episode(chunk)

    def places(self, numbers: np.ndarray) -> StepLocations:
        """Return the episodes (ids, agents) and the times of n steps, given their indices `numbers` [n]."""
        tracks = self._tracks
        if tracks is None:
            return StepLocations([None], np.zeros(len(numbers), np.int64), np.zeros(len(numbers), np.int64))
        chunks = tracks.table.chunks_of(numbers)
        times = numbers - tracks.table.starts[chunks] + tracks.t_started[chunks]
        heads = tracks.table.heads[chunks] if tracks.table.is_joined else chunks
        episodes, owners = np.unique(heads, return_inverse=True)
        facts = [batch.whole.facts.at(row) for batch, row in map(tracks.place, episodes.tolist())]
        return StepLocations([EpisodeKey(fact.id_, fact.agent_id, fact.module_id) for fact in facts], owners, times)

    def _chunk_of(self, number: int) -> tuple[StoredTracks, int]:
        """Return the arrays of the data set, and the index of the chunk that contains the step with index `number`.

        Raises:
            EpisodeStateError: this object was pickled and is in another process.
        """
        if self._tracks is None:
            raise EpisodeStateError(
                f"step {number}: this batch came from another process; ask the sampler there, or sampler.at([{number}])"
            )
        return self._tracks, int(self._tracks.table.ends.searchsorted(number, side="right"))

    def __repr__(self) -> str:
        return f"the data set {self._path}"

    def __deepcopy__(self, memo: dict[int, Any]) -> DatasetSteps:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {"_tracks": None, "_path": self._path}

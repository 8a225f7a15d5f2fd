"""`DatasetSteps`: the steps of a data set by number: what the origin of its batches asks."""

from __future__ import annotations

from typing import Any

import numpy as np

from episodes.batch import EpisodeKey, StepLocations, StepOrigin
from episodes.errors import EpisodeStateError
from episodes.facts.ending import ENDINGS
from episodes.single_agent import SingleAgentEpisode
from episodes.storage.sampling.stored_tracks import StoredTracks


class DatasetSteps:
    """Steps by number, as they were when the sampler was made; they stay readable while this object is there."""

    def __init__(self, tracks: StoredTracks, path: str) -> None:
        self._tracks: StoredTracks | None = tracks
        self._path = path

    def step(self, number: int) -> StepOrigin:
        """The step with this number."""
        tracks, e = self._place(number)
        batch, row = tracks.place(e)
        facts, length = batch.whole.facts.at(row), int(tracks.table.lengths[e])
        started, start = facts.t_started, int(tracks.table.starts[e])
        return StepOrigin(
            facts.id_,
            started + number - start,
            facts.agent_id,
            facts.module_id,
            started,
            started + length,
            ENDINGS[int(batch.whole.facts.endings[row])],
            str(self),
        )

    def episode(self, number: int) -> SingleAgentEpisode:
        """The episode or chunk of the step."""
        tracks, e = self._place(number)
        batch, row = tracks.place(e)
        return batch.episode(row)

    def places(self, numbers: np.ndarray) -> StepLocations:
        """The steps with these numbers [n] by episode and time."""
        tracks = self._tracks
        if tracks is None:
            return StepLocations([None], np.zeros(len(numbers), np.int64), np.zeros(len(numbers), np.int64))
        episodes, which = np.unique(tracks.table.episodes_of(numbers), return_inverse=True)
        at = map(tracks.place, episodes.tolist())
        facts = [batch.whole.facts.at(row) for batch, row in at]
        own = episodes[which]
        times = numbers - tracks.table.starts[own] + tracks.t_started[own]
        return StepLocations([EpisodeKey(one.id_, one.agent_id, one.module_id) for one in facts], which, times)

    def _place(self, number: int) -> tuple[StoredTracks, int]:
        if self._tracks is None:
            raise EpisodeStateError(
                f"step {number}: this batch came from another process; ask the sampler there, or sampler.at([{number}])"
            )
        return self._tracks, int(self._tracks.table.ends.searchsorted(number, side="right"))

    def __repr__(self) -> str:
        return f"the data set {self._path}"

    def __deepcopy__(self, memo: Any) -> DatasetSteps:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {"_tracks": None, "_path": self._path}

"""The observation after each step."""

from __future__ import annotations

from typing import Any

from connectors.connector import Batch, Connector
from connectors.learner.observation_source import observation_source
from episodes.columns import Columns
from episodes.pack import EpisodePack

__all__ = ["AddNextObservations"]


class AddNextObservations(Connector):
    """Adds "new_obs" [B, ...], the observation each action led to: the true last one where the episode ended."""

    writes = (Columns.NEXT_OBS,)
    reads_tracks = True

    def __call__(
        self, *, batch: Batch, episodes: EpisodePack, shared_data: dict[str, Any] | None = None, **kwargs: Any
    ) -> Batch:
        if Columns.NEXT_OBS not in batch:
            batch[Columns.NEXT_OBS] = observation_source(shared_data)(episodes, episodes.observation_rows(shift=1))
        return batch

"""The observation before each step."""

from __future__ import annotations

from typing import Any

from connectors.connector import Batch, Connector
from connectors.learner.observation_source import observation_source
from episodes.columns import Columns
from episodes.pack import EpisodePack

__all__ = ["AddObservations"]


class AddObservations(Connector):
    """Adds "obs" [B, ...], the observation each action was taken in: one gather a leaf. A column there is left."""

    writes = (Columns.OBS,)
    reads_tracks = True

    def __call__(
        self, *, batch: Batch, episodes: EpisodePack, shared_data: dict[str, Any] | None = None, **kwargs: Any
    ) -> Batch:
        if Columns.OBS not in batch:
            batch[Columns.OBS] = observation_source(shared_data)(episodes, episodes.observation_rows())
        return batch

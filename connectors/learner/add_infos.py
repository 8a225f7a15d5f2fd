"""The info dicts of the steps."""

from __future__ import annotations

from typing import Any

from connectors.connector import Batch, Connector
from episodes.columns import Columns
from episodes.pack import EpisodePack

__all__ = ["AddInfos"]


class AddInfos(Connector):
    """Adds "infos", a sequence of B dicts: the info that came with the observation before each step.

    The dicts are made when they are read. `NumpyToTensor` leaves them alone.
    """

    writes = (Columns.INFOS,)
    reads_tracks = True

    def __call__(self, *, batch: Batch, episodes: EpisodePack, **kwargs: Any) -> Batch:
        if Columns.INFOS not in batch:
            batch[Columns.INFOS] = episodes.infos.take(episodes.observation_rows())
        return batch

"""Connector that adds the environment's info dicts of the steps."""

from __future__ import annotations

from typing import Any

from connectors.connector import ColumnDict, Connector
from connectors.learner.add_time_dimension_and_zero_pad import in_batch_form
from episodes.columns import Columns
from episodes.pack import EpisodePack

__all__ = ["AddInfos"]


class AddInfos(Connector):
    """Connector that adds "infos", a sequence of B dicts: the info of the observation before each step.

    The dicts are created when they are read. `NumpyToTensor` leaves them unchanged.
    """

    writes = (Columns.INFOS,)
    reads_tracks = True

    def __call__(self, *, batch: ColumnDict, episodes: EpisodePack, **kwargs: Any) -> ColumnDict:
        if Columns.INFOS not in batch:
            infos = episodes.infos.take(episodes.observation_rows())
            batch[Columns.INFOS] = in_batch_form(infos, batch, episodes)
        return batch

"""Connector that adds the observation before each step."""

from __future__ import annotations

from connectors.connector import ColumnDict, Connector
from connectors.learner.add_time_dimension_and_zero_pad import all_in_batch_form
from connectors.views.pack_views import PackViews
from episodes.columns import Columns
from episodes.pack import EpisodePack

__all__ = ["AddObservations"]


class AddObservations(Connector):
    """Connector that adds "obs" [B, ...], the observation that the policy saw before each step, unless the batch
    already has this column.
    """

    writes = (Columns.OBS,)
    reads_tracks = True

    def __call__(
        self, *, batch: ColumnDict, episodes: EpisodePack, pack_views: PackViews | None = None, **kwargs: object
    ) -> ColumnDict:
        if Columns.OBS not in batch:
            columns = (pack_views or PackViews(episodes))(episodes.observation_rows())
            batch |= all_in_batch_form(columns, batch, episodes)
        return batch

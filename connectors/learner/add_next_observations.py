"""Connector that adds the observation after each step."""

from __future__ import annotations

from connectors.connector import ColumnDict, Connector
from connectors.learner.add_time_dimension_and_zero_pad import all_in_batch_form
from connectors.views.pack_views import PackViews
from episodes.columns import Columns
from episodes.pack import EpisodePack

__all__ = ["AddNextObservations"]


class AddNextObservations(Connector):
    """Connector that adds "new_obs" [B, ...], the observation after each step of the same episode.

    Each other column of the views also gets a column "new_<column>". Existing columns are kept.
    """

    writes = (Columns.NEXT_OBS,)
    reads_tracks = True

    def __call__(
        self, *, batch: ColumnDict, episodes: EpisodePack, pack_views: PackViews | None = None, **kwargs: object
    ) -> ColumnDict:
        if Columns.NEXT_OBS not in batch:
            columns = (pack_views or PackViews(episodes))(episodes.observation_rows(shift=1)).items()
            new = {f"new_{name}": column for name, column in columns if f"new_{name}" not in batch}
            batch |= all_in_batch_form(new, batch, episodes)
        return batch

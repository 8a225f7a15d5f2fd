"""The observation after each step."""

from __future__ import annotations

from typing import Any

from connectors.connector import ColumnDict, Connector
from connectors.learner.add_time_dimension_and_zero_pad import all_in_batch_form
from connectors.views.pack_views import Seen
from episodes.columns import Columns
from episodes.pack import EpisodePack

__all__ = ["AddNextObservations"]


class AddNextObservations(Connector):
    """Adds "new_obs" [B, ...], the observation each action led to: the true last one where the episode ended.

    Of every other column that views make there is a "new_<column>" too. Columns that are there are left.
    """

    writes = (Columns.NEXT_OBS,)
    reads_tracks = True

    def __call__(
        self, *, batch: ColumnDict, episodes: EpisodePack, seen: Seen | None = None, **kwargs: Any
    ) -> ColumnDict:
        if Columns.NEXT_OBS not in batch:
            columns = (seen or Seen(episodes))(episodes.observation_rows(shift=1)).items()
            new = {f"new_{name}": column for name, column in columns if f"new_{name}" not in batch}
            batch |= all_in_batch_form(new, batch, episodes)
        return batch

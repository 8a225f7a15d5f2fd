"""Connector that joins the items appended to each batch column, and checks that all columns have equal length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from connectors.column_parts import joined, num_rows
from connectors.connector import ColumnDict, Connector
from episodes.errors import TrackMismatch
from episodes.pack import EpisodePack

if TYPE_CHECKING:
    from episodes.single_agent import SingleAgentEpisode

__all__ = ["BatchItems"]


class BatchItems(Connector):
    """Connector that joins the items appended to each batch column to nested arrays [B, ...], all with the same B.

    Raises:
        TrackMismatch: columns differ in length. While acting: their length is not the number of episodes.
    """

    reads_tracks = True
    changes_rows = False

    def __call__(
        self, *, batch: ColumnDict, episodes: Sequence[SingleAgentEpisode] | None = None, **kwargs: object
    ) -> ColumnDict:
        length = -1
        for name, column in batch.items():
            if type(column) is np.ndarray:
                rows = len(column)
            else:
                batch[name] = column = joined(column)
                rows = num_rows(column)
            if rows != length >= 0:
                raise TrackMismatch(
                    f"column {name!r} has {rows} rows, {next(iter(batch))!r} has {length}: columns of a batch have one "
                    "length; add as many items to each, and name the episode that they belong to"
                )
            length = rows
        if length >= 0 and episodes and not isinstance(episodes, EpisodePack) and length != len(episodes):
            raise TrackMismatch(
                f"column {next(iter(batch))!r} has {length} rows for {len(episodes)} episodes: add_batch_item appends "
                "to a column; change rows with foreach_batch_item_change_in_place, or add to another column"
            )
        return batch

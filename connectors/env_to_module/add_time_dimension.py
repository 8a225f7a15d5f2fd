"""Connector that adds a time axis of one step, for recurrent policies."""

from __future__ import annotations

from connectors.column_parts import joined
from connectors.connector import ColumnDict, Connector
from episodes.columns import Columns
from episodes.tracks import nested

__all__ = ["AddTimeDimension"]


class AddTimeDimension(Connector):
    """Connector that inserts a time axis of length 1 into every column except "state_in": [N, ...] becomes [N, 1,
    ...].
    """

    reads_tracks = True

    def __call__(self, *, batch: ColumnDict, **kwargs: object) -> ColumnDict:
        for name, column in batch.items():
            if name != Columns.STATE_IN:
                batch[name] = nested.map_leaves(lambda leaf: leaf[:, None], joined(column))
        return batch

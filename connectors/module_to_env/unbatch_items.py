"""One row of each output for each environment."""

from __future__ import annotations

from typing import Any

import numpy as np

from connectors.column_parts import num_rows
from connectors.connector import ColumnDict, Connector
from episodes.errors import TrackMismatch

__all__ = ["UnbatchItems"]


class UnbatchItems(Connector):
    """Checks that row i of every column belongs to episode i; from here on the columns are read row by row.

    Arrays [N, ...] are sequences of N items already, so nothing is taken apart.

    Raises:
        TrackMismatch: a column has another number of rows than there are episodes.
    """

    changes_rows = False  # runner and recorder check the number of rows

    def __call__(self, *, batch: ColumnDict, episodes: Any = (), **kwargs: Any) -> ColumnDict:
        if len(episodes):
            check_rows(batch, len(episodes))
        return batch


def check_rows(batch: ColumnDict, expected: int) -> None:
    """Raise `TrackMismatch` for a column with another number of rows."""
    for name, column in batch.items():
        rows = len(column) if type(column) is np.ndarray else num_rows(column)
        if rows != expected:
            raise TrackMismatch(
                f"the policy's output {name!r} has {rows} rows for {expected} episodes; "
                "it must keep the rows of its input"
            )

"""Connector that checks that policy outputs have one row per episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from connectors.column_parts import num_rows
from connectors.connector import ColumnDict, Connector
from episodes.errors import TrackMismatch

if TYPE_CHECKING:
    from episodes.single_agent import SingleAgentEpisode

__all__ = ["UnbatchItems"]


class UnbatchItems(Connector):
    """Connector that checks that each column has one row per episode. The batch is not changed.

    Arrays [N, ...] are sequences of N items already, so nothing is split.

    Raises:
        TrackMismatch: the number of rows of a column is not the number of episodes.
    """

    changes_rows = False  # runner and recorder check the number of rows

    def __call__(
        self, *, batch: ColumnDict, episodes: Sequence[SingleAgentEpisode] = (), **kwargs: object
    ) -> ColumnDict:
        if len(episodes):
            check_rows(batch, len(episodes))
        return batch


def check_rows(batch: ColumnDict, expected: int, owner: str = "the policy's", rows_of: str = "episodes") -> None:
    """Raise `TrackMismatch` if a column of the batch has a number of rows other than `expected`.

    The error calls the columns outputs of `owner`, and the rows those of `rows_of`.
    """
    for name, column in batch.items():
        rows = len(column) if type(column) is np.ndarray else num_rows(column)
        if rows != expected:
            raise TrackMismatch(
                f"{owner} output {name!r} has {rows} rows for {expected} {rows_of}; it must keep the rows of its input"
            )

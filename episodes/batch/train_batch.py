"""`TrainBatch`, the dict of columns that a learner pipeline returns, and `origin_of`, the origin of its rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from episodes.batch.origin import LazyOrigin, Origin, resolved
from episodes.errors import EpisodeStateError
from episodes.tracks import nested
from episodes.tracks.notebook_repr import notebook_repr

__all__ = ["TrainBatch"]


class TrainBatch(dict[str, Any]):
    """Dict of the columns of a train batch, which also stores the origin (episode and step) of each row.

    `Batch(train_batch)` keeps the origin. A plain dict of the same columns (`dict(train_batch)`,
    `train_batch | {...}`) has no origin.
    """

    __slots__ = ("lazy_origin",)
    _repr_html_ = notebook_repr("episodes.inspect.html", "batch")

    def __init__(
        self, columns: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), lazy_origin: LazyOrigin | None = None
    ) -> None:
        super().__init__(columns)
        self.lazy_origin = lazy_origin

    @property
    def origin(self) -> Origin:
        """Origin of the rows: the episode and step from which each row came.

        Raises:
            EpisodeStateError: the origin is unknown, since a connector or the user changed the number of rows.
        """
        return origin_of(self.lazy_origin, self)

    def __reduce__(self) -> Any:
        return TrainBatch, (dict(self), self.lazy_origin)


def origin_of(lazy_origin: LazyOrigin | None, columns: Mapping[str, Any]) -> Origin:
    """Return the `Origin` (episode and step) of the rows of `columns`.

    Raises:
        EpisodeStateError: the origin is unknown, or no column has as many rows.
    """
    if lazy_origin is None:
        raise EpisodeStateError(
            "the origin of these rows is unknown: only batches of a learner pipeline or a replay buffer, and rows "
            "selected, split or joined from such batches, have an origin"
        )
    origin = resolved(lazy_origin)
    if not _has_rows(next(iter(columns.values()), None), origin.numbers) and not any(
        _has_rows(leaf, origin.numbers) for leaf in nested.leaves(dict(columns))
    ):
        raise EpisodeStateError(
            f"it is not known where these rows came from: they were {len(origin)}, and no column has as many now"
        )
    return origin


def _has_rows(leaf: object, numbers: np.ndarray) -> bool:
    """Return True if the column has one row per step index in `numbers`. Any column fits a single index."""
    shape = getattr(leaf, "shape", None)
    return numbers.ndim == 0 or (bool(shape) and shape[0] == len(numbers))

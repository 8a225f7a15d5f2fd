"""`TrainBatch`: what a learner pipeline gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from episodes.batch.origin import LazyOrigin, Origin, resolved
from episodes.errors import EpisodeStateError
from episodes.tracks import nested
from episodes.tracks.notebook_repr import notebook_repr

__all__ = ["TrainBatch"]


class TrainBatch(dict[str, Any]):
    """A dict of columns that knows where its rows came from; `Batch(train_batch)` knows it too.

    A plain dict of the same columns (`dict(train_batch)`, `train_batch | {...}`) does not.
    """

    __slots__ = ("came",)
    _repr_html_ = notebook_repr("episodes.inspect.html", "batch")

    def __init__(self, columns: Any = (), came: LazyOrigin | None = None) -> None:
        super().__init__(columns)
        self.came = came

    @property
    def origin(self) -> Origin:
        """From which step of which episode each row came.

        Raises:
            EpisodeStateError: it is not known, since a piece or somebody has changed how many rows there are.
        """
        return origin_of(self.came, self)

    def __reduce__(self) -> Any:
        return TrainBatch, (dict(self), self.came)


def origin_of(came: LazyOrigin | None, columns: Mapping[str, Any]) -> Origin:
    """The origin of the columns' rows, if it is known; else EpisodeStateError."""
    if came is None:
        raise EpisodeStateError(
            "it is not known where these rows came from: batches of a learner pipeline or a replay buffer know it, "
            "and what is taken, split or joined of them; not what was made of bare columns"
        )
    origin = resolved(came)
    if not _has_rows(next(iter(columns.values()), None), origin.numbers) and not any(
        _has_rows(leaf, origin.numbers) for leaf in nested.leaves(dict(columns))
    ):
        raise EpisodeStateError(
            f"it is not known where these rows came from: they were {len(origin)}, and no column has as many now"
        )
    return origin


def _has_rows(leaf: Any, numbers: np.ndarray) -> bool:
    """Whether a column has a row for each number; of a single row there is nothing to count."""
    shape = getattr(leaf, "shape", None)
    return numbers.ndim == 0 or (bool(shape) and shape[0] == len(numbers))

"""`PackViews`: function that computes the policy's inputs for observations of recorded episodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from connectors.views.view import Views
from episodes.columns import Columns
from episodes.errors import InvalidArgument
from episodes.pack import EpisodePack, PackHistory
from episodes.tracks import nested

__all__ = ["PackViews"]


class PackViews:
    """Function that computes the policy's inputs at selected observations of recorded episodes (a pack).

    A learner pipeline creates it from the recorded episodes and passes it to each connector. Later changes of rewards
    or observations do not affect it.

    Args:
        pack: the episodes.
        views: the views; None for the stored observations.

    Raises:
        InvalidArgument: a chunk in the middle of an episode has a shorter lookback than the views.
    """

    def __init__(self, pack: EpisodePack, views: Views | None = None) -> None:
        self.pack = pack
        self.views = Views() if views is None else views
        if self.views.lookback:
            check_lookback(pack, self.views.lookback, self.views)

    def __call__(self, rows: np.ndarray | slice) -> dict[str, Any]:
        """Return the policy's input columns [B, ...] at the observations with indices `rows` [B] in the pack."""
        if not self.views.views:
            return {Columns.OBS: nested.take(self.pack.observations, rows)}
        return self.views(self.history(rows))

    def history(self, rows: np.ndarray | slice) -> PackHistory:
        """Return the history (observations and earlier steps) that views read, at the observations with indices `rows`
        [B] in the pack.
        """
        return PackHistory(self.pack, rows, self.views.given, self.views.lookback)


def check_lookback(pack: EpisodePack, num_steps: int, name: object) -> None:
    """Check that each chunk (part of an episode) has the earlier steps that are read, at most `num_steps`, in its
    lookback.

    Args:
        pack: the episodes.
        num_steps: number of steps before a chunk that are read.
        name: name of the reader of these steps, for the error.

    Raises:
        InvalidArgument: the lookback of a chunk is too short.
    """
    if not num_steps or not np.count_nonzero(pack.t_started):
        return  # every chunk begins with its episode: there is nothing before it
    needed_items = np.minimum(num_steps, pack.t_started)
    short = np.flatnonzero(pack.lookbacks < needed_items)
    if len(short):
        i = int(short[0])
        raise InvalidArgument(
            f"{name}: the chunk of episode {pack.ids[i]} that starts at t={pack.t_started[i]} has a lookback of "
            f"{pack.lookbacks[i]}, {needed_items[i]} items are needed; sample with len_lookback_buffer={num_steps}"
        )

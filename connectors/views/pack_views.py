"""What the module sees of a pack."""

from __future__ import annotations

from typing import Any

import numpy as np

from connectors.views.view import Views
from episodes.errors import InvalidArgument
from episodes.pack import EpisodePack, PackHistory

__all__ = ["Seen"]


class Seen:
    """What the module sees at any observations of a pack: of the steps, after them, all T + 1 for values.

    A learner pipeline makes it of the episodes as they were recorded and hands it to every piece, so that what pieces
    write to rewards or observations later changes nothing that the module saw.

    Args:
        views: none: what is stored.

    Raises:
        InvalidArgument: a chunk goes on in the middle of an episode, and its lookback is shorter than the views'.
    """

    def __init__(self, pack: EpisodePack, views: Views | None = None) -> None:
        self.pack = pack
        self.views = Views() if views is None else views
        check_lookback(pack, self.views.lookback, self.views)

    def __call__(self, rows: np.ndarray | slice) -> dict[str, Any]:
        """The columns [B, ...] at observation rows [B] of the pack."""
        return self.views(self.history(rows))

    def history(self, rows: np.ndarray | slice) -> PackHistory:
        """What the views are given at the rows."""
        return PackHistory(self.pack, rows, self.views.given, self.views.lookback)


def check_lookback(pack: EpisodePack, num_steps: int, name: Any) -> None:
    """Raise InvalidArgument where a chunk's lookback is shorter than the steps before it that are read.

    Args:
        name: of what reads them; views are made text only for the error.
    """
    if not num_steps or not np.count_nonzero(pack.t_started):
        return  # every chunk begins with its episode: there is nothing before it
    wanted = np.minimum(num_steps, pack.t_started)
    short = np.flatnonzero(pack.lookbacks < wanted)
    if len(short):
        i = int(short[0])
        raise InvalidArgument(
            f"{name}: the chunk of episode {pack.ids[i]} that starts at t={pack.t_started[i]} has a lookback of "
            f"{pack.lookbacks[i]}, {wanted[i]} items are needed; sample with len_lookback_buffer={num_steps}"
        )

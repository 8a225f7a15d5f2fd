"""What the policy saw at any observation of a pack, not only at those of the batch.

Value functions run over all T + 1 observations of an episode, as the policy sees them: stacked, say, or with the
previous action beside them. Pieces that change what the policy sees leave in `shared_data` how it is made; those that
need observations ask there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from episodes.errors import InvalidArgument
from episodes.pack import EpisodePack
from episodes.tracks import nested

OBSERVATIONS_AT = "observations_at"  # the key in shared_data

Rows = np.ndarray | slice  # observation rows of a pack
Source = Callable[[EpisodePack, Rows], Any]  # (pack, rows) -> nested arrays [k, ...]


def stored_observations(pack: EpisodePack, rows: Rows) -> Any:
    """The observations at the rows as the pack has them: a view for a slice, else one gather a leaf."""
    return nested.take(pack.observations, rows)


def observation_source(shared_data: dict[str, Any] | None) -> Source:
    """How the pieces so far make the policy's observations; as stored, when none has said anything."""
    return stored_observations if shared_data is None else shared_data.get(OBSERVATIONS_AT, stored_observations)


def as_rows(pack: EpisodePack, rows: Rows) -> np.ndarray:
    """The rows as an array, where they are a slice."""
    if not isinstance(rows, slice):
        return rows
    return np.arange(*rows.indices(int(pack.observation_offsets[-1])))


def episode_of(pack: EpisodePack, rows: np.ndarray) -> np.ndarray:
    """Which episode each observation row [B] belongs to."""
    return pack.observation_offsets.searchsorted(rows, side="right") - 1


def check_reach(pack: EpisodePack, num_items: int, name: str) -> None:
    """Raise InvalidArgument where a chunk's lookback is shorter than the items before it that a piece reads."""
    if not pack.t_started.any():
        return
    if not np.count_nonzero(pack.t_started):
        return  # every chunk begins with its episode: there is nothing before it
    wanted = np.minimum(num_items, pack.t_started)
    short = np.flatnonzero(pack.lookbacks < wanted)
    if len(short):
        i = int(short[0])
        raise InvalidArgument(
            f"{name}: the chunk of episode {pack.ids[i]} that starts at t={pack.t_started[i]} has a lookback of "
            f"{pack.lookbacks[i]}, {wanted[i]} items are needed; sample with len_lookback_buffer={num_items}"
        )

"""What the policy saw at any observation of a pack, not only at those of the batch.

Value functions run over all T + 1 observations of an episode, as the policy sees them: stacked, say, or with the
previous action beside them. The piece that writes "obs" leaves in `shared_data` how it is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from episodes import nested
from episodes.pack import EpisodePack

OBSERVATIONS_AT = "observations_at"  # the key in shared_data

Source = Callable[[EpisodePack, Any], Any]  # (pack, observation rows, or a slice of them) -> nested arrays [k, ...]


def stored_observations(pack: EpisodePack, rows: np.ndarray | slice) -> Any:
    """The observations at the rows as the pack has them: a view for a slice, else one gather a leaf."""
    return nested.take(pack.observations, rows)


def observation_source(shared_data: dict[str, Any] | None) -> Source:
    """How the pieces so far make the policy's observations; as stored, when none has said anything."""
    return stored_observations if shared_data is None else shared_data.get(OBSERVATIONS_AT, stored_observations)

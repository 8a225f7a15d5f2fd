"""Connector that adds the newest observation of each episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from connectors.column_parts import ColumnParts
from connectors.connector import ColumnDict, Connector
from connectors.env_to_module.recent import recent
from episodes.columns import Columns
from episodes.errors import StepOutOfRange
from episodes.single_agent.episodes_history import check_single_shape
from episodes.tracks import nested

if TYPE_CHECKING:
    from episodes.single_agent import SingleAgentEpisode

__all__ = ["AddObservations"]


class AddObservations(Connector):
    """Connector that adds the column "obs" [N, ...], the newest observation of each episode, unless the batch already
    has this column.

    Items that earlier connectors added for episodes replace the runner's rows, as in RLlib.
    """

    writes = (Columns.OBS,)
    reads_tracks = True
    changes_rows = False

    def __call__(
        self, *, batch: ColumnDict, episodes: Sequence[SingleAgentEpisode] = (), **kwargs: object
    ) -> ColumnDict:
        if Columns.OBS not in batch:
            batch[Columns.OBS] = newest_observations(episodes)
        elif isinstance(batch[Columns.OBS], ColumnParts):
            batch[Columns.OBS] = batch[Columns.OBS].with_known_owners()
        return batch


def newest_observations(episodes: Sequence[SingleAgentEpisode]) -> Any:
    """Return the newest observation of each of N episodes, as nested arrays [N, ...].

    Raises:
        TrackMismatch: the observations of an episode are ragged.
    """
    if type(episodes) is list and episodes:
        for episode in episodes:
            check_single_shape(episode, "observations")
        try:
            return nested.stack([episode.get_observations(-1) for episode in episodes])
        except StepOutOfRange:  # an episode without a reset observation
            pass
    return nested.take(recent(episodes, "observations", 1)[0], 0)

"""`ObservationPreprocessor`: base class of connectors that change observations one by one before episodes store
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from connectors.column_parts import rows_of
from connectors.rewriting.rewriter import ObservationRewriter
from episodes.data_types import NestedArrays
from episodes.tracks import nested

if TYPE_CHECKING:
    from episodes.single_agent import SingleAgentEpisode

__all__ = ["ObservationPreprocessor"]


class ObservationPreprocessor(ObservationRewriter):
    """Base class of connectors that change each observation before storage in episodes. Override `preprocess` or
    `preprocess_rows`.

    Also override `recompute_output_observation_space` if shape, dtype or bounds change.

    >>> import numpy as np
    >>> class Halve(ObservationPreprocessor):
    ...     def preprocess(self, observation, episode):
    ...         return observation / 2
    >>> Halve().rewrite(np.array([[2.0], [4.0]])).tolist()
    [[1.0], [2.0]]
    """

    def preprocess(self, observation: Any, episode: SingleAgentEpisode | None) -> Any:
        """Return the changed form of one observation. Override this method, or `preprocess_rows` for whole arrays.

        Args:
            observation: the observation.
            episode: the episode with this observation as its last one. For a reset observation it is a new episode.
                None in a learner pipeline.
        """
        raise NotImplementedError(f"{type(self).__name__} has neither preprocess nor preprocess_rows")

    def preprocess_rows(self, observations: NestedArrays, episodes: Sequence[SingleAgentEpisode] | None = None) -> Any:
        """Return the changed form of the observations [N, ...] of N environments.

        By default, `preprocess` is called for each observation. `episodes` are the ongoing episodes, one per row.
        For `episodes=None`, `preprocess` gets None as its episode.
        """
        rows = rows_of(observations)
        owners = [None] * len(rows) if episodes is None else episodes
        return nested.stack([self.preprocess(row, episode) for row, episode in zip(rows, owners, strict=True)])

    def rewrite(
        self, observations: NestedArrays, episodes: Sequence[SingleAgentEpisode] | None = None, update: bool = True
    ) -> Any:
        """Return the observations [N, ...] in the form that episodes store: the result of `preprocess_rows`."""
        return self.preprocess_rows(observations, episodes)

"""Observations changed by a function of yours."""

from __future__ import annotations

from typing import Any

from connectors.column_parts import rows_of
from connectors.rewriting.rewriter import ObservationRewriter
from episodes.tracks import nested

__all__ = ["ObservationPreprocessor"]


class ObservationPreprocessor(ObservationRewriter):
    """A base class: override `preprocess`, for one observation, or `preprocess_rows`, for a whole vector row at once.

    Override `recompute_output_observation_space` too where shape, dtype or bounds change.

    >>> import numpy as np
    >>> class Halve(ObservationPreprocessor):
    ...     def preprocess(self, observation, episode):
    ...         return observation / 2
    >>> Halve().rewrite(np.array([[2.0], [4.0]])).tolist()
    [[1.0], [2.0]]
    """

    def preprocess(self, observation: Any, episode: Any) -> Any:
        """What an observation becomes.

        Args:
            episode: the one that the observation belongs to: it is the last one there, and the last action led to it. A
                fresh one for a reset observation; None in a learner pipeline.
        """
        raise NotImplementedError(f"{type(self).__name__} has neither preprocess nor preprocess_rows")

    def preprocess_rows(self, observations: Any, episodes: Any = None) -> Any:
        """What observations, nested arrays [N, ...], become; by default, `preprocess` of one after another."""
        rows = rows_of(observations)
        owners = [None] * len(rows) if episodes is None else episodes
        return nested.stack([self.preprocess(row, episode) for row, episode in zip(rows, owners, strict=True)])

    def rewrite(self, observations: Any, episodes: Any = None, update: bool = True) -> Any:
        """The observations as `preprocess_rows` makes them; see `ObservationRewriter`."""
        return self.preprocess_rows(observations, episodes)

"""`DrawViews`: computes the policy's inputs for samples from replay, as a learner pipeline does for episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from connectors.rewriting.rewriter import ObservationRewriter
from connectors.views.view import Views
from episodes.data_types import NestedArrays
from episodes.history import History, HistorySpaces, OtherObservations, zeroed
from episodes.tracks import nested

__all__ = ["DrawViews"]


class DrawViews:
    """Function for `buffer.sample(n, views=...)` that applies rewriters, such as filters, to stored observations, and
    then views.

    Rewriters learn no statistics from sampled batches.

    Args:
        input_spaces: the spaces of the stored observations and actions.
        rewriters: the rewriters in order.
        views: views of the rewritten observations.
    """

    def __init__(self, input_spaces: HistorySpaces, rewriters: Sequence[ObservationRewriter], views: Views) -> None:
        self.given, self.views, self.lookback = input_spaces, views, views.lookback
        self._rewriters = tuple(rewriters)

    def __call__(self, history: History) -> dict[str, Any]:
        """Return the policy's input columns for a history of B stored observations, nested arrays [B, ...]."""
        return self.views(_Rewritten(self, history))

    def rewritten(self, observations: NestedArrays) -> Any:
        """Return the observations [n, ...] after all rewriters were applied in order."""
        for rewriter in self._rewriters:
            observations = rewriter.rewrite(observations, None, False)
        return observations


class _Rewritten(OtherObservations):
    """History whose observations are changed by the rewriters of a `DrawViews` when they are read."""

    def __init__(self, draws: DrawViews, source: History) -> None:
        super().__init__(source, draws.views.given)
        self._draws = draws

    def newest(self) -> Any:
        return self._draws.rewritten(self._source.newest())

    def last_observations(self, k: int) -> Any:
        num_rows = len(self)
        items = self._source.last_observations(k)
        flat = nested.map_leaves(lambda leaf: leaf.reshape(num_rows * k, *leaf.shape[2:]), items)
        rewritten = self._draws.rewritten(flat)
        items = nested.map_leaves(lambda leaf: leaf.reshape(num_rows, k, *leaf.shape[1:]), rewritten)
        return items if self._reaches(k - 1) else zeroed(items, ~self.observed(k))

    def window(self, k: int) -> History:
        return _Rewritten(self._draws, self._source.window(k))

"""What the module sees of draws from replay that a learner pipeline's rewriters change first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from connectors.rewriting import ObservationRewriter
from connectors.views import Views
from episodes.history import History, HistorySpaces, OtherObservations, zeroed
from episodes.tracks import nested

__all__ = ["DrawViews"]


class DrawViews:
    """Rewriters, then views, of what is stored: `buffer.sample(n, views=...)` takes it as it takes `Views`.

    Rewriters learn nothing from draws.

    Args:
        given: the spaces of what is stored.
        views: of what the rewriters make.
    """

    def __init__(self, given: HistorySpaces, rewriters: Sequence[ObservationRewriter], views: Views) -> None:
        self.given, self.views, self.lookback = given, views, views.lookback
        self._rewriters = tuple(rewriters)

    def __call__(self, history: History) -> dict[str, Any]:
        """All columns that the module sees, nested arrays [B, ...]."""
        return self.views(_Rewritten(self, history))

    def rewritten(self, observations: Any) -> Any:
        """The observations, nested arrays [n, ...], after all rewriters."""
        for rewriter in self._rewriters:
            observations = rewriter.rewrite(observations, None, False)
        return observations


class _Rewritten(OtherObservations):
    """A history of what the rewriters make of its observations."""

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

"""`NormalizeObservations`: view that normalizes observations by running statistics, while episodes store raw ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import gymnasium as gym

from connectors.rewriting.mean_std_filter import MeanStdFilter
from connectors.views.piece import ViewPiece
from connectors.views.samples import SampleHistory
from episodes.columns import Columns
from episodes.data_types import NestedArrays
from episodes.errors import StateMismatch
from episodes.history import History, HistorySpaces

__all__ = ["NormalizeObservations"]


class NormalizeObservations(ViewPiece):
    """View that subtracts the running mean from Box observations and divides by their standard deviation.

    Episodes and replay buffers store the observations as they are. Acting, learning and samples of replay normalize
    them with the newest statistics, so one stored observation has one normalized value at a time. `MeanStdFilter`
    instead stores normalized observations, with the statistics of their time. Then learning sees exactly what acting
    saw, which on-policy algorithms expect.

    Statistics learn from each observation that a runner records with `explore=True` and `update_stats=True`, random
    actions included, and from nothing else. A learner pipeline must share them: `views=actor.views`, which algorithms
    use if they get the actor.

    Args:
        input_observation_space: space of the observations before this view.
        input_action_space: space of the actions before this view.
        de_mean_to_zero: subtract the mean.
        de_std_to_one: divide by the standard deviation.
        clip_by_value: limit of the normalized values; None for no limit.
        update_stats: learn statistics from the observations.
        name: name of the view in its pipeline.

    Raises:
        InvalidArgument: `clip_by_value` is not a number of at least 0.
        WrongType: a flag is not a bool.
        UnwiredPipeline: in a pipeline: another view comes before it.
        StateMismatch: in a call: there are no statistics yet.
    """

    def __init__(
        self,
        input_observation_space: gym.Space | None = None,
        input_action_space: gym.Space | None = None,
        *,
        de_mean_to_zero: bool = True,
        de_std_to_one: bool = True,
        clip_by_value: float | None = 10.0,
        update_stats: bool = True,
        name: str | None = None,
    ) -> None:
        self._filter = MeanStdFilter(
            de_mean_to_zero=de_mean_to_zero,
            de_std_to_one=de_std_to_one,
            clip_by_value=clip_by_value,
            update_stats=update_stats,
        )
        self.de_mean_to_zero, self.de_std_to_one = self._filter.de_mean_to_zero, self._filter.de_std_to_one
        self.clip_by_value, self.update_stats = self._filter.clip_by_value, self._filter.update_stats
        super().__init__(input_observation_space, input_action_space, name=name)

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the view by name, to compare pipelines, without `update_stats`, which evaluation may change."""
        return self._filter.settings

    @property
    def is_empty_filter(self) -> bool:  # type: ignore[override]
        """Whether there are no statistics yet, because no observation was seen."""
        return self._filter.is_empty_filter

    def learn(self, observations: NestedArrays) -> None:
        """Update the statistics by recorded observations, nested arrays [N, ...].

        Raises:
            ShapeMismatch: the observations have another shape than earlier ones.
        """
        self._filter.update_stats = self.update_stats
        self._filter.rewrite(observations, None, True)

    def see(self, history: History) -> dict[str, Any]:
        """Return the column "obs" for a history: the normalized observations.

        Raises:
            StateMismatch: there are no statistics yet.
        """
        if self.is_empty_filter and not isinstance(history, SampleHistory):
            raise StateMismatch(
                f"{self.name} has seen no observation: sample with explore=True first, restore its state, share the "
                "views of the actor (views=actor.views), or call its learn(observations) on recorded data"
            )
        return {Columns.OBS: self._filter.normalized(history.observations())}

    def spaces(self, input_spaces: HistorySpaces) -> Mapping[str, gym.Space]:
        """Return the space of the column "obs": each Box becomes a float32 Box that is bounded by the clip limits."""
        space = input_spaces.observation_space
        self._filter.set_input_spaces(space, None)
        return {} if space is None else {Columns.OBS: self._filter.observation_space}  # type: ignore[dict-item]

    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        **kwargs: object,
    ) -> dict[str, Any]:
        """Return the statistics, as `MeanStdFilter.get_state` does."""
        return self._filter.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the statistics that `get_state` or `merge_states` returned.

        Raises:
            StateMismatch: the shapes are not those of the space.
        """
        self._filter.set_state(state)

    def reset_state(self) -> None:
        """Discard all learned statistics."""
        self._filter.reset_state()

    def merge_states(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """Return one state that combines the statistics of several copies, as `MeanStdFilter.merge_states` does."""
        return self._filter.merge_states(states)

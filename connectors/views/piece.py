"""`ViewPiece`: connector that makes a view (a function that computes policy inputs) part of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from connectors.connector import ColumnDict, Connector
from connectors.fingerprint import settings_of
from connectors.views.view import View, Views, ViewWithSpaces, name_of
from episodes.columns import Columns
from episodes.history import History, HistorySpaces
from episodes.recorder.ongoing import OngoingEpisodes
from episodes.recorder.recorder_history import RecorderHistory
from episodes.single_agent import EpisodesHistory

if TYPE_CHECKING:
    from episodes.single_agent import SingleAgentEpisode

__all__ = ["ViewPiece"]


class ViewPiece(Connector):
    """Connector made of a view, which is a function that computes policy inputs from observations and earlier steps.

    A pipeline wraps each plain view function in one. Views with a name in RLlib derive from it and override `see`.

    Args:
        input_observation_space: space of the observations before this connector.
        input_action_space: space of the actions before this connector.
        view: the view function; by default the method `see` of a derived class.
        name: name of the connector in its pipeline; by default the name of the view.
    """

    reads_tracks = True
    writes = (Columns.OBS,)

    def __init__(
        self,
        input_observation_space: gym.Space | None = None,
        input_action_space: gym.Space | None = None,
        *,
        view: View | None = None,
        name: str | None = None,
    ) -> None:
        self._view = view
        super().__init__(input_observation_space, input_action_space, name=name)

    @property
    def name(self) -> str:
        """Name in the pipeline: the `name` argument, or the name of the view function."""
        return self._name or (super().name if self._view is None else name_of(self._view))

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the view by name, as plain values, to compare the views of acting and learning."""
        return super().settings if self._view is None else settings_of(self._view)

    @property
    def view(self) -> View | None:
        """The wrapped view function, or None for a derived class, which is its own view."""
        return self._view

    def see(self, history: History) -> Mapping[str, Any]:
        """Return the policy's input columns [B, ...] for a history of B observations. Derived classes override this
        method.
        """
        if self._view is None:
            raise NotImplementedError(f"{type(self).__name__} has no see(history)")
        return self._view(history)

    def spaces(self, input_spaces: HistorySpaces) -> Mapping[str, gym.Space]:
        """Return the spaces of output columns that the view declares, by column. Other spaces are derived from
        samples.
        """
        return self._view.spaces(input_spaces) if isinstance(self._view, ViewWithSpaces) else {}

    def place(self, views: Views | None, place: int) -> None:
        """Set the spaces of this view to those that it has at index `place` of `views`, or remove them for
        `views=None`.
        """
        input_spaces = HistorySpaces() if views is None else views.input_spaces_of(place)
        self._input_observation_space, self._input_action_space = (
            input_spaces.observation_space,
            input_spaces.action_space,
        )
        self._observation_space = None if views is None else views.input_spaces_of(place + 1).observation_space
        self._action_space = input_spaces.action_space

    def recompute_output_observation_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> gym.Space:
        """Return the space of the column "obs" after the view, found by running the view on samples of the input
        spaces.
        """
        return Views([self], input_observation_space, input_action_space).observation_space or input_observation_space

    def __call__(  # type: ignore[override]
        self,
        history: History | None = None,
        *,
        batch: ColumnDict | None = None,
        episodes: Sequence[SingleAgentEpisode] = (),
        **kwargs: Any,
    ) -> Any:
        """Return the policy's input columns that the view computes from a history, or add them to `batch`.

        In a pipeline, they are added for the episodes' newest observations.
        """
        if history is not None:
            return self.see(history)
        spaces = HistorySpaces(self.input_observation_space, self.input_action_space)
        return {**(batch or {}), **self.see(newest_history(episodes, spaces))}


def newest_history(episodes: Sequence[Any], spaces: HistorySpaces, lookback: int | None = None) -> History:
    """Return the history that views read while acting: the newest observation of each ongoing episode, and the steps
    before it.
    """
    if isinstance(episodes, OngoingEpisodes):
        return RecorderHistory(episodes, spaces, lookback)
    return EpisodesHistory(list(Connector.single_agent_episode_iterator(episodes)), spaces, lookback)

"""Connectors that add the environment's info dicts of the steps."""

from __future__ import annotations

from typing import Literal

import gymnasium as gym

from connectors.connector import ColumnDict, Connector
from connectors.learner.add_time_dimension_and_zero_pad import in_batch_form
from episodes.columns import Columns
from episodes.errors import InvalidArgument
from episodes.pack import EpisodePack
from episodes.tracks.validation import checked_choice

__all__ = ["AddInfos", "AddInfosFromEpisodesToTrainBatch"]

_COLUMNS = {"obs": "obs_infos", "new_obs": Columns.INFOS}


class AddInfos(Connector):
    """Connector that adds a sequence of B info dicts, one for each step.

    "infos" has the same meaning as in samples of replay buffers and data sets: the infos that the environment returned
    with `new_obs`, the reward and the flags of the step. The infos before the step are "obs_infos". The dicts are
    created when they are read. `NumpyToTensor` leaves them unchanged.

    Args:
        input_observation_space: space of the observations before this connector.
        input_action_space: space of the actions before this connector.
        at: observation with which the infos came. "new_obs" adds "infos", "obs" adds "obs_infos".
        name: name of the connector in its pipeline.

    Raises:
        InvalidArgument: `at` is missing or is something else.
    """

    reads_tracks = True

    def __init__(
        self,
        input_observation_space: gym.Space | None = None,
        input_action_space: gym.Space | None = None,
        *,
        at: Literal["obs", "new_obs"] | None = None,
        name: str | None = None,
    ) -> None:
        if at is None:
            raise InvalidArgument(
                'AddInfos: at is missing; give at="new_obs" for "infos", which came with the next observation as in '
                'samples of a buffer, or at="obs" for "obs_infos", which came with the observation before the step'
            )
        self.at = checked_choice("at", at, tuple(_COLUMNS))
        self.writes = (_COLUMNS[self.at],)
        super().__init__(input_observation_space, input_action_space, name=name)

    def __call__(self, *, batch: ColumnDict, episodes: EpisodePack, **kwargs: object) -> ColumnDict:
        if self.writes[0] not in batch:
            infos = episodes.infos.take(episodes.observation_rows(int(self.at == "new_obs")))
            batch[self.writes[0]] = in_batch_form(infos, batch, episodes)
        return batch


class AddInfosFromEpisodesToTrainBatch(AddInfos):
    """RLlib's connector of this name: adds "infos" [B], the infos of the observations before the steps.

    In samples of replay buffers, "infos" are those of the next observations: prefer `AddInfos`.
    """

    def __init__(
        self,
        input_observation_space: gym.Space | None = None,
        input_action_space: gym.Space | None = None,
        *,
        name: str | None = None,
    ) -> None:
        super().__init__(input_observation_space, input_action_space, at="obs", name=name)
        self.writes = (Columns.INFOS,)

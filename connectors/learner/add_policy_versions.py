"""Connector that adds the version of the policy that took each step."""

from __future__ import annotations

from collections.abc import Callable

import gymnasium as gym
import numpy as np

from connectors.connector import ColumnDict, Connector
from connectors.learner.add_time_dimension_and_zero_pad import in_batch_form
from episodes.columns import Columns
from episodes.errors import WrongType
from episodes.facts.policy_versions import UNKNOWN
from episodes.pack import EpisodePack

__all__ = ["AddPolicyVersions"]


class AddPolicyVersions(Connector):
    """Connector that adds "policy_version" [B], the version of the policy that took each step, or -1 if it is unknown.

    Args:
        input_observation_space: space of the observations before this connector.
        input_action_space: space of the actions before this connector.
        newest: function that returns the current version. If given, "policy_age" [B] is added: the number of versions
            since the step, -1 if unknown.
        name: name of the connector in its pipeline.

    Raises:
        WrongType: `newest` is not callable.
    """

    reads_tracks = True

    def __init__(
        self,
        input_observation_space: gym.Space | None = None,
        input_action_space: gym.Space | None = None,
        *,
        newest: Callable[[], int] | None = None,
        name: str | None = None,
    ) -> None:
        if newest is not None and not callable(newest):
            raise WrongType(f"newest={newest!r}: give a function that returns the current policy version")
        self._newest = newest
        ages = () if newest is None else (Columns.POLICY_AGE,)
        self.writes = (Columns.POLICY_VERSION, *ages)
        super().__init__(input_observation_space, input_action_space, name=name)

    def __call__(self, *, batch: ColumnDict, episodes: EpisodePack, **kwargs: object) -> ColumnDict:
        versions = episodes.get_policy_versions()
        batch[Columns.POLICY_VERSION] = in_batch_form(versions, batch, episodes)
        if self._newest is not None:
            ages = np.where(versions == UNKNOWN, UNKNOWN, self._newest() - versions)
            batch[Columns.POLICY_AGE] = in_batch_form(ages, batch, episodes)
        return batch

"""Connector that adds discounted returns-to-go."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from connectors.connector import ColumnDict, Connector
from connectors.learner.add_time_dimension_and_zero_pad import in_batch_form
from connectors.learner.step_returns import StepReturns
from episodes.columns import Columns
from episodes.pack import EpisodePack
from episodes.returns import discounted_returns
from episodes.returns.checks import check_fraction

__all__ = ["ComputeReturnsToGo"]


class ComputeReturnsToGo(Connector):
    """Connector that adds "returns_to_go" [B], for each step the discounted sum of rewards until its episode or chunk
    ends.

    Args:
        gamma: the discount factor.

    Raises:
        InvalidArgument: `gamma` is outside [0, 1].
    """

    writes = (Columns.RETURNS_TO_GO,)
    reads_tracks = True

    def __init__(
        self,
        input_observation_space: gym.Space | None = None,
        input_action_space: gym.Space | None = None,
        *,
        gamma: float = 0.99,
        name: str | None = None,
    ) -> None:
        self.gamma = check_fraction("gamma", gamma)
        super().__init__(input_observation_space, input_action_space, name=name)

    def __call__(self, *, batch: ColumnDict, episodes: EpisodePack, **kwargs: Any) -> ColumnDict:
        steps = StepReturns.of(batch, episodes)
        returns = discounted_returns(
            steps.rewards, steps.terminated, steps.truncated, gamma=self.gamma, offsets=steps.offsets
        )
        batch[Columns.RETURNS_TO_GO] = in_batch_form(returns, batch, episodes)
        return batch

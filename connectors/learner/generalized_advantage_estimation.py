"""Advantages (GAE) and value targets."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from connectors.connector import ColumnDict, Connector
from connectors.learner.add_time_dimension_and_zero_pad import all_in_batch_form
from connectors.learner.step_returns import StepReturns
from connectors.learner.values import ValueFunction
from connectors.views.pack_views import Seen
from episodes.columns import Columns
from episodes.pack import EpisodePack
from episodes.returns import gae
from episodes.returns.checks import check_fraction
from episodes.tracks.validation import checked_flag

__all__ = ["GeneralizedAdvantageEstimation"]

SMALLEST_DEVIATION = 1e-4  # that advantages are divided by


class GeneralizedAdvantageEstimation(Connector):
    """Adds "advantages" and "value_targets" [B], from the batch's rewards and values of all T + 1 observations.

    `rl_module.compute_values({"obs": [n, ...]}) -> [n]` runs once over them, in minibatches and without gradients (with
    padded rows in the batch: `{"obs": [r, m + 1, ...], "state_in": [r, ...], "seq_lens": [r]} -> [r, m + 1]`); no step
    is added to any episode. Terminated episodes end with value 0, truncated and cut ones with that of their last
    observation. Where the batch has rewards and endings, they are those of the batch. https://arxiv.org/abs/1506.02438

    Args:
        gamma: the discount.
        lambda_: how far advantages look past the value function.
        normalize: bring the advantages to mean 0 and deviation 1, over the real steps of the whole batch.
        minibatch_size: observations in one forward pass of the value function.
        with_values: add "vf_preds" [B] too, the values that the advantages were computed with.
    """

    writes = (Columns.ADVANTAGES, Columns.VALUE_TARGETS)
    reads_tracks = True

    def __init__(
        self,
        input_observation_space: gym.Space | None = None,
        input_action_space: gym.Space | None = None,
        *,
        gamma: float = 0.99,
        lambda_: float = 0.95,
        normalize: bool = False,
        minibatch_size: int = 8192,
        with_values: bool = False,
        name: str | None = None,
    ) -> None:
        self.gamma, self.lambda_ = check_fraction("gamma", gamma), check_fraction("lambda_", lambda_)
        self.normalize = checked_flag("normalize", normalize)
        self._values = ValueFunction(minibatch_size)
        self.with_values = checked_flag("with_values", with_values)
        if with_values:
            self.writes = (*self.writes, Columns.VF_PREDS)
        super().__init__(input_observation_space, input_action_space, name=name)

    def __call__(
        self,
        *,
        rl_module: Any = None,
        batch: ColumnDict,
        episodes: EpisodePack,
        seen: Seen | None = None,
        **kwargs: Any,
    ) -> ColumnDict:
        values = self._values.of_batch(rl_module, batch, episodes, seen)
        steps = StepReturns.of(batch, episodes)
        values = values[steps.observations]
        advantages, targets = gae(
            steps.rewards,
            values,
            steps.terminated,
            steps.truncated,
            gamma=self.gamma,
            lambda_=self.lambda_,
            offsets=steps.offsets,
        )
        advantages = standardized(advantages) if self.normalize else advantages
        columns = {Columns.ADVANTAGES: advantages, Columns.VALUE_TARGETS: targets}
        if self.with_values:
            lasts = steps.offsets[1:] + np.arange(len(steps.offsets) - 1)  # after which a sequence has no step
            columns[Columns.VF_PREDS] = np.delete(values, lasts)
        batch |= all_in_batch_form(columns, batch, episodes)
        return batch


def standardized(advantages: np.ndarray) -> np.ndarray:
    """The advantages with mean 0 and deviation 1; nearly equal ones are only centered."""
    if not advantages.size:
        return advantages
    with np.errstate(invalid="ignore"):  # of infinite ones none is a number, as a mean of NaN is none
        return (advantages - advantages.mean()) / max(float(advantages.std()), SMALLEST_DEVIATION)

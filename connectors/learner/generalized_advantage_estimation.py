"""`GeneralizedAdvantageEstimation`: connector that adds advantages (GAE) and value targets to a train batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gymnasium as gym
import numpy as np

from connectors.connector import ColumnDict, Connector
from connectors.learner.add_time_dimension_and_zero_pad import all_in_batch_form
from connectors.learner.step_returns import StepReturns
from connectors.learner.values import ValueFunction
from connectors.views.pack_views import PackViews
from episodes.columns import Columns
from episodes.pack import EpisodePack
from episodes.returns import gae
from episodes.returns.checks import check_fraction
from episodes.tracks.validation import checked_flag

if TYPE_CHECKING:
    from connectors.policy import Policy

__all__ = ["GeneralizedAdvantageEstimation"]

SMALLEST_DEVIATION = 1e-4  # smallest divisor of advantages


class GeneralizedAdvantageEstimation(Connector):
    """Connector that adds "advantages" and "value_targets" [B] by generalized advantage estimation (GAE).

    `rl_module.compute_values({"obs": [n, ...]}) -> [n]` runs once over all T + 1 observations, in minibatches and
    without gradients. With padded rows in the batch it gets `{"obs": [r, m + 1, ...], "state_in": [r, ...], "seq_lens":
    [r]}` and returns [r, m + 1]. Terminated episodes have value 0 at their end. Truncated and cut ones have the value
    of their last observation. Rewards and endings are those of the batch if it has them. Source:
    https://arxiv.org/abs/1506.02438

    Args:
        input_observation_space: space of the observations before this connector.
        input_action_space: space of the actions before this connector.
        gamma: the discount factor.
        lambda_: the parameter of GAE, from 0 (one-step) to 1 (Monte Carlo).
        normalize: scale the advantages of the whole batch to mean 0 and standard deviation 1.
        minibatch_size: number of observations in one forward pass of the value function.
        with_values: also add "vf_preds" [B], the values of the observations before the steps.
        name: name of the connector in its pipeline.

    Raises:
        InvalidArgument: `gamma` or `lambda_` is outside [0, 1], or `minibatch_size` is not an int of at least 1.
        WrongType: a flag is not a bool.
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
        rl_module: Policy | None = None,
        batch: ColumnDict,
        episodes: EpisodePack,
        pack_views: PackViews | None = None,
        **kwargs: object,
    ) -> ColumnDict:
        values = self._values.of_batch(rl_module, batch, episodes, pack_views)
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
        if self.normalize:
            advantages = self.normalized(advantages, targets, values, steps)
        columns = {Columns.ADVANTAGES: advantages, Columns.VALUE_TARGETS: targets}
        if self.with_values:
            lasts = steps.offsets[1:] + np.arange(len(steps.offsets) - 1)  # after which a sequence has no step
            columns[Columns.VF_PREDS] = np.delete(values, lasts)
        batch |= all_in_batch_form(columns, batch, episodes)
        return batch

    def normalized(
        self, advantages: np.ndarray, targets: np.ndarray, values: np.ndarray, steps: StepReturns
    ) -> np.ndarray:
        """Return the advantages [S] scaled to mean 0 and standard deviation 1. Override it to scale them in another
        way.

        Args:
            advantages: advantages of the steps [S].
            targets: value targets of the steps [S].
            values: values of the observations [S + n], T + 1 per episode.
            steps: rewards and endings of the n episodes.
        """
        return standardized(advantages)


def standardized(advantages: np.ndarray) -> np.ndarray:
    """Return advantages scaled to mean 0 and standard deviation 1. The divisor is at least 1e-4."""
    if not advantages.size:
        return advantages
    with np.errstate(invalid="ignore"):  # infinite advantages become NaN
        return (advantages - advantages.mean()) / max(float(advantages.std()), SMALLEST_DEVIATION)

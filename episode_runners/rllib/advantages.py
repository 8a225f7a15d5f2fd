"""Advantages with exactly RLlib's normalization."""

from __future__ import annotations

import numpy as np

from connectors.learner import GeneralizedAdvantageEstimation
from connectors.learner.generalized_advantage_estimation import SMALLEST_DEVIATION
from connectors.learner.step_returns import StepReturns

__all__ = ["RLlibAdvantages"]


class RLlibAdvantages(GeneralizedAdvantageEstimation):
    """Connector that adds the same advantages and value targets as RLlib's `GeneralAdvantageEstimation`.

    Advantages and targets of the steps are the same with any pipeline. RLlib's mean and standard deviation of the
    advantages also include its artificial step after each episode, whose target belongs to the next episode in the
    batch. They are computed in the same way here, so that losses are equal to RLlib's.
    """

    def normalized(
        self, advantages: np.ndarray, targets: np.ndarray, values: np.ndarray, steps: StepReturns
    ) -> np.ndarray:
        """Return the advantages [S] of all steps, normalized with RLlib's mean and standard deviation."""
        if not advantages.size:
            return advantages
        episodes = np.arange(len(steps.offsets) - 1)
        firsts, lasts = steps.offsets[1:-1], steps.offsets[1:] + episodes
        next_values = values[firsts + episodes[1:]]  # of each next episode's first observation
        next_targets = (1 - self.lambda_) * next_values + self.lambda_ * targets[firsts]
        artificial = np.append(self.gamma * next_targets, 0.0) - values[lasts]
        rows = np.concatenate([advantages, artificial])
        return ((advantages - rows.mean()) / max(float(rows.std()), SMALLEST_DEVIATION)).astype(advantages.dtype)

"""Deep Q-learning (Mnih et al., 2015, https://doi.org/10.1038/nature14236), optionally double, dueling, n-step and
prioritized.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from connectors.actor import Actor
from connectors.learner import LearnerPipeline
from episode_learners.algorithms.algorithm import MakeScheduler, Measured, split_actor
from episode_learners.algorithms.config_checks import count, flag, fraction
from episode_learners.algorithms.flat_optimizer import adam_optimizer
from episode_learners.algorithms.minibatches import after
from episode_learners.algorithms.replay_algorithm import DISCOUNTS, ReplayAlgorithm, ReplayConfig
from episode_learners.policies.q_policies import QPolicy
from episodes.columns import Columns
from episodes.errors import InvalidArgument, rejected_type

__all__ = ["DQN", "DQNConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DQNConfig(ReplayConfig):
    """Hyperparameters of deep Q-learning (`DQN`).

    Attributes:
        double: Double Q-learning: the policy chooses the next action, and the target network gives its Q-value
            (https://arxiv.org/abs/1509.06461).
        target_every: Gradient steps between two copies of the weights to the target network.
        epsilon_start: Probability of a random action in the first environment step.
        epsilon_end: Probability of a random action after `epsilon_steps`.
        epsilon_steps: Environment steps in which epsilon falls linearly from `epsilon_start` to `epsilon_end`.
    """

    max_gradient_norm: float | None = 10.0
    double: bool = flag(True)
    target_every: int = count(500)
    epsilon_start: float = fraction(1.0)
    epsilon_end: float = fraction(0.05)
    epsilon_steps: int = count(10_000)

    def __post_init__(self) -> None:
        ReplayConfig.__post_init__(self)
        if self.epsilon_end > self.epsilon_start:
            raise InvalidArgument(
                f"{type(self).__name__}: epsilon_end is {self.epsilon_end}, more than epsilon_start, which is "
                f"{self.epsilon_start}: epsilon comes down"
            )


class DQN(ReplayAlgorithm[DQNConfig]):
    """Deep Q-learning algorithm (DQN) for discrete actions. It learns off-policy, from transitions that any policy has
    recorded.

    Args:
        policy: the policy to train, or its actor. The algorithm changes its `epsilon`.
        config: hyperparameters; by default `DQNConfig()`.
        pipeline: the learner pipeline from episodes to a train batch, instead of the default pipeline. Its rewriters
            and views also apply to samples of a replay buffer.
        scheduler: function that returns the learning rate schedule of an optimizer, for instance `linear_decay(100)`.
        seed: seed of the order of minibatches.

    Raises:
        InvalidArgument: the policy is not a `QPolicy`, or is recurrent.
    """

    policy: QPolicy

    def __init__(
        self,
        policy: QPolicy | Actor,
        config: DQNConfig | None = None,
        *,
        pipeline: LearnerPipeline | None = None,
        scheduler: MakeScheduler | None = None,
        seed: int = 0,
    ) -> None:
        policy, actor = split_actor(policy)
        if not isinstance(policy, QPolicy):
            raise InvalidArgument(f"DQN trains a QPolicy, not a {rejected_type(policy, QPolicy)}")
        if policy.get_initial_state() and not self.stored_outputs:
            raise InvalidArgument(
                f"{type(self).__name__} learns from single transitions, and {type(policy).__name__} is recurrent: "
                "use R2D2"
            )
        config = config or DQNConfig()
        optimizer = adam_optimizer(policy.parameters(), config)
        options: dict[str, Any] = {"scheduler": scheduler, "seed": seed, "targets": {"policy": policy}}
        super().__init__(policy, config, actor, pipeline, optimizers={"policy": optimizer}, **options)
        self.num_gradient_steps = 0
        self.explore_after(0)

    def explore_after(self, num_env_steps: int) -> None:
        """Set the policy's epsilon (probability of a random action) to the value that the schedule has after
        `num_env_steps` environment steps.
        """
        done = min(1.0, num_env_steps / self.config.epsilon_steps)
        start, end = self.config.epsilon_start, self.config.epsilon_end
        self.policy.epsilon = start + done * (end - start)

    def _action_indices(self, minibatch: Mapping[str, Any]) -> Tensor:
        """Return the index of each taken action among all actions, int64 [B, 1], to select the action's Q-value."""
        chosen = minibatch[Columns.ACTIONS].long().unsqueeze(-1)
        return chosen - self.policy.start if self.policy.start else chosen

    def loss(self, minibatch: Mapping[str, Any], optimizer: str = "policy") -> tuple[Tensor, Measured]:
        values = self.policy(minibatch)["q_values"]  # [B, n]
        return self.loss_of_values(values, values.gather(-1, self._action_indices(minibatch)).squeeze(-1), minibatch)

    def loss_of_values(
        self, values: Tensor, chosen_values: Tensor, minibatch: Mapping[str, Any]
    ) -> tuple[Tensor, Measured]:
        """Return the TD loss of a minibatch, given the Q-values of all actions [B, n] and of the taken actions [B], and
        scalars to log.
        """
        targets = self.targets_of(minibatch)
        weights = minibatch.get(Columns.WEIGHTS)
        if weights is None:
            loss = functional.smooth_l1_loss(chosen_values, targets)
        else:
            loss = (functional.smooth_l1_loss(chosen_values, targets, reduction="none") * weights).mean()
        q_values = chosen_values.detach()
        if self.measures_rows:
            rows = {"first_value": q_values, "value_target": targets}
            self.measure_rows(minibatch, rows if weights is None else {**rows, Columns.WEIGHTS: weights})
        return loss, {"q_value": q_values.mean(), **self.measured_errors(q_values - targets)}

    def row_measurements_of(self, columns: dict[str, Tensor]) -> dict[str, Tensor]:
        losses = functional.smooth_l1_loss(columns["first_value"], columns["value_target"], reduction="none")
        weights = columns.pop(Columns.WEIGHTS, None)
        return {**columns, "loss": losses if weights is None else losses * weights}

    @torch.no_grad()
    def targets_of(self, minibatch: Mapping[str, Any]) -> Tensor:
        """Return the TD targets [B] of a minibatch: the n-step rewards plus the discounted Q-value of the next
        observation.
        """
        later = after(minibatch)
        values = cast(QPolicy, self._target("policy").module).q_values(later)
        if self.config.double:
            best = self.policy.q_values(later).argmax(-1, keepdim=True)
            value = values.gather(-1, best).squeeze(-1)
        else:
            value = values.amax(-1)
        return torch.addcmul(minibatch[Columns.REWARDS], minibatch[DISCOUNTS], value)

    def after_step(self) -> None:
        self.num_gradient_steps += 1
        if self.num_gradient_steps % self.config.target_every == 0:
            self._target("policy").copy(self.policy)

    def get_progress(self) -> dict[str, Any]:
        return {**super().get_progress(), "num_gradient_steps": self.num_gradient_steps}

    def set_progress(self, progress: dict[str, Any]) -> None:
        super().set_progress(progress)
        self.num_gradient_steps = progress["num_gradient_steps"]

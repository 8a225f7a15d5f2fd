"""Conservative Q-learning (Kumar et al., 2020, https://arxiv.org/abs/2006.04779) of bounded continuous actions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from connectors.actor import Actor
from connectors.learner import LearnerPipeline
from episode_learners.algorithms.algorithm import MakeScheduler, Measured
from episode_learners.algorithms.config_checks import count, not_negative
from episode_learners.algorithms.sac import SAC, SACConfig
from episode_learners.policies.soft_actor_critic import SACPolicy, values_of
from episodes.columns import Columns
from episodes.errors import InvalidArgument

__all__ = ["ContinuousCQL", "ContinuousCQLConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuousCQLConfig(SACConfig):
    """Hyperparameters of conservative Q-learning for continuous actions (`ContinuousCQL`).

    Attributes:
        conservatism: Weight of the conservative loss, which is added to the critics' loss (alpha in the paper).
        num_drawn: Uniform random actions per observation, and as many actions of the policy, that estimate the
            integral over all actions.
    """

    conservatism: float = not_negative(5.0)
    num_drawn: int = count(10)


class ContinuousCQL(SAC):
    """Conservative Q-learning for continuous actions: SAC with a second critic loss that lowers the Q-values of actions
    that are not in the data. It is the variant CQL(H) of the paper.

    Args:
        policy: the policy to train, or its actor.
        config: hyperparameters; by default `ContinuousCQLConfig()`.
        pipeline: the learner pipeline from episodes to a train batch, instead of the default pipeline. Its rewriters
            and views also apply to samples of a replay buffer.
        scheduler: function that returns the learning rate schedule of an optimizer, for instance `linear_decay(100)`.
        seed: seed of the actions that the losses sample, and of the order of minibatches.
    """

    config: ContinuousCQLConfig

    def __init__(
        self,
        policy: SACPolicy | Actor,
        config: ContinuousCQLConfig | None = None,
        *,
        pipeline: LearnerPipeline | None = None,
        scheduler: MakeScheduler | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(policy, config or ContinuousCQLConfig(), pipeline=pipeline, scheduler=scheduler, seed=seed)

    def _check_actions(self, batch: Mapping[str, Any]) -> None:
        super()._check_actions(batch)
        check_bounded(batch[Columns.ACTIONS])

    def loss_of_values(self, values: list[Tensor], minibatch: Mapping[str, Any]) -> tuple[Tensor, Measured]:
        """Return the critics' TD loss plus the conservative loss, given each critic's Q-values [B] of the taken
        actions, and scalars to log.
        """
        td_loss, measured = super().loss_of_values(values, minibatch)
        gaps = self.logsumexp_q(minibatch[Columns.OBS]) - torch.stack(values)  # [2, B]
        weights = minibatch.get(Columns.WEIGHTS)
        gap = (gaps if weights is None else gaps * weights).mean(-1)
        loss = td_loss + self.config.conservatism * gap.sum()
        return loss, {**measured, "td_loss": td_loss.detach(), "conservative_gap": gap.detach().mean()}

    def logsumexp_q(self, obs: Tensor) -> Tensor:
        """Estimate, for each of the two critics, the logarithm of the integral of exp(Q) over all actions, float
        [2, B].

        The estimate uses importance sampling with uniform actions and actions of the policy (appendix F of the
        paper).
        """
        actions, log_density = self._sample_actions(obs)  # [B, k, ...], [B, k]
        num_rows, num_drawn = log_density.shape
        q_values = values_of(self.policy.critics, obs.repeat_interleave(num_drawn, 0), actions.flatten(0, 1))
        by_critic = torch.stack(q_values).view(-1, num_rows, num_drawn)
        return (by_critic - log_density).logsumexp(-1) - math.log(num_drawn)

    @torch.no_grad()
    def _sample_actions(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Sample random actions [B, 2 * num_drawn, ...] in -1..1, one half uniformly and one half from the policy, and
        return them with their log-densities.
        """
        inputs = self.policy({Columns.OBS: obs})[Columns.ACTION_DIST_INPUTS]
        rows = inputs.unsqueeze(1).expand(-1, self.config.num_drawn, -1)
        actions, log_density = self.policy.squashed.draw(rows, self._action_generator())
        uniform = torch.empty_like(actions).uniform_(-1.0, 1.0, generator=self._action_generator())
        log_uniform = torch.full_like(log_density, -math.log(2.0) * actions[0, 0].numel())
        return torch.cat([uniform, actions], 1), torch.cat([log_uniform, log_density], 1)


def check_bounded(actions: np.ndarray | Tensor) -> None:
    """Raise `InvalidArgument` if an array or tensor of actions contains a number outside of -1..1."""
    largest = float(abs(actions).max()) if len(actions) else 0.0
    if largest > 1.0:
        raise InvalidArgument(
            f"ContinuousCQL: the data have an action of {largest:g}; the policy acts in -1..1, and its pipeline scales "
            "actions to the bounds of the action space: bring the actions of the data to -1..1 first"
        )

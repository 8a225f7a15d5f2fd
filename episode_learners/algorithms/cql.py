"""Conservative Q-learning (Kumar et al., 2020, https://arxiv.org/abs/2006.04779) of discrete actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from connectors.actor import Actor
from connectors.learner import LearnerPipeline
from episode_learners.algorithms.algorithm import MakeScheduler, Measured
from episode_learners.algorithms.config_checks import not_negative
from episode_learners.algorithms.dqn import DQN, DQNConfig
from episode_learners.policies.q_policies import QPolicy
from episodes.columns import Columns

__all__ = ["CQL", "CQLConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CQLConfig(DQNConfig):
    """Hyperparameters of conservative Q-learning for discrete actions (`CQL`).

    Attributes:
        conservatism: Weight of the conservative loss, which is added to DQN's loss (alpha in the paper).
    """

    conservatism: float = not_negative(1.0)


class CQL(DQN):
    """Conservative Q-learning for discrete actions: DQN with a second loss that lowers the Q-values of actions that are
    not in the data. It is the variant CQL(H) of the paper.

    Args:
        policy: the policy to train, or its actor. The algorithm changes its `epsilon`.
        config: hyperparameters; by default `CQLConfig()`.
        pipeline: the learner pipeline from episodes to a train batch, instead of the default pipeline. Its rewriters
            and views also apply to samples of a replay buffer.
        scheduler: function that returns the learning rate schedule of an optimizer, for instance `linear_decay(100)`.
        seed: seed of the order of minibatches.
    """

    config: CQLConfig

    def __init__(
        self,
        policy: QPolicy | Actor,
        config: CQLConfig | None = None,
        *,
        pipeline: LearnerPipeline | None = None,
        scheduler: MakeScheduler | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(policy, config or CQLConfig(), pipeline=pipeline, scheduler=scheduler, seed=seed)

    def loss_of_values(
        self, values: Tensor, chosen_values: Tensor, minibatch: Mapping[str, Any]
    ) -> tuple[Tensor, Measured]:
        """Return DQN's TD loss plus the conservative loss, given the Q-values of all actions [B, n] and of the taken
        actions [B], and scalars to log.
        """
        td_loss, measured = super().loss_of_values(values, chosen_values, minibatch)
        gaps = values.logsumexp(-1) - chosen_values  # [B]
        weights = minibatch.get(Columns.WEIGHTS)
        gap = (gaps if weights is None else gaps * weights).mean()
        loss = td_loss + self.config.conservatism * gap
        return loss, {**measured, "td_loss": td_loss.detach(), "conservative_gap": gap.detach()}

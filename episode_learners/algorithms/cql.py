"""Conservative Q-learning (Kumar et al., 2020, https://arxiv.org/abs/2006.04779) of discrete actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from connectors.learner import LearnerPipeline
from connectors.views import Views
from episode_learners.algorithms.algorithm import MakeScheduler, Measured
from episode_learners.algorithms.config_checks import check_numbers
from episode_learners.algorithms.dqn import DQN, DQNConfig
from episode_learners.policies.q_policies import QPolicy
from episodes.columns import Columns

__all__ = ["CQL", "CQLConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CQLConfig(DQNConfig):
    """The numbers of CQL."""

    conservatism: float = 1.0  # the weight of its own loss beside DQN's: alpha in the paper

    def __post_init__(self) -> None:
        DQNConfig.__post_init__(self)
        check_numbers(self, not_negative=("conservatism",))


class CQL(DQN):
    """DQN that also holds down what actions are worth which the data do not show: CQL(H) in the paper."""

    def __init__(
        self,
        policy: QPolicy,
        config: CQLConfig | None = None,
        *,
        views: Views | None = None,
        pipeline: LearnerPipeline | None = None,
        scheduler: MakeScheduler | None = None,
        seed: int = 0,
    ) -> None:
        config = config or CQLConfig()
        super().__init__(policy, config, views=views, pipeline=pipeline, scheduler=scheduler, seed=seed)
        self.conservatism = config.conservatism

    def loss_of_values(self, values: Tensor, taken: Tensor, minibatch: Mapping[str, Any]) -> tuple[Tensor, Measured]:
        loss, measured = super().loss_of_values(values, taken, minibatch)
        gaps = values.logsumexp(-1) - taken  # [B]
        weights = minibatch.get(Columns.WEIGHTS)
        gap = (gaps if weights is None else gaps * weights).mean()
        return loss + self.conservatism * gap, {**measured, "conservative_gap": gap.detach()}

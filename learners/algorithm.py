"""Algorithms: what makes a policy better out of episodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LinearLR, LRScheduler
from torch.optim.optimizer import Optimizer

from episodes.single_agent import SingleAgentEpisode
from learners.policy import Policy

__all__ = ["Algorithm", "linear_decay"]

MakeScheduler = Callable[[Optimizer], LRScheduler]


class Algorithm(nn.Module, ABC):
    """A policy, its optimizer, and how episodes become a train batch and a train batch a better policy.

    One `update` is `preprocess` (episodes to batch), `learn` (batch to new weights) and `postprocess` (whatever is due
    afterwards). `state_dict()` holds all that a resumed run needs: weights, optimizer, scheduler, random state, count.

    Args:
        policy: the policy, on its device already.
        optimizer: over the policy's parameters.
        scheduler: makes the learning rate's schedule, which moves once an update; none by default.
        seed: of the algorithm's own random draws.
    """

    def __init__(
        self, policy: Policy, optimizer: Optimizer, *, scheduler: MakeScheduler | None = None, seed: int = 0
    ) -> None:
        super().__init__()
        self.policy = policy
        self.optimizer = optimizer
        self.scheduler = scheduler(optimizer) if scheduler is not None else None
        self.generator = torch.Generator().manual_seed(seed)
        self.num_updates = 0

    @abstractmethod
    def preprocess(self, episodes: Sequence[SingleAgentEpisode]) -> dict[str, Any]:
        """The train batch {column: tensor [B, ...]} of a list of episodes or a pack, on the policy's device."""

    @abstractmethod
    def learn(self, batch: dict[str, Any]) -> dict[str, float]:
        """Change the weights by what the train batch says; returns metrics."""

    def postprocess(self, batch: dict[str, Any], metrics: dict[str, float]) -> None:
        """What is due after learning; nothing by default."""

    def update(self, episodes: Sequence[SingleAgentEpisode]) -> dict[str, float]:
        """Learn from a list of episodes or a pack; returns metrics. The episodes stay as they are."""
        batch = self.preprocess(episodes)
        metrics = self.learn(batch)
        metrics["learning_rate"] = float(self.optimizer.param_groups[0]["lr"])
        self.postprocess(batch, metrics)
        if self.scheduler is not None:
            self.scheduler.step()
        self.num_updates += 1
        return metrics

    def get_extra_state(self) -> dict[str, Any]:
        return {
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict() if self.scheduler is not None else None,
            "generator": self.generator.get_state(),
            "num_updates": self.num_updates,
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(deepcopy(state["optimizer"]))  # it would keep the tensors that it is given
        if self.scheduler is not None and state["scheduler"] is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self.generator.set_state(state["generator"].cpu())
        self.num_updates = state["num_updates"]


def linear_decay(num_updates: int) -> MakeScheduler:
    """A schedule that brings the learning rate down to 0 in equal steps over that many updates."""
    return partial(LinearLR, start_factor=1.0, end_factor=0.0, total_iters=num_updates)

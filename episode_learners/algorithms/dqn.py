"""Deep Q-learning (Mnih et al., 2015, https://doi.org/10.1038/nature14236): double, dueling, n-step, prioritized."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from connectors.learner import LearnerPipeline
from connectors.views import Views
from episode_learners.algorithms.algorithm import MakeScheduler, Measured
from episode_learners.algorithms.config_checks import check_numbers
from episode_learners.algorithms.flat_optimizer import FlatOptimizer, adam
from episode_learners.algorithms.minibatches import after
from episode_learners.algorithms.replay_algorithm import DISCOUNTS, ReplayAlgorithm, ReplayConfig
from episode_learners.networks.backpropagation import Layer, backpropagate, outputs_of
from episode_learners.policies.q_policies import QPolicy
from episodes.columns import Columns
from episodes.errors import InvalidArgument

__all__ = ["DQN", "DQNConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DQNConfig(ReplayConfig):
    """The numbers of DQN."""

    max_gradient_norm: float | None = 10.0
    double: bool = True  # the policy chooses, the target network says what it is worth: arxiv.org/abs/1509.06461
    target_every: int = 500  # gradient steps between two copies to the target network
    epsilon_start: float = 1.0  # the share of chance in the actions of the first step
    epsilon_end: float = 0.05
    epsilon_steps: int = 10_000  # environment steps in which it comes down, in equal steps

    def __post_init__(self) -> None:
        ReplayConfig.__post_init__(self)
        check_numbers(
            self,
            counts=("target_every", "epsilon_steps"),
            fractions=("epsilon_start", "epsilon_end"),
            flags=("double",),
        )
        if self.epsilon_end > self.epsilon_start:
            raise InvalidArgument(
                f"{type(self).__name__}: epsilon_end is {self.epsilon_end}, more than epsilon_start, which is "
                f"{self.epsilon_start}: epsilon comes down"
            )


class DQN(ReplayAlgorithm[DQNConfig]):
    """Learns what actions are worth from transitions of any policy."""

    policy: QPolicy

    def __init__(
        self,
        policy: QPolicy,
        config: DQNConfig | None = None,
        *,
        views: Views | None = None,
        pipeline: LearnerPipeline | None = None,
        scheduler: MakeScheduler | None = None,
        seed: int = 0,
    ) -> None:
        if not isinstance(policy, QPolicy):
            raise InvalidArgument(f"DQN trains a QPolicy, not a {type(policy).__name__}")
        if policy.get_initial_state() and not self.stored_outputs:
            raise InvalidArgument(
                f"{type(self).__name__} learns from single transitions, and {type(policy).__name__} has a memory: "
                "use R2D2"
            )
        config = config or DQNConfig()
        optimizer = FlatOptimizer(policy.parameters(), adam(config.learning_rate), max_norm=config.max_gradient_norm)
        options: dict[str, Any] = {"scheduler": scheduler, "seed": seed, "targets": {"policy": policy}}
        super().__init__(policy, config, views, pipeline, optimizers={"policy": optimizer}, **options)
        self.num_gradient_steps = 0
        self.explore_after(0)

    def explore_after(self, num_env_steps: int) -> None:
        """Let the policy's epsilon be what it is to be after so many steps of the environments."""
        done = min(1.0, num_env_steps / self.config.epsilon_steps)
        start, end = self.config.epsilon_start, self.config.epsilon_end
        vars(self.policy)["epsilon"] = start + done * (end - start)  # a module takes 3 us to set an attribute

    def backward(self, minibatch: Mapping[str, Any], optimizer: str = "policy", scale: float = 1.0) -> Measured:
        """See `Algorithm.backward`. Of a plain perceptron the gradient is written out, see `_backward`."""
        own, obs = type(self), minibatch[Columns.OBS]
        if own.loss is DQN.loss and own.loss_of_values is DQN.loss_of_values:
            layers = self.policy.plain_layers(obs)
            if layers is not None:
                return self._backward(layers, obs, minibatch, scale)
        return super().backward(minibatch, optimizer, scale)

    @torch.no_grad()
    def _backward(self, layers: list[Layer], obs: Tensor, minibatch: Mapping[str, Any], scale: float) -> Measured:
        """What `Algorithm.backward` does with `loss`: Huber's is as steep as the error is large, but at most 1."""
        later, num_rows = minibatch[Columns.NEXT_OBS], obs.shape[0]
        if self.config.double and type(self).targets_of is DQN.targets_of and later.dtype is obs.dtype:
            both = outputs_of(layers, torch.cat((obs, later)))  # in half the operations
            outputs = [obs, *[each[:num_rows] for each in both[1:]]]
            targets = self._rewards_and_values(minibatch, {Columns.OBS: later}, both[-1][num_rows:])
        else:
            outputs, targets = outputs_of(layers, obs), self.targets_of(minibatch)
        values, chosen, weights = outputs[-1], self._chosen(minibatch), minibatch.get(Columns.WEIGHTS)
        taken = values.gather(-1, chosen).squeeze(-1)
        errors = taken - targets
        slopes = errors.clamp(-1.0, 1.0)
        losses = torch.sub(errors, slopes, alpha=0.5).mul_(slopes)
        if weights is not None:
            losses, slopes = losses * weights, slopes * weights
        slopes *= scale / num_rows
        backpropagate(layers, outputs, torch.zeros_like(values).scatter_(-1, chosen, slopes.unsqueeze(-1)))
        return {"loss": losses.mean(), "q_value": taken.mean(), **self.measured_errors(errors)}

    def _chosen(self, minibatch: Mapping[str, Any]) -> Tensor:
        """The places [B, 1] of the taken actions among all."""
        chosen = minibatch[Columns.ACTIONS].long().unsqueeze(-1)
        return chosen - self.policy.start if self.policy.start else chosen

    def loss(self, minibatch: Mapping[str, Any], optimizer: str = "policy") -> tuple[Tensor, Measured]:
        values = self.policy(minibatch)["q_values"]  # [B, n]
        return self.loss_of_values(values, values.gather(-1, self._chosen(minibatch)).squeeze(-1), minibatch)

    def loss_of_values(self, values: Tensor, taken: Tensor, minibatch: Mapping[str, Any]) -> tuple[Tensor, Measured]:
        """The loss of what all actions [B, n] and the taken ones [B] are said to be worth, and what was measured."""
        targets = self.targets_of(minibatch)
        weights = minibatch.get(Columns.WEIGHTS)
        if weights is None:
            loss = functional.smooth_l1_loss(taken, targets)
        else:
            loss = (functional.smooth_l1_loss(taken, targets, reduction="none") * weights).mean()
        said = taken.detach()
        return loss, {"loss": loss.detach(), "q_value": said.mean(), **self.measured_errors(said - targets)}

    @torch.no_grad()
    def targets_of(self, minibatch: Mapping[str, Any], next_q_values: Tensor | None = None) -> Tensor:
        """What the taken actions turned out to be worth [B]: rewards, and the discounted value after them.

        Args:
            next_q_values: what the policy says [B, n] that all actions are worth then, where that is known already.
        """
        return self._rewards_and_values(minibatch, after(minibatch), next_q_values)

    def _rewards_and_values(
        self, minibatch: Mapping[str, Any], later: dict[str, Any], next_q_values: Tensor | None
    ) -> Tensor:
        """As `targets_of`, of what is seen later; where no gradients are recorded."""
        worth = cast(QPolicy, self._target("policy").module).q_values(later)
        if self.config.double:
            next_q_values = self.policy.q_values(later) if next_q_values is None else next_q_values
            value = worth.gather(-1, next_q_values.argmax(-1, keepdim=True)).squeeze(-1)
        else:
            value = worth.amax(-1)
        return torch.addcmul(minibatch[Columns.REWARDS], minibatch[DISCOUNTS], value)

    def after_step(self) -> None:
        vars(self)["num_gradient_steps"] += 1  # as in `explore_after`
        if self.num_gradient_steps % self.config.target_every == 0:
            self._target("policy").copy(self.policy)

    def get_progress(self) -> dict[str, Any]:
        return {**super().get_progress(), "num_gradient_steps": self.num_gradient_steps}

    def set_progress(self, progress: dict[str, Any]) -> None:
        super().set_progress(progress)
        self.num_gradient_steps = progress["num_gradient_steps"]

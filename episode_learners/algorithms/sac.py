"""Soft actor-critic (Haarnoja et al., 2018, https://arxiv.org/abs/1812.05905) with a learned temperature."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from connectors.actor import Actor
from connectors.learner import LearnerPipeline
from episode_learners.algorithms.algorithm import MakeScheduler, Measured, split_actor
from episode_learners.algorithms.config_checks import fraction, positive
from episode_learners.algorithms.flat_optimizer import adam_optimizer
from episode_learners.algorithms.replay_algorithm import DISCOUNTS, ReplayAlgorithm, ReplayConfig
from episode_learners.policies.soft_actor_critic import SACPolicy, lowest_of, values_of
from episodes.columns import Columns
from episodes.errors import InvalidArgument, rejected_type

__all__ = ["SAC", "SACConfig"]

_MEAN_LOG_DENSITY = "log_density"  # of the actions that the actor's loss has drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class SACConfig(ReplayConfig):
    """Hyperparameters of soft actor-critic (`SAC`).

    Attributes:
        learning_rate: Step size of the Adam optimizer of the critics, and by default of the others.
        actor_learning_rate: Step size of the actor's optimizer. None: `learning_rate`.
        temperature_learning_rate: Step size of the temperature's optimizer. None: `learning_rate`.
        tau: Fraction that the target critics move towards the critics after each gradient step.
        temperature: Weight of the entropy (alpha in the paper). None: it is learned.
        target_entropy: Entropy of the actions that a learned temperature aims at. None: minus the number of actions.
    """

    batch_size: int = 256
    actor_learning_rate: float | None = positive(None)
    temperature_learning_rate: float | None = positive(None)
    tau: float = fraction(0.005)
    temperature: float | None = positive(None)
    target_entropy: float | None = None

    def __post_init__(self) -> None:
        ReplayConfig.__post_init__(self)
        if None not in (self.temperature, self.target_entropy):
            raise InvalidArgument(
                f"{type(self).__name__}: target_entropy={self.target_entropy} is for a learned temperature, and "
                f"temperature={self.temperature} is fixed: give one of them"
            )


class SAC(ReplayAlgorithm[SACConfig]):
    """Soft actor-critic algorithm (SAC) for bounded continuous actions, with two critics. It learns off-policy, from
    transitions that any policy has recorded.

    Args:
        policy: the policy to train, or its actor.
        config: hyperparameters; by default `SACConfig()`.
        pipeline: the learner pipeline from episodes to a train batch, instead of the default pipeline. Its rewriters
            and views also apply to samples of a replay buffer.
        scheduler: function that returns the learning rate schedule of an optimizer, for instance `linear_decay(100)`.
        seed: seed of the actions that the losses sample, and of the order of minibatches.

    Raises:
        InvalidArgument: the policy is not a `SACPolicy`.
    """

    policy: SACPolicy

    def __init__(
        self,
        policy: SACPolicy | Actor,
        config: SACConfig | None = None,
        *,
        pipeline: LearnerPipeline | None = None,
        scheduler: MakeScheduler | None = None,
        seed: int = 0,
    ) -> None:
        policy, actor = split_actor(policy)
        if not isinstance(policy, SACPolicy):
            raise InvalidArgument(f"{type(self).__name__} trains a SACPolicy, not a {rejected_type(policy, SACPolicy)}")
        config = config or SACConfig()
        learned = config.temperature is None
        start = 0.0 if learned else math.log(config.temperature or 1.0)
        log_temperature = nn.Parameter(torch.tensor(start, device=policy.device))
        trained = {"critic": policy.critics.parameters(), "actor": policy.actor.parameters()}
        if learned:
            trained["temperature"] = iter([log_temperature])
        rates = {"actor": config.actor_learning_rate, "temperature": config.temperature_learning_rate}
        optimizers = {
            name: adam_optimizer(parameters, config, learning_rate=rates.get(name))
            for name, parameters in trained.items()
        }
        options: dict[str, Any] = {"scheduler": scheduler, "seed": seed, "targets": {"critics": policy.critics}}
        super().__init__(policy, config, actor, pipeline, optimizers=optimizers, **options)
        self.log_temperature = log_temperature
        self._noise_generator = torch.Generator(policy.device).manual_seed(seed)
        entropy = config.target_entropy
        self.target_entropy = -policy.squashed.num_inputs / 2 if entropy is None else entropy

    def loss(self, minibatch: Mapping[str, Any], optimizer: str) -> tuple[Tensor, Measured]:
        """Return the loss of the critics, the actor or the temperature, as `optimizer` names it, and scalars to log."""
        if optimizer == "critic":
            return self._critic_loss(minibatch)
        return self._actor_loss(minibatch) if optimizer == "actor" else self._temperature_loss(minibatch)

    def _critic_loss(self, minibatch: Mapping[str, Any]) -> tuple[Tensor, Measured]:
        """Return the TD loss of both critics for a minibatch, and scalars to log."""
        values = values_of(self.policy.critics, minibatch[Columns.OBS], minibatch[Columns.ACTIONS])
        return self.loss_of_values(values, minibatch)

    def loss_of_values(self, values: list[Tensor], minibatch: Mapping[str, Any]) -> tuple[Tensor, Measured]:
        """Return the TD loss of both critics, given each critic's Q-values [B] of the taken actions, and scalars to
        log.
        """
        targets = self.targets_of(minibatch)
        weights = minibatch.get(Columns.WEIGHTS)
        if weights is None:
            loss = torch.stack([functional.mse_loss(value, targets) for value in values]).sum()
        else:
            loss = torch.stack([(weights * (value - targets).square()).mean() for value in values]).sum()
        if self.measures_rows:
            rows = {f"critic {i}": value for i, value in enumerate(values)} | {"value_target": targets}
            self.measure_rows(minibatch, rows if weights is None else {**rows, Columns.WEIGHTS: weights})
        measured = {"q_value": values[0].detach().mean()}
        return loss, measured | self.measured_errors(values[0] - targets)

    def row_measurements_of(self, columns: dict[str, Tensor]) -> dict[str, Tensor]:
        targets, weights = columns.pop("value_target"), columns.pop(Columns.WEIGHTS, None)
        losses = torch.stack([(value - targets).square() for value in columns.values()]).sum(0)
        measured = {"first_value": columns["critic 0"], "value_target": targets}
        return {**measured, "loss": losses if weights is None else losses * weights}

    @torch.no_grad()
    def targets_of(self, minibatch: Mapping[str, Any]) -> Tensor:
        """Return the TD targets [B] of a minibatch: the rewards plus the discounted soft value (Q-value plus entropy
        term) of the next observation.
        """
        later = minibatch[Columns.NEXT_OBS]
        inputs = self.policy({Columns.OBS: later})[Columns.ACTION_DIST_INPUTS]
        actions, log_density = self.policy.squashed.draw(inputs, self._action_generator())
        q_value = lowest_of(cast(nn.ModuleList, self._target("critics").module), later, actions)
        value = q_value - self.log_temperature.exp() * log_density
        return torch.addcmul(minibatch[Columns.REWARDS], minibatch[DISCOUNTS], value)

    def _actor_loss(self, minibatch: Mapping[str, Any]) -> tuple[Tensor, Measured]:
        """Return the loss of the actor, which is low if its sampled actions have high Q-values and high entropy, and
        scalars to log. The sampled log-density is stored in the minibatch for the temperature's loss.
        """
        obs, critics = minibatch[Columns.OBS], self.policy.critics
        inputs = self.policy(minibatch)[Columns.ACTION_DIST_INPUTS]
        actions, log_density = self.policy.squashed.draw(inputs, self._action_generator())
        trained = self.optimizers["critic"].parameters
        for parameter in trained:  # the actor's step does not need the critics' gradients
            parameter.requires_grad_(False)
        try:
            q_value = lowest_of(critics, obs, actions)
        finally:
            for parameter in trained:
                parameter.requires_grad_(True)
        loss = (self.log_temperature.detach().exp() * log_density - q_value).mean()
        mean_density = log_density.detach().mean()
        minibatch[_MEAN_LOG_DENSITY] = mean_density  # type: ignore[index]  # minibatches are dicts, read next for the temperature
        return loss, {"entropy": -mean_density}

    def _temperature_loss(self, minibatch: Mapping[str, Any]) -> tuple[Tensor, Measured]:
        """Return the loss of the temperature (weight of the entropy), which moves the policy's entropy towards the
        target entropy, and scalars to log.
        """
        loss = -self.log_temperature * (minibatch[_MEAN_LOG_DENSITY] + self.target_entropy)
        return loss, {"temperature": self.log_temperature.detach().exp()}

    def _action_generator(self) -> torch.Generator:
        """Return the random generator with which the losses sample actions.

        If the policy has moved to another device, a new generator is made there.
        """
        if self._noise_generator.device != self.policy.device:
            seed = int(torch.randint(2**62, (), generator=self.generator, device="cpu"))
            self._noise_generator = torch.Generator(self.policy.device).manual_seed(seed)
        return self._noise_generator

    def get_progress(self) -> dict[str, Any]:
        return {**super().get_progress(), "noise": self._action_generator().get_state()}

    def set_progress(self, progress: dict[str, Any]) -> None:
        super().set_progress(progress)
        self._action_generator().set_state(progress["noise"].cpu())

    def after_step(self) -> None:
        trained = self.optimizers["critic"].vector
        self._target("critics").polyak_update(self.policy.critics, self.config.tau, trained)

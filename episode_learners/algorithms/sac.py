"""Soft actor-critic (Haarnoja et al., 2018, https://arxiv.org/abs/1812.05905), with a temperature that is learned."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from connectors.learner import LearnerPipeline
from connectors.views import Views
from episode_learners.algorithms.algorithm import MakeScheduler, Measured
from episode_learners.algorithms.config_checks import check_numbers
from episode_learners.algorithms.flat_optimizer import FlatOptimizer, adam
from episode_learners.algorithms.replay_algorithm import DISCOUNTS, ReplayAlgorithm, ReplayConfig
from episode_learners.networks.backpropagation import Layer, backpropagate, gradient_of_inputs, outputs_of
from episode_learners.networks.layers import flat
from episode_learners.policies.soft_actor_critic import SACPolicy, lowest_of, values_of
from episodes.columns import Columns
from episodes.errors import InvalidArgument

__all__ = ["SAC", "SACConfig"]

_LOG_DENSITY = "log_density"  # of the actions that the actor's loss has drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class SACConfig(ReplayConfig):
    """The numbers of SAC."""

    batch_size: int = 256
    tau: float = 0.005  # how far the target critics go towards the critics after each gradient step
    temperature: float | None = None  # None: it is learned
    target_entropy: float | None = None  # of the actions, where the temperature is learned; None: minus their number

    def __post_init__(self) -> None:
        ReplayConfig.__post_init__(self)
        check_numbers(self, positive=("temperature",), fractions=("tau",))
        if None not in (self.temperature, self.target_entropy):
            raise InvalidArgument(
                f"{type(self).__name__}: target_entropy is {self.target_entropy}, which a learned temperature has; "
                f"with temperature={self.temperature} it is not learned: give one of them"
            )


class SAC(ReplayAlgorithm[SACConfig]):
    """Learns bounded continuous actions from transitions of any policy, by what two critics say of them."""

    policy: SACPolicy

    def __init__(
        self,
        policy: SACPolicy,
        config: SACConfig | None = None,
        *,
        views: Views | None = None,
        pipeline: LearnerPipeline | None = None,
        scheduler: MakeScheduler | None = None,
        seed: int = 0,
    ) -> None:
        if not isinstance(policy, SACPolicy):
            raise InvalidArgument(f"{type(self).__name__} trains a SACPolicy, not a {type(policy).__name__}")
        config = config or SACConfig()
        learned = config.temperature is None
        log_temperature = nn.Parameter(torch.tensor(0.0 if learned else math.log(config.temperature or 1.0)))
        log_temperature.data = log_temperature.data.to(policy.device)
        trained = {"critic": policy.critics.parameters(), "actor": policy.actor.parameters()}
        if learned:
            trained["temperature"] = iter([log_temperature])
        make, norm = adam(config.learning_rate), config.max_gradient_norm
        optimizers = {name: FlatOptimizer(those, make, max_norm=norm) for name, those in trained.items()}
        options: dict[str, Any] = {"scheduler": scheduler, "seed": seed, "targets": {"critics": policy.critics}}
        super().__init__(policy, config, views, pipeline, optimizers=optimizers, **options)
        self.log_temperature = log_temperature
        self._drawn = torch.Generator(policy.device).manual_seed(seed)
        entropy = config.target_entropy
        self.target_entropy = -policy.squashed.num_inputs / 2 if entropy is None else entropy

    def backward(self, minibatch: Mapping[str, Any], optimizer: str, scale: float = 1.0) -> Measured:
        """See `Algorithm.backward`. Of plain perceptrons the gradients are written out."""
        own = type(self)
        is_written = own.loss is SAC.loss and optimizer != "temperature"
        layers = self.policy.plain_layers(minibatch[Columns.OBS]) if is_written else None
        if layers is not None:
            actor, *critics = layers
            if optimizer == "critic" and own.loss_of_values is SAC.loss_of_values:
                return self._critic_backward(critics, minibatch, scale)
            if optimizer == "actor":
                return self._actor_backward(actor, critics, minibatch, scale)
        return super().backward(minibatch, optimizer, scale)

    @torch.no_grad()
    def _critic_backward(self, critics: list[list[Layer]], minibatch: Mapping[str, Any], scale: float) -> Measured:
        """What `Algorithm.backward` does with `_critic_loss`: the mean of squares."""
        targets, weights = self.targets_of(minibatch).unsqueeze(-1), minibatch.get(Columns.WEIGHTS)
        both = torch.cat([minibatch[Columns.OBS], flat(minibatch[Columns.ACTIONS], 1)], -1)
        outputs = [outputs_of(layers, both) for layers in critics]
        errors = [each[-1] - targets for each in outputs]  # [B, 1]
        loss = torch.zeros((), dtype=targets.dtype, device=targets.device)
        for layers, each, error in zip(critics, outputs, errors, strict=True):
            weighed = error if weights is None else error * weights.unsqueeze(-1)
            loss += (weighed * error).mean()
            backpropagate(layers, each, weighed * (2.0 * scale / len(error)))
        measured = {"critic_loss": loss, "q_value": outputs[0][-1].mean()}
        return measured | self.measured_errors(errors[0].squeeze(-1))

    def _actor_backward(
        self, actor: list[Layer], critics: list[list[Layer]], minibatch: Mapping[str, Any], scale: float
    ) -> Measured:
        """What `Algorithm.backward` does with `_actor_loss`: autograd knows the few numbers of the distribution."""
        obs = minibatch[Columns.OBS]
        with torch.no_grad():
            outputs, temperature = outputs_of(actor, obs), self.log_temperature.exp()
        inputs = outputs[-1].detach().requires_grad_()
        actions, log_density = self.policy.squashed.draw(inputs, self._noise())
        with torch.no_grad():
            both = torch.cat([obs, flat(actions, 1)], -1)
            said = [outputs_of(layers, both) for layers in critics]
            worth = torch.cat([each[-1] for each in said], -1)  # [B, 2]
            lowest, mean_density = worth.amin(-1, keepdim=True), log_density.mean()
            shares = (worth == lowest).to(worth.dtype)
            shares *= -scale / len(obs) / shares.sum(-1, keepdim=True)  # [B, 2] of the loss, by what each critic says
            slopes = [gradient_of_inputs(*one) for one in zip(critics, said, shares.split(1, -1), strict=True)]
            slope = sum(slopes)[:, obs.shape[1] :].reshape(actions.shape)  # type: ignore[index]
            temperature_share = (temperature * (scale / len(obs))).expand_as(log_density)
        torch.autograd.backward((actions, log_density), (slope, temperature_share))
        with torch.no_grad():
            backpropagate(actor, outputs, inputs.grad)  # type: ignore[arg-type]
            loss = temperature * mean_density - lowest.mean()
        minibatch[_LOG_DENSITY] = mean_density  # type: ignore[index]  # a minibatch is a dict of its own
        return {"actor_loss": loss, "entropy": -mean_density}

    def loss(self, minibatch: Mapping[str, Any], optimizer: str) -> tuple[Tensor, Measured]:
        if optimizer == "critic":
            return self._critic_loss(minibatch)
        return self._actor_loss(minibatch) if optimizer == "actor" else self._temperature_loss(minibatch)

    def _critic_loss(self, minibatch: Mapping[str, Any]) -> tuple[Tensor, Measured]:
        values = values_of(self.policy.critics, minibatch[Columns.OBS], minibatch[Columns.ACTIONS])
        return self.loss_of_values(values, minibatch)

    def loss_of_values(self, values: list[Tensor], minibatch: Mapping[str, Any]) -> tuple[Tensor, Measured]:
        """The loss of what each critic says [B] that the taken actions are worth, and what was measured."""
        targets = self.targets_of(minibatch)
        weights = minibatch.get(Columns.WEIGHTS)
        if weights is None:
            loss = torch.stack([functional.mse_loss(value, targets) for value in values]).sum()
        else:
            loss = torch.stack([(weights * (value - targets).square()).mean() for value in values]).sum()
        measured = {"critic_loss": loss.detach(), "q_value": values[0].detach().mean()}
        return loss, measured | self.measured_errors(values[0] - targets)

    @torch.no_grad()
    def targets_of(self, minibatch: Mapping[str, Any]) -> Tensor:
        """What the taken actions turned out to be worth [B]: rewards, and the soft value after them."""
        later = minibatch[Columns.NEXT_OBS]
        inputs = self.policy({Columns.OBS: later})[Columns.ACTION_DIST_INPUTS]
        actions, log_density = self.policy.squashed.draw(inputs, self._noise())
        worth = lowest_of(cast(nn.ModuleList, self._target("critics").module), later, actions)
        value = worth - self.log_temperature.exp() * log_density
        return torch.addcmul(minibatch[Columns.REWARDS], minibatch[DISCOUNTS], value)

    def _actor_loss(self, minibatch: Mapping[str, Any]) -> tuple[Tensor, Measured]:
        obs, critics = minibatch[Columns.OBS], self.policy.critics
        inputs = self.policy(minibatch)[Columns.ACTION_DIST_INPUTS]
        actions, log_density = self.policy.squashed.draw(inputs, self._noise())
        critics.requires_grad_(False)  # their own gradients are of no use here
        try:
            worth = lowest_of(critics, obs, actions)
        finally:  # also where Ctrl-C comes in between
            critics.requires_grad_(True)
        loss = (self.log_temperature.detach().exp() * log_density - worth).mean()
        mean_density = log_density.detach().mean()
        minibatch[_LOG_DENSITY] = mean_density  # type: ignore[index]  # a minibatch is a dict of its own
        return loss, {"actor_loss": loss.detach(), "entropy": -mean_density}

    def _temperature_loss(self, minibatch: Mapping[str, Any]) -> tuple[Tensor, Measured]:
        loss = -self.log_temperature * (minibatch[_LOG_DENSITY] + self.target_entropy)
        return loss, {"temperature": self.log_temperature.detach().exp()}

    def _noise(self) -> torch.Generator:
        """The random numbers of the actions that losses draw, on the policy's device."""
        if self._drawn.device != self.policy.device:
            seed = int(torch.randint(2**62, (), generator=self.generator))
            self._drawn = torch.Generator(self.policy.device).manual_seed(seed)
        return self._drawn

    def get_progress(self) -> dict[str, Any]:
        return {**super().get_progress(), "noise": self._noise().get_state()}

    def set_progress(self, progress: dict[str, Any]) -> None:
        super().set_progress(progress)
        self._noise().set_state(progress["noise"].cpu())

    def after_step(self) -> None:
        trained = self.optimizers["critic"].vector  # which its step has just looked over
        self._target("critics").polyak_update(self.policy.critics, self.config.tau, trained)

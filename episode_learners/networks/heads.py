"""Output layers of policies, which map features to the inputs of an action distribution, and action masks."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from connectors.distributions import ActionDistribution, DiagonalGaussian, SquashedGaussian
from episode_learners.networks.layers import ACTION_GAIN, HIDDEN_GAIN, in_full_precision, linear

__all__ = ["ACTION_MASK", "GaussianHead", "action_head", "legal_inputs", "state_values"]

ACTION_MASK = "action_mask"  # the key of Dict observations that says which actions are legal


class GaussianHead(nn.Module):
    """Output layer for Gaussian actions: means computed from the features, and trainable log standard deviations that
    do not depend on the features.
    """

    def __init__(self, num_features: int, num_actions: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.mean = linear(num_features, num_actions, ACTION_GAIN, generator)
        self.log_std = nn.Parameter(torch.zeros(num_actions))

    def forward(self, features: Tensor) -> Tensor:
        mean = self.mean(features)
        return torch.cat([mean, self.log_std.expand_as(mean)], dim=-1)


def action_head(
    num_features: int, distribution: ActionDistribution, generator: torch.Generator | None = None
) -> nn.Module:
    """Return the policy's output layer, which maps features to inputs of an action distribution.

    Features are [..., num_features], and inputs [..., num_inputs]. `generator` makes the random initial weights.
    None means torch's global generator.
    """
    if isinstance(distribution, (DiagonalGaussian, SquashedGaussian)):
        return GaussianHead(num_features, distribution.num_inputs // 2, generator)
    has_layers = isinstance(distribution, nn.Module)  # of its own, which begin nearly uniform
    return linear(num_features, distribution.num_inputs, HIDDEN_GAIN if has_layers else ACTION_GAIN, generator)


def state_values(critic: nn.Module, features: Tensor) -> Tensor:
    """Return the values [...] in float32 that the output layer `critic` computes from features [..., k]."""
    return in_full_precision(critic(features)).squeeze(-1)


def legal_inputs(distribution: ActionDistribution, inputs: Tensor, obs: object) -> Tensor:
    """Return distribution inputs [..., num_inputs] in float32, changed so that actions which the observations'
    "action_mask" forbids have probability 0.
    """
    inputs = in_full_precision(inputs)
    if isinstance(obs, Mapping) and ACTION_MASK in obs:
        return distribution.masked(inputs, obs[ACTION_MASK])
    return inputs

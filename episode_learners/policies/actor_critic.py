"""Actor-critic policies that are not recurrent: with perceptrons, encoders of any observation space, or a
transformer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from connectors.distributions import ActionDistribution
from episode_learners.networks.context import ContextEncoder
from episode_learners.networks.encoders import encoder_for
from episode_learners.networks.heads import ACTION_MASK, action_head, legal_inputs, state_values
from episode_learners.networks.layers import VALUE_GAIN, flat, flat_size, hidden_layers, in_full_precision, linear
from episode_learners.policies.policy import Policy
from episodes.columns import Columns
from episodes.history import HistorySpaces
from episodes.tracks import nested

__all__ = ["EncoderPolicy", "MLPPolicy", "TransformerPolicy"]


class MLPPolicy(Policy):
    """Actor-critic policy with two separate perceptrons (multilayer networks), one for actions and one for values, over
    flattened observations.

    Args:
        observation_space: space of the policy's input, a Box.
        action_space: the environment's action space.
        hidden_sizes: sizes of the hidden layers of both perceptrons.
        activation: class of the activations.
        distribution: the action distribution; by default that of the action space, see `Policy`.
        generator: random generator of the initial weights.

    Raises:
        InvalidArgument: the observation space is not a Box.
    """

    def __init__(
        self,
        observation_space: gym.Space,
        action_space: gym.Space,
        *,
        hidden_sizes: Sequence[int] = (64, 64),
        activation: type[nn.Module] = nn.Tanh,
        distribution: ActionDistribution | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(observation_space, action_space, distribution)
        sizes = (flat_size(observation_space), *hidden_sizes)
        self.actor = nn.Sequential(
            *hidden_layers(sizes, activation, generator), action_head(sizes[-1], self.distribution, generator)
        )
        self.critic = nn.Sequential(
            *hidden_layers(sizes, activation, generator), linear(sizes[-1], 1, VALUE_GAIN, generator)
        )

    def forward(self, batch: Mapping[str, Any], explore: bool | None = None) -> dict[str, Any]:
        obs = flat(batch[Columns.OBS], 1)
        outputs = {Columns.ACTION_DIST_INPUTS: in_full_precision(self.actor(obs))}
        if explore is None:
            outputs[Columns.VF_PREDS] = state_values(self.critic, obs)
        return outputs

    def compute_values(self, batch: Mapping[str, Any]) -> Tensor:
        return state_values(self.critic, flat(batch[Columns.OBS], 1))


class EncoderPolicy(Policy):
    """Actor-critic policy for observations of any space. One shared encoder feeds an output layer for actions and one
    for values.

    See `episode_learners.networks.encoder_for` for the encoders. If observations are a Dict with an "action_mask"
    in the form of the logits, illegal actions are never taken.

    Args:
        observation_space: space of the policy's input.
        action_space: the environment's action space.
        hidden_sizes: sizes of the encoder's hidden layers.
        activation: class of the activations.
        distribution: the action distribution; by default that of the action space, see `Policy`.
        generator: random generator of the initial weights.
    """

    def __init__(
        self,
        observation_space: gym.Space,
        action_space: gym.Space,
        *,
        hidden_sizes: Sequence[int] = (64, 64),
        activation: type[nn.Module] = nn.ReLU,
        distribution: ActionDistribution | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(observation_space, action_space, distribution)
        self.body = encoder_for(observation_space, hidden_sizes, activation, generator)
        self.actor = action_head(self.body.num_features, self.distribution, generator)
        self.critic = linear(self.body.num_features, 1, VALUE_GAIN, generator)

    def forward(self, batch: Mapping[str, Any], explore: bool | None = None) -> dict[str, Any]:
        """Return the distribution inputs of a batch of observations. While learning (`explore=None`), also return the
        values.
        """
        obs = batch[Columns.OBS]
        features = self.body(obs)
        outputs = {Columns.ACTION_DIST_INPUTS: legal_inputs(self.distribution, self.actor(features), obs)}
        if explore is None:
            outputs[Columns.VF_PREDS] = state_values(self.critic, features)
        return outputs

    def compute_values(self, batch: Mapping[str, Any]) -> Tensor:
        return state_values(self.critic, self.body(batch[Columns.OBS]))


class TransformerPolicy(Policy):
    """Actor-critic policy that attends to the last k observations and actions by a transformer. It has no recurrent
    state.

    Args:
        observation_space: space of the pipeline with the view `TransformerContext`. Its first axis has the k steps.
        action_space: the environment's action space.
        size: number of features of a token.
        num_heads: number of attention heads.
        num_layers: number of transformer blocks.
        distribution: the action distribution; by default that of the action space, see `Policy`.
        generator: random generator of the initial weights.
    """

    def __init__(
        self,
        observation_space: gym.Space,
        action_space: gym.Space,
        *,
        size: int = 64,
        num_heads: int = 2,
        num_layers: int = 1,
        distribution: ActionDistribution | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(observation_space, action_space, distribution)
        action_size = HistorySpaces(None, action_space).flat_actions.size
        self.body = ContextEncoder(observation_space, action_size, size, num_heads, num_layers, generator)
        self.actor = action_head(size, self.distribution, generator)
        self.critic = linear(size, 1, VALUE_GAIN, generator)

    def forward(self, batch: Mapping[str, Any], explore: bool | None = None) -> dict[str, Any]:
        """Return the distribution inputs of a batch of observations. While learning (`explore=None`), also return the
        values.
        """
        features, obs = self.body(batch), batch[Columns.OBS]
        if isinstance(obs, Mapping) and ACTION_MASK in obs:
            obs = {ACTION_MASK: nested.map_leaves(lambda leaf: leaf[:, -1], obs[ACTION_MASK])}  # the newest one
        outputs = {Columns.ACTION_DIST_INPUTS: legal_inputs(self.distribution, self.actor(features), obs)}
        if explore is None:
            outputs[Columns.VF_PREDS] = state_values(self.critic, features)
        return outputs

    def compute_values(self, batch: Mapping[str, Any]) -> Tensor:
        return state_values(self.critic, self.body(batch))

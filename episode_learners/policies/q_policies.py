"""Policies that take the action with the highest Q-value, and explore epsilon-greedily."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, log, log1p
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from episode_learners.networks.encoders import encoder_for
from episode_learners.networks.heads import ACTION_MASK, legal_inputs
from episode_learners.networks.layers import VALUE_GAIN, in_full_precision, linear
from episode_learners.networks.recurrent_encoders import LSTMMemory
from episode_learners.policies.policy import Policy
from episodes.columns import Columns
from episodes.tracks.nested import first_leaf, map_leaves
from episodes.tracks.space_kinds import SpaceKind, choices_of, is_dict, kind_of, rejected_space

__all__ = ["LSTMQPolicy", "QPolicy"]


class QPolicy(Policy):
    """Policy for discrete actions that computes the Q-value of each action, and takes the action with the highest one
    (epsilon-greedily while exploring).

    An encoder maps observations of any space to features, and a linear layer maps these to Q-values. With
    `explore=True` the policy takes a uniform random action with probability `epsilon`, else the action with the highest
    Q-value. Recorded log-probabilities include this choice. With `explore=False` it is greedy.

    Args:
        observation_space: space of the policy's input.
        action_space: the environment's action space, a Discrete.
        hidden_sizes: sizes of the encoder's hidden layers.
        activation: class of the activations.
        dueling: whether Q-values are the sum of a state value and advantages (Wang et al., 2016,
            https://arxiv.org/abs/1511.06581).
        epsilon: initial probability of a random action, 0..1.
        body: a module from observations to features [..., body.num_features], instead of the encoder of the observation
            space.
        generator: random generator of the initial weights.

    Attributes:
        epsilon: probability of a random action, 0..1; the algorithm changes it during training.

    Raises:
        InvalidArgument: the action space is not Discrete.
    """

    def __init__(
        self,
        observation_space: gym.Space,
        action_space: gym.Space,
        *,
        hidden_sizes: Sequence[int] = (64, 64),
        activation: type[nn.Module] = nn.ReLU,
        dueling: bool = False,
        epsilon: float = 1.0,
        body: nn.Module | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        if kind_of(action_space) is not SpaceKind.DISCRETE:
            name = type(self).__name__
            raise rejected_space(name, action_space, "a Discrete action space", "take a policy that has other actions")
        super().__init__(observation_space, action_space)
        self.epsilon = epsilon
        self.has_mask = is_dict(observation_space) and ACTION_MASK in observation_space.spaces
        self.start, self.num_actions = map(int, choices_of(action_space))
        self.body: Any = encoder_for(observation_space, hidden_sizes, activation, generator) if body is None else body
        num_features = self.body.num_features
        self.head = linear(num_features, self.num_actions, VALUE_GAIN, generator)
        self.value = linear(num_features, 1, VALUE_GAIN, generator) if dueling else None

    def q_values(self, batch: Mapping[str, Any]) -> Tensor:
        """Return the Q-values [B, n] of all actions for a batch of observations. Actions that the "action_mask" forbids
        have minus infinity.
        """
        obs = batch[Columns.OBS]
        return self.compute_masked_q_values(self.body(obs), obs)

    def compute_masked_q_values(self, features: Tensor, obs: object) -> Tensor:
        """Return the Q-values [..., n] of all actions, given features [..., k] and the observations they come from.
        Actions that the "action_mask" forbids have minus infinity.
        """
        return legal_inputs(self.distribution, self.unmasked_q_values(features), obs)

    def unmasked_q_values(self, features: Tensor) -> Tensor:
        """Return the Q-values [..., n] of all actions, given features [..., k]. No action mask is applied."""
        outputs = in_full_precision(self.head(features))
        if self.value is None:
            return outputs
        return in_full_precision(self.value(features)) + outputs - outputs.mean(-1, keepdim=True)

    def forward(self, batch: Mapping[str, Any], explore: bool | None = None) -> dict[str, Any]:
        return self.outputs_of(self.q_values(batch), explore)

    def outputs_of(self, values: Tensor, explore: bool | None) -> dict[str, Tensor]:
        """Return the policy's outputs, given Q-values [..., n]: the Q-values for learning (`explore=None`), or
        distribution inputs for acting.
        """
        if explore is None:
            return {"q_values": values}
        return {Columns.ACTION_DIST_INPUTS: self.epsilon_greedy(values) if explore else values}

    @property
    def random_action_probability(self) -> float:  # type: ignore[override]
        """Probability with which the policy takes a uniform random action (see `connectors.Policy`). It is 0 for
        subclasses that explore in another way.
        """
        kind = type(self)
        is_plain = kind.forward is QPolicy.forward and kind.epsilon_greedy is QPolicy.epsilon_greedy
        return self.epsilon if is_plain else 0.0

    def epsilon_greedy(self, values: Tensor) -> Tensor:
        """Return the log-probabilities [B, n] of actions under an epsilon-greedy policy, given Q-values [B, n]. Illegal
        actions have probability 0.
        """
        if self.has_mask:
            legal = values > -inf
            chances = legal * (self.epsilon / legal.sum(-1, keepdim=True))
            best = values.argmax(-1, keepdim=True)
            return chances.scatter_add(-1, best, torch.full_like(values[..., :1], 1 - self.epsilon)).log()
        by_chance = self.epsilon / self.num_actions
        other_logit = log(by_chance) if by_chance else -inf
        best = log1p(by_chance - self.epsilon) if by_chance < 1 else 0.0
        return torch.full_like(values, other_logit).scatter_(-1, values.argmax(-1, keepdim=True), best)

    def get_extra_state(self) -> dict[str, float]:
        return {"epsilon": self.epsilon}

    def set_extra_state(self, state: dict[str, float]) -> None:
        self.epsilon = state["epsilon"]


class LSTMQPolicy(QPolicy):
    """Recurrent `QPolicy`: an encoder and an LSTM compute the Q-values of sequences of observations [B, T, ...].

    Args:
        observation_space: space of the policy's input.
        action_space: the environment's action space, a Discrete.
        hidden_sizes: sizes of the hidden layers before the LSTM.
        state_size: size of the LSTM's state.
        activation: class of the activations.
        dueling: see `QPolicy`.
        epsilon: see `QPolicy`.
        generator: random generator of the initial weights.
    """

    def __init__(
        self,
        observation_space: gym.Space,
        action_space: gym.Space,
        *,
        hidden_sizes: Sequence[int] = (64,),
        state_size: int = 64,
        activation: type[nn.Module] = nn.ReLU,
        dueling: bool = False,
        epsilon: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> None:
        memory = LSTMMemory(observation_space, hidden_sizes, state_size, activation, generator)
        options: dict[str, Any] = {"dueling": dueling, "epsilon": epsilon, "generator": generator}
        super().__init__(observation_space, action_space, body=memory, **options)

    def get_initial_state(self) -> dict[str, Any]:
        return self.body.initial_state()

    def forward(self, batch: Mapping[str, Any], explore: bool | None = None) -> dict[str, Any]:
        features, state = self.body(batch[Columns.OBS], batch[Columns.STATE_IN])
        return {
            **self.outputs_of(self.compute_masked_q_values(features, batch[Columns.OBS]), explore),
            Columns.STATE_OUT: state,
        }

    def unrolled(self, obs: object, state: Mapping[str, Tensor], first: Tensor) -> Tensor:
        """Run the LSTM over sequences of observations [B, W, ...] from recurrent states [B, ...], and return the
        Q-values [B, W, n].

        A sequence begins in the column `first` [B]; earlier columns are ignored. The Q-value is minus infinity
        if the "action_mask" forbids an action.
        """
        num_rows, width = first_leaf(obs).shape[:2]
        rows, columns = (torch.arange(count, device=first.device) for count in (num_rows, width))
        index = rows[:, None], (columns + first[:, None]) % width
        features, _ = self.body(map_leaves(lambda leaf: leaf[index], obs), state)
        return self.compute_masked_q_values(features[rows[:, None], (columns - first[:, None]) % width], obs)

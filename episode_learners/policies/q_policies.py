"""Policies that know what each action is worth, and act greedily by it but for a share of chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, log, log1p
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from episode_learners.networks.backpropagation import Layer, PlainLayers, outputs_of
from episode_learners.networks.encoders import FlatEncoder, encoder_for
from episode_learners.networks.heads import ACTION_MASK, legal_inputs
from episode_learners.networks.layers import VALUE_GAIN, linear, whole
from episode_learners.networks.recurrent_encoders import LSTMMemory
from episode_learners.policies.policy import Policy
from episodes.columns import Columns
from episodes.errors import InvalidArgument
from episodes.tracks.nested import first_leaf, map_leaves

__all__ = ["LSTMQPolicy", "QPolicy"]


class QPolicy(Policy):
    """Says what each of n actions is worth: an encoder of observations of any space, and a layer.

    Acting with `explore` it is epsilon-greedy: with probability `epsilon` any action is drawn, else the best is taken;
    recorded log-probabilities are those of that choice. Without `explore` it takes the best.

    Args:
        dueling: the worth of an action is a value of the state and its advantage (Wang et al., 2016,
            https://arxiv.org/abs/1511.06581).
        body: what gives features [..., body.num_features] of observations; by default the encoder of their space, with
            `hidden_sizes` and `activation`.

    Attributes:
        epsilon: 0..1, set by the algorithm as it goes along.
    """

    _plain = PlainLayers((), ())  # what was found at the last look

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
        if not isinstance(action_space, gym.spaces.Discrete):
            raise InvalidArgument(f"{type(self).__name__} chooses one of n actions; {action_space} is not Discrete")
        super().__init__(observation_space, action_space)
        self.epsilon = epsilon
        self.has_mask = isinstance(observation_space, gym.spaces.Dict) and ACTION_MASK in observation_space.spaces
        self.start, self.num_actions = int(action_space.start), int(action_space.n)
        self.body: Any = encoder_for(observation_space, hidden_sizes, activation, generator) if body is None else body
        num_features = self.body.num_features
        self.head = linear(num_features, self.num_actions, VALUE_GAIN, generator)
        self.value = linear(num_features, 1, VALUE_GAIN, generator) if dueling else None

    def q_values(self, batch: Mapping[str, Any]) -> Tensor:
        """What each action is worth, [B, n]; minus infinity where the observations' "action_mask" forbids it."""
        obs = batch[Columns.OBS]
        layers = None if torch.is_grad_enabled() else self.plain_layers(obs, learned=False)
        if layers is not None:  # calling a module takes 4 us
            return whole(outputs_of(layers, obs)[-1])
        return self.compute_masked_q_values(self.body(obs), obs)

    def compute_masked_q_values(self, features: Tensor, obs: Any) -> Tensor:
        """What each action is worth [..., n] of features [..., k]; minus infinity where the observations forbid it."""
        return legal_inputs(self.distribution, self.worth_of(features), obs)

    def worth_of(self, features: Tensor) -> Tensor:
        """What each action is worth [..., n] of features [..., k]."""
        worth = whole(self.head(features))
        if self.value is None:
            return worth
        return whole(self.value(features)) + worth - worth.mean(-1, keepdim=True)

    def plain_layers(self, obs: Any, *, learned: bool = True) -> list[Layer] | None:
        """The layers from such observations [B, k] to values [B, n]; None where there is more to it than layers.

        Args:
            learned: whether all of them are to be learned, and to have gradients to add to.
        """
        if type(obs) is not Tensor or obs.ndim != 2:
            return None
        plain = self._plain
        if not plain.are_there:
            plain = vars(self)["_plain"] = self._looked_at()
        return plain.now(obs.dtype, learned=learned)

    def _looked_at(self) -> PlainLayers:
        body = self.body
        if type(self) is QPolicy and type(body) is FlatEncoder and body.num_axes == 1 and self.value is None:
            return PlainLayers((self, body), (*body, self.head))
        return PlainLayers((self,), ())

    def forward(self, batch: Mapping[str, Any], explore: bool | None = None) -> dict[str, Any]:
        return self.told(self.q_values(batch), explore)

    def told(self, values: Tensor, explore: bool | None) -> dict[str, Tensor]:
        """What `forward` says of the worth [..., n] of all actions."""
        if explore is None:
            return {"q_values": values}
        return {Columns.ACTION_DIST_INPUTS: self.epsilon_greedy(values) if explore else values}

    @property
    def random_action_probability(self) -> float:  # type: ignore[override]
        """See `connectors.Policy`; 0 for classes that explore in a way of their own."""
        own = type(self)
        is_plain = own.forward is QPolicy.forward and own.epsilon_greedy is QPolicy.epsilon_greedy
        return self.epsilon if is_plain else 0.0

    def epsilon_greedy(self, values: Tensor) -> Tensor:
        """Log-probabilities [B, n]; none but legal actions are drawn by chance."""
        if self.has_mask:
            legal = values > -inf
            chances = legal * (self.epsilon / legal.sum(-1, keepdim=True))
            best = values.argmax(-1, keepdim=True)
            return chances.scatter_add(-1, best, torch.full_like(values[..., :1], 1 - self.epsilon)).log()
        by_chance = self.epsilon / self.num_actions
        other = log(by_chance) if by_chance else -inf
        best = log1p(by_chance - self.epsilon) if by_chance < 1 else 0.0
        return torch.full_like(values, other).scatter_(-1, values.argmax(-1, keepdim=True), best)

    def get_extra_state(self) -> dict[str, float]:
        return {"epsilon": self.epsilon}

    def set_extra_state(self, state: dict[str, float]) -> None:
        self.epsilon = state["epsilon"]


class LSTMQPolicy(QPolicy):
    """A `QPolicy` with a memory: an encoder and an LSTM, over observations [B, T, ...]."""

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
            **self.told(self.compute_masked_q_values(features, batch[Columns.OBS]), explore),
            Columns.STATE_OUT: state,
        }

    def unrolled(self, obs: Any, state: Mapping[str, Tensor], first: Tensor) -> Tensor:
        """What each action is worth [B, W, n] at observations [B, W, ...], begun with states [B, ...].

        A row begins in the column `first` [B]; what stands before it is not looked at. Minus infinity where the
        observations' "action_mask" forbids an action.
        """
        num_rows, width = first_leaf(obs).shape[:2]
        rows, columns = (torch.arange(count, device=first.device) for count in (num_rows, width))
        here = rows[:, None], (columns + first[:, None]) % width
        features, _ = self.body(map_leaves(lambda leaf: leaf[here], obs), state)
        return self.compute_masked_q_values(features[rows[:, None], (columns - first[:, None]) % width], obs)

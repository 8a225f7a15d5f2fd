"""`ContextEncoder`: a transformer over the last k observations and actions, which the view `TransformerContext`
provides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional

from episode_learners.networks.encoders import encoder_for
from episode_learners.networks.layers import HIDDEN_GAIN, linear
from episodes.columns import Columns
from episodes.errors import InvalidArgument
from episodes.tracks.space_kinds import is_box, is_nested, map_space, parts_of, rejected_space

__all__ = ["ContextEncoder", "step_space"]


class ContextEncoder(nn.Module):
    """Transformer that encodes the last k observations and actions as features [B, size].

    The inputs are "obs" [B, k, ...], "past_actions" [B, k, D] and "attention_mask" [B, k]. A token is an
    observation, the action before it, and its position. Missing observations are not attended to. The output is that of
    the newest token.

    Args:
        space: space of "obs" with its axis of k steps, the pipeline's `observation_space`.
        action_size: D, the size of a past action.
        size: number of features of a token.
        num_heads: number of attention heads.
        num_layers: number of blocks.
        generator: random generator of the initial weights.

    Raises:
        InvalidArgument: `size` is not a multiple of `num_heads`, or the space has no axis of steps.
    """

    def __init__(
        self,
        space: gym.Space,
        action_size: int,
        size: int = 64,
        num_heads: int = 2,
        num_layers: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if size % num_heads:
            raise InvalidArgument(f"size={size} is not a multiple of num_heads={num_heads}")
        k, observation_space = step_space(space)
        self.num_features = size
        self.observation_encoder = encoder_for(observation_space, (size,), nn.ReLU, generator)
        self.action_layer = linear(action_size, size, 1.0, generator)
        self.position_embeddings = nn.Parameter(torch.empty(k, size).normal_(0.0, 0.02, generator=generator))
        self.blocks = nn.ModuleList(Block(size, num_heads, generator) for _ in range(num_layers))
        self.norm = nn.LayerNorm(size)

    def forward(self, batch: Mapping[str, Any]) -> Tensor:
        """Return the features [B, size] of the newest observation in each row, which attend to the earlier observations
        and actions.
        """
        tokens = (
            self.observation_encoder(batch[Columns.OBS])
            + self.action_layer(batch["past_actions"])
            + self.position_embeddings
        )
        is_observed = batch["attention_mask"].bool()[:, None, None, :]  # [B, heads, query, key]
        for block in self.blocks:
            tokens = block(tokens, is_observed)
        return self.norm(tokens[:, -1])


class Block(nn.Module):
    """Transformer block with residual connections: self-attention and a two-layer perceptron, applied to tokens
    [B, k, size].
    """

    def __init__(self, size: int, num_heads: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.before_attention, self.before_layers = nn.LayerNorm(size), nn.LayerNorm(size)
        self.query_key_value = linear(size, 3 * size, 1.0, generator)  # queries, keys and values
        self.output_layer = linear(size, size, 1.0, generator)
        self.expand = linear(size, 2 * size, HIDDEN_GAIN, generator)
        self.contract = linear(2 * size, size, 1.0, generator)

    def forward(self, tokens: Tensor, is_observed: Tensor) -> Tensor:
        projected = self.query_key_value(self.before_attention(tokens)).unflatten(-1, (3, self.num_heads, -1))
        queries, keys, values = projected.permute(2, 0, 3, 1, 4)  # [B, heads, k, size / heads] each
        answers = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=is_observed)
        tokens = tokens + self.output_layer(answers.transpose(1, 2).flatten(2))
        return tokens + self.contract(functional.gelu(self.expand(self.before_layers(tokens))))


def step_space(space: gym.Space) -> tuple[int, gym.Space]:
    """Split the observation space of a `TransformerContext`: return its number of steps k, and the space of a single
    observation.

    Raises:
        InvalidArgument: the space has no axis of steps.
    """
    if is_nested(space) and space.spaces:
        first = next(iter(parts_of(space).values()))
        return step_space(first)[0], map_space(lambda part: step_space(part)[1], space)
    if not is_box(space) or not space.shape:
        advice = (
            "put TransformerContext into the env-to-module pipeline and give the policy the pipeline's "
            "observation_space"
        )
        raise rejected_space("observation_space", space, "a Box with an axis of steps", advice)
    return space.shape[0], spaces.Box(space.low[0], space.high[0], space.shape[1:], space.dtype)  # type: ignore[arg-type]

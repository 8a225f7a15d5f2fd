"""Policies: what turns a batch of observations into action distributions and values.

A policy sees one shape of data only, a batch `{column: tensor}`, and answers with another one. It never samples:
drawing actions from `action_dist_inputs` is the runner's business, so the same call serves acting and learning.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import torch
from torch import nn

from connectors.actor import ActingState, compute_action
from connectors.distributions import ActionDistribution, distribution_for
from episodes.tracks.policy_box import env_space_of

__all__ = ["Policy"]


class Policy(nn.Module, ABC):
    """A `connectors.Policy` that is a network: all that pipelines and runners may ask, and what algorithms ask besides.

    One that advantages are computed with has `compute_values(batch)` too: values [B] of `obs` [B, ...] (with a memory
    [B, T] of [B, T, ...] and `state_in` [B, ...]). Others need none.

    Args:
        observation_space: of what it sees, the env-to-module pipeline's `observation_space`.
        action_space: the environment's, or that of recorded episodes (the environment's is taken from it).
        distribution: what its outputs describe, the action space's own by default; `distribution_for(action_space,
            squashed=True)`, an `Autoregressive` one, or one of yours.
    """

    distribution: ActionDistribution
    random_action_probability: float = 0.0  # see `connectors.Policy`

    def __init__(
        self, observation_space: gym.Space, action_space: gym.Space, distribution: ActionDistribution | None = None
    ) -> None:
        super().__init__()
        self.pipeline_fingerprint: dict[str, Any] | None = None  # see connectors.fingerprint
        self.register_state_dict_post_hook(_give_fingerprint)
        self.register_load_state_dict_pre_hook(_take_fingerprint)
        self.observation_space = observation_space
        self.action_space = env_space_of(action_space)
        self.distribution = distribution_for(action_space) if distribution is None else distribution

    @abstractmethod
    def forward(self, batch: Mapping[str, Any], explore: bool | None = None) -> dict[str, Any]:
        """`action_dist_inputs` [B, num_inputs] of a batch with `obs` [B, ...].

        With `explore` a bool the policy is acting, and says only what acting needs; with None it is learning, and
        whatever its algorithm learns from comes along, such as `vf_preds` [B]. One with a memory takes and gives
        `[B, T, ...]`, and a `state_out` [B, ...] for the `state_in` [B, ...] of the batch.
        """

    def get_initial_state(self) -> dict[str, Any]:
        """The state at an episode's start, nested arrays without a batch axis; empty for a policy without a memory."""
        return {}

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def compute_action(
        self, observation: Any, state: ActingState | None = None, **options: Any
    ) -> tuple[Any, ActingState]:
        """Return the action for one observation, ready for `env.step`, and the state for the episode's next call.

        The policy acts through the default pipelines. If it was trained in others, use `connectors.Actor`. See
        `Actor.act` for the options `explore` and `reward`.
        """
        return compute_action(self, observation, state, **options)


def _give_fingerprint(policy: Any, state: Any, prefix: str, metadata: dict[str, Any]) -> None:
    """Let a state dict say in which pipelines the weights were trained; its keys stay what they are."""
    if policy.pipeline_fingerprint is not None:
        metadata["pipeline_fingerprint"] = policy.pipeline_fingerprint


def _take_fingerprint(policy: Any, state: Any, prefix: str, metadata: dict[str, Any], *rest: Any) -> None:
    """Take what the state dict says of it, if it says anything."""
    if "pipeline_fingerprint" in metadata:
        policy.pipeline_fingerprint = metadata["pipeline_fingerprint"]

"""Policies: what turns a batch of observations into action distributions and values.

A policy sees one shape of data only, a batch `{column: tensor}`, and answers with another one. It never samples:
drawing actions from `action_dist_inputs` is the runner's business, so the same call serves acting and learning.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from connectors.distributions import ActionDistribution, distribution_for
from episodes.columns import Columns
from episodes.errors import InvalidArgument

__all__ = ["Policy"]


class Policy(nn.Module, ABC):
    """A `connectors.Policy` that is a network: all that pipelines and runners may ask, and what algorithms ask besides.

    One that advantages are computed with has `compute_values(batch)` too: values [B] of `obs` [B, ...] (with a memory
    [B, T] of [B, T, ...] and `state_in` [B, ...]). Others need none.
    """

    def __init__(self, observation_space: gym.Space, action_space: gym.Space) -> None:
        super().__init__()
        self.pipeline_fingerprint: dict[str, Any] | None = None  # see connectors.fingerprint
        self.register_state_dict_post_hook(_give_fingerprint)
        self.register_load_state_dict_pre_hook(_take_fingerprint)
        self.observation_space = observation_space
        self.action_space = action_space
        self.distribution: ActionDistribution = distribution_for(action_space)

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

    def compute_action(self, observation: Any, *, explore: bool = False) -> Any:
        """The action, as numpy, for one observation without a batch axis: drawn with `explore`, else the likeliest.

        By hand, for policies without a memory; runners go through their pipelines. The action is the distribution's
        own, not yet brought into the bounds of a Box.
        """
        if self.get_initial_state():
            raise InvalidArgument(
                f"compute_action: {type(self).__name__} carries a state; sample with a runner instead."
            )
        obs = torch.as_tensor(np.asarray(observation), dtype=torch.float32, device=self.device)[None]
        with torch.no_grad():
            inputs = self({Columns.OBS: obs}, explore=explore)[Columns.ACTION_DIST_INPUTS]
        actions = self.distribution.sample(inputs) if explore else self.distribution.mode(inputs)
        return _first_row(actions)


def _give_fingerprint(policy: Any, state: Any, prefix: str, metadata: dict[str, Any]) -> None:
    """Let a state dict say in which pipelines the weights were trained; its keys stay what they are."""
    if policy.pipeline_fingerprint is not None:
        metadata["pipeline_fingerprint"] = policy.pipeline_fingerprint


def _take_fingerprint(policy: Any, state: Any, prefix: str, metadata: dict[str, Any], *rest: Any) -> None:
    """Take what the state dict says of it, if it says anything."""
    if "pipeline_fingerprint" in metadata:
        policy.pipeline_fingerprint = metadata["pipeline_fingerprint"]


def _first_row(actions: Any) -> Any:
    if isinstance(actions, dict):
        return {key: _first_row(part) for key, part in actions.items()}
    if isinstance(actions, tuple):
        return tuple(_first_row(part) for part in actions)
    return actions[0].cpu().numpy()

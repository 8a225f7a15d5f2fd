"""`Policy`: base class of policies that are torch modules.

A policy maps a batch `{column: tensor}` to a dict of outputs. It never samples actions. Pipelines sample them from
`action_dist_inputs`, so the same call serves acting and learning.
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
    """Base class of policies (torch modules) with all members that runners and algorithms need. Subclasses implement
    `forward`.

    Algorithms with advantages also need `compute_values(batch)`: values [B] of `obs` [B, ...], or for a recurrent
    policy [B, T] of [B, T, ...] and `state_in` [B, ...].

    Args:
        observation_space: space of the policy's input, the env-to-module pipeline's `observation_space`.
        action_space: the environment's action space, or that of recorded episodes.
        distribution: action distribution; by default that of the action space. Others are
            `distribution_for(action_space, squashed=True)`, an `Autoregressive`, or your own.
    """

    distribution: ActionDistribution
    random_action_probability: float = 0.0  # see `connectors.Policy`

    def __init__(
        self, observation_space: gym.Space, action_space: gym.Space, distribution: ActionDistribution | None = None
    ) -> None:
        super().__init__()
        self.pipeline_fingerprint: dict[str, Any] | None = None  # see connectors.fingerprint
        self.register_state_dict_post_hook(_save_fingerprint)
        self.register_load_state_dict_pre_hook(_load_fingerprint)
        self.observation_space = observation_space
        self.action_space = env_space_of(action_space)
        self.distribution = distribution_for(action_space) if distribution is None else distribution

    @abstractmethod
    def forward(self, batch: Mapping[str, Any], explore: bool | None = None) -> dict[str, Any]:
        """Map a batch of observations "obs" [B, ...] to a dict of outputs with the distribution inputs
        `action_dist_inputs` [B, num_inputs].

        Args:
            batch: columns [B, ...]. A recurrent policy gets and returns [B, T, ...], and returns `state_out` [B, ...]
                for `state_in` [B, ...].
            explore: a bool while acting, when only the outputs for acting are needed. None while learning, when outputs
                of the loss are needed too, such as `vf_preds` [B].
        """

    def get_initial_state(self) -> dict[str, Any]:
        """Return the recurrent state at the start of an episode: nested arrays without a batch axis. It is empty for a
        policy that is not recurrent.
        """
        return {}

    def get_state(self) -> dict[str, Any]:
        """Return the weights of the policy, as `state_dict()` does. RLlib calls this method."""
        return self.state_dict()

    @property
    def device(self) -> torch.device:
        """Device of the policy's parameters."""
        return next(self.parameters()).device

    def compute_action(
        self, observation: object, state: ActingState | None = None, **options: Any
    ) -> tuple[Any, ActingState]:
        """Return the action for a single observation, ready for `env.step`, and a state to pass to the next call in the
        episode.

        The policy acts through the default pipelines. If it was trained with others, use `connectors.Actor`.
        See `Actor.act` for the options `explore` and `reward`.
        """
        return compute_action(self, observation, state, **options)


def _save_fingerprint(policy: Policy, state: object, prefix: str, metadata: dict[str, Any]) -> None:
    """Add the policy's pipeline fingerprint (settings of the pipelines of its training) to the metadata of a state dict
    that is being created. This is a torch hook.
    """
    if policy.pipeline_fingerprint is not None:
        metadata["pipeline_fingerprint"] = policy.pipeline_fingerprint


def _load_fingerprint(
    policy: Policy, state: object, prefix: str, metadata: dict[str, Any], *hook_arguments: object
) -> None:
    """Set the policy's pipeline fingerprint (settings of the pipelines of its training) from the metadata of a state
    dict that is being loaded. This is a torch hook.
    """
    if "pipeline_fingerprint" in metadata:
        policy.pipeline_fingerprint = metadata["pipeline_fingerprint"]

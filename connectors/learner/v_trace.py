"""Connector that adds V-trace advantages and value targets, which correct for data of older policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gymnasium as gym
import numpy as np
import torch

from connectors.column_parts import joined
from connectors.connector import ColumnDict, Connector
from connectors.learner.add_time_dimension_and_zero_pad import all_in_batch_form
from connectors.learner.step_returns import StepReturns, real_steps
from connectors.learner.values import ValueFunction, on_host
from connectors.policy import distribution_of, module_of, seen_columns
from connectors.tensors import NumpyToTensor
from connectors.views.pack_views import PackViews
from episodes.columns import Columns
from episodes.errors import InvalidArgument
from episodes.pack import EpisodePack
from episodes.returns import vtrace
from episodes.returns.checks import check_fraction
from episodes.tracks import nested
from episodes.tracks.validation import checked_number

if TYPE_CHECKING:
    from connectors.policy import Policy

__all__ = ["VTrace"]


class VTrace(Connector):
    """Connector that adds "advantages" and "value_targets" [B] by V-trace, which corrects for data of older policies.

    The importance ratios compare `rl_module` with the recorded "action_logp". Values and probabilities are computed in
    minibatches without gradients. Source: https://arxiv.org/abs/1802.01561

    Args:
        input_observation_space: space of the observations before this connector.
        input_action_space: space of the actions before this connector.
        gamma: the discount factor.
        lambda_: weight of corrections beyond the next step, from 0 to 1.
        clip_rho: largest ratio in the value targets.
        clip_pg_rho: largest ratio in the advantages.
        minibatch_size: number of observations in one forward pass.
        name: name of the connector in its pipeline.

    Raises:
        InvalidArgument: neither the policy nor the pipeline nor the episodes determine the action distribution.
    """

    reads = (Columns.OBS, Columns.ACTIONS, Columns.ACTION_LOGP)
    writes = (Columns.ADVANTAGES, Columns.VALUE_TARGETS)
    reads_tracks = True

    def __init__(
        self,
        input_observation_space: gym.Space | None = None,
        input_action_space: gym.Space | None = None,
        *,
        gamma: float = 0.99,
        lambda_: float = 1.0,
        clip_rho: float = 1.0,
        clip_pg_rho: float = 1.0,
        minibatch_size: int = 8192,
        name: str | None = None,
    ) -> None:
        self.gamma, self.lambda_ = check_fraction("gamma", gamma), check_fraction("lambda_", lambda_)
        self.clip_rho = checked_number("clip_rho", clip_rho, 0.0)
        self.clip_pg_rho = checked_number("clip_pg_rho", clip_pg_rho, 0.0)
        self._values = ValueFunction(minibatch_size)
        super().__init__(input_observation_space, input_action_space, name=name)

    def __call__(
        self,
        *,
        rl_module: Policy | None = None,
        batch: ColumnDict,
        episodes: EpisodePack,
        pack_views: PackViews | None = None,
        **kwargs: object,
    ) -> ColumnDict:
        steps = StepReturns.of(batch, episodes)
        ratios = np.exp(self._log_probs(rl_module, batch, episodes) - real_steps(batch, Columns.ACTION_LOGP))
        advantages, targets = vtrace(
            steps.rewards,
            self._values.of_batch(rl_module, batch, episodes, pack_views)[steps.observations],
            steps.terminated,
            steps.truncated,
            ratios,
            gamma=self.gamma,
            lambda_=self.lambda_,
            clip_rho=self.clip_rho,
            clip_pg_rho=self.clip_pg_rho,
            offsets=steps.offsets,
        )
        columns = {Columns.ADVANTAGES: advantages, Columns.VALUE_TARGETS: targets}
        batch |= all_in_batch_form(columns, batch, episodes)
        return batch

    def _log_probs(self, rl_module: Policy | None, batch: ColumnDict, pack: EpisodePack) -> np.ndarray:
        """Return the log-probabilities [S] of the batch's actions under the current policy, computed in minibatches."""
        if rl_module is None:
            raise InvalidArgument(f"{self.name} needs the policy; call the learner pipeline with rl_module=policy")
        action_space = self.input_action_space
        distribution = distribution_of(rl_module, pack.action_space if action_space is None else action_space)
        if distribution is None:
            raise InvalidArgument(f"{self.name} needs the action space; give it to the pipeline")
        columns = {name: joined(column) for name, column in seen_columns(batch).items()}
        to_device = NumpyToTensor(device=module_of(rl_module).device)
        logp = joined(batch[Columns.ACTION_LOGP])
        step = max(self._values.minibatch_size // (logp.shape[1] if logp.ndim > 1 else 1), 1)
        parts = []
        for start in range(0, len(logp), step):
            part = to_device.to_tensors(nested.take(columns, slice(start, start + step)))
            with torch.no_grad():
                outputs = rl_module(part)
                inputs, actions = outputs[Columns.ACTION_DIST_INPUTS].float(), part[Columns.ACTIONS]
                if Columns.LOSS_MASK in part:  # actions of padding may be outside of the distribution
                    real = part[Columns.LOSS_MASK]
                    inputs, actions = inputs[real], nested.map_leaves(lambda leaf, real=real: leaf[real], actions)
                parts.append(distribution.log_prob(inputs, actions))
        return on_host(parts)

"""IMPALA (Espeholt et al., 2018, https://arxiv.org/abs/1802.01561): actor-critic with off-policy corrections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from connectors.actor import Actor
from connectors.learner.pipeline import learner_pipeline
from connectors.pipeline import ConnectorPipeline
from connectors.policy import check_interface, module_of
from episode_learners.algorithms.acting_pipelines import check_recorded_alike
from episode_learners.algorithms.algorithm import (
    Algorithm,
    MakeScheduler,
    Measured,
    split_actor,
    stored_inputs,
    tensors_of,
)
from episode_learners.algorithms.config import EpochConfig
from episode_learners.algorithms.config_checks import count, fraction, not_negative, positive
from episode_learners.algorithms.explained_variance import explained_variance
from episode_learners.algorithms.flat_optimizer import adam_optimizer
from episode_learners.algorithms.minibatches import after
from episode_learners.policies.policy import Policy
from episodes.columns import Columns
from episodes.errors import InvalidArgument, UnknownKey
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks.nested import map_leaves

__all__ = ["IMPALA", "IMPALAConfig", "compute_v_trace"]

_REQUIRED_MEMBERS = ("parameters", "device", "distribution", "compute_values", "observation_space", "action_space")
_REQUIRED_COLUMNS = (
    Columns.OBS,
    Columns.NEXT_OBS,
    Columns.ACTIONS,
    Columns.REWARDS,
    Columns.TERMINATEDS,
    Columns.TRUNCATEDS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IMPALAConfig(EpochConfig):
    """Hyperparameters of `IMPALA`.

    Attributes:
        gamma: Discount per step.
        lambda_: Decay of the V-trace corrections per step.
        clip_rho: Upper bound of the importance ratios in the value targets.
        clip_pg_rho: Upper bound of the importance ratios in the policy gradient.
        sequence_length: Steps that are corrected together.
        value_coefficient: Weight of the value loss.
    """

    entropy_coefficient: float = 0.01
    max_gradient_norm: float | None = 0.5
    gamma: float = fraction(0.99)
    lambda_: float = fraction(1.0)
    clip_rho: float = positive(1.0)
    clip_pg_rho: float = positive(1.0)
    sequence_length: int = count(20)
    value_coefficient: float = not_negative(0.5)


class IMPALA(Algorithm):
    """Actor-critic algorithm that learns from episodes of slightly older policies, and corrects for the difference by
    V-trace (IMPALA).

    The corrections are computed again with the current policy in each gradient step.

    Args:
        policy: a policy with action and value heads, not recurrent, or its actor.
        config: hyperparameters; by default `IMPALAConfig()`.
        pipeline: the pipeline from episodes to a train batch of sequences; by default the learner pipeline.
        scheduler: function that returns the learning rate schedule of an optimizer, for instance `linear_decay(100)`.
        seed: seed of the order of minibatches.

    Raises:
        InvalidArgument: the policy is recurrent.
    """

    def __init__(
        self,
        policy: Policy | Actor,
        config: IMPALAConfig | None = None,
        *,
        pipeline: ConnectorPipeline | None = None,
        scheduler: MakeScheduler | None = None,
        seed: int = 0,
    ) -> None:
        policy, actor = split_actor(policy)
        check_interface(policy, type(self).__name__, _REQUIRED_MEMBERS)
        if module_of(policy).is_recurrent:
            raise InvalidArgument(f"IMPALA cannot train recurrent policies such as {type(policy).__name__}: use PPO")
        config = config or IMPALAConfig()
        optimizer = adam_optimizer(policy.parameters(), config)
        super().__init__(policy, {"policy": optimizer}, scheduler=scheduler, seed=seed, actor=actor)
        self.config = config
        self.pipeline = pipeline or learner_pipeline(
            **stored_inputs(policy, actor),
            next_observations=True,
            policy=policy,
            max_seq_len=config.sequence_length,
            device=policy.device,
        )

    def preprocess(self, episodes: Sequence[SingleAgentEpisode]) -> dict[str, Any]:
        """Return a train batch of sequences [B, T, ...] made of `episodes`.

        Raises:
            UnknownKey: the batch lacks a column that the loss needs, such as log-probabilities of actions.
            StateMismatch: the episodes were recorded with other preprocessing of observations.
        """
        check_recorded_alike(episodes, self, is_on_policy=True)
        batch = self.pipeline(rl_module=self.policy, batch={}, episodes=episodes)
        missing = [name for name in (*_REQUIRED_COLUMNS, Columns.ACTION_LOGP) if name not in batch]
        if missing:
            raise UnknownKey(f"IMPALA: the train batch has no {', '.join(missing)}; sample with explore=True")
        return batch

    def minibatches(self, batch: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield shuffled minibatches of sequences, with about `minibatch_size` steps per minibatch, for `num_epochs`
        passes over a train batch.
        """
        columns = tensors_of(batch)
        size = max(1, self.config.minibatch_size // columns[Columns.REWARDS].shape[1])
        for _ in range(self.config.num_epochs):
            yield from self.shuffled(columns, size)

    def loss(self, minibatch: Mapping[str, Any], optimizer: str = "policy") -> tuple[Tensor, Measured]:
        """Return the sum of policy loss, weighted value loss and entropy bonus over sequences [B, T], corrected by
        V-trace, and scalars to log.
        """
        mask = minibatch[Columns.LOSS_MASK]  # [B, T]
        outputs = self.policy({Columns.OBS: map_leaves(_merge_leading_axes, minibatch[Columns.OBS])})
        inputs = outputs[Columns.ACTION_DIST_INPUTS].unflatten(0, mask.shape)
        values = outputs[Columns.VF_PREDS].view(mask.shape)
        actions = map_leaves(lambda leaf: _fill_padding(leaf, mask), minibatch[Columns.ACTIONS])
        log_prob = self.policy.distribution.log_prob(inputs, actions)
        with torch.no_grad():
            later = map_leaves(_merge_leading_axes, after(minibatch))
            new_values = self.policy.compute_values(later).view(mask.shape)  # type: ignore[operator]
            ratio = (log_prob - minibatch[Columns.ACTION_LOGP]).exp()
            advantages, targets = compute_v_trace(minibatch, values, new_values, ratio, self.config)
        share = mask.to(values.dtype) / mask.sum()  # of each step in a mean over the real ones
        policy_loss = -(advantages * log_prob * share).sum()
        value_loss = ((values - targets).square() * share).sum()
        entropy = (self.policy.distribution.entropy(inputs) * share).sum()
        if self.measures_rows:
            columns = {"advantage": advantages, "ratio": ratio, "log_prob": log_prob}
            columns |= {"first_value": values, "value_target": targets}
            self.measure_rows(minibatch, {name: column[mask] for name, column in columns.items()}, mask)
        config = self.config
        loss = policy_loss + config.value_coefficient * value_loss - config.entropy_coefficient * entropy
        measured = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
        measured["ratio"] = (ratio * share).sum()
        with torch.no_grad():
            measured["explained_variance"] = explained_variance(values, targets, mask)
        return loss, {name: value.detach() for name, value in measured.items()}

    def row_measurements_of(self, columns: dict[str, Tensor]) -> dict[str, Tensor]:
        errors = (columns["first_value"] - columns["value_target"]).square()
        policy_losses = (columns["advantage"] * columns.pop("log_prob")).abs()
        ratio = columns["ratio"]
        measured = {"loss": policy_losses + self.config.value_coefficient * errors, "first_ratio": ratio}
        return {**columns, **measured, "clipped": (ratio > self.config.clip_rho).float()}


def compute_v_trace(
    batch: Mapping[str, Tensor], values: Tensor, new_values: Tensor, ratios: Tensor, config: IMPALAConfig
) -> tuple[Tensor, Tensor]:
    """Compute V-trace from the state values before and after each step, [B, T] each, and return the policy's advantages
    and the value targets, [B, T] each.

    In each row, the corrections end at the row's last step or at the end of an episode, and bootstrap from the
    value after it.
    """
    ends = batch[Columns.TERMINATEDS] | batch[Columns.TRUNCATEDS]
    continues = torch.zeros_like(ends)
    continues[:, :-1] = batch[Columns.LOSS_MASK][:, 1:] & ~ends[:, :-1]
    rho, trace = ratios.clamp(max=config.clip_rho), config.lambda_ * ratios.clamp(max=1.0)
    discounts = config.gamma * (~batch[Columns.TERMINATEDS]).to(values.dtype)
    td_errors = rho * (batch[Columns.REWARDS] + discounts * new_values - values)
    corrections = torch.zeros_like(td_errors)
    following = torch.zeros_like(td_errors[:, 0])
    for t in reversed(range(td_errors.shape[1])):
        following = td_errors[:, t] + continues[:, t] * discounts[:, t] * trace[:, t] * following
        corrections[:, t] = following
    targets = values + corrections
    after_step = new_values.clone()
    after_step[:, :-1] = torch.where(continues[:, :-1], targets[:, 1:], new_values[:, :-1])
    advantages = ratios.clamp(max=config.clip_pg_rho) * (batch[Columns.REWARDS] + discounts * after_step - values)
    return advantages, targets


def _merge_leading_axes(column: Tensor) -> Tensor:
    """Merge the batch and time axes of a column of sequences, [B, T, ...], into [B * T, ...]."""
    return column.flatten(0, 1)


def _fill_padding(column: Tensor, mask: Tensor) -> Tensor:
    """Return a column of sequences [B, T, ...] in which padding is replaced by a valid item, so that functions of it
    stay finite.
    """
    return torch.where(mask.reshape(*mask.shape, *[1] * (column.ndim - 2)), column, column[:1, :1])

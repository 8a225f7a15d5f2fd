"""Proximal policy optimization, PPO (Schulman et al., 2017, https://arxiv.org/abs/1707.06347), also for recurrent
policies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import torch
from torch import Tensor
from torch.nn import functional

from connectors.actor import Actor
from connectors.connector import Connector
from connectors.distributions import ActionDistribution
from connectors.learner import GeneralizedAdvantageEstimation, LearnerPipeline
from connectors.learner.generalized_advantage_estimation import SMALLEST_DEVIATION
from connectors.learner.pipeline import learner_pipeline
from connectors.pipeline import ConnectorPipeline
from connectors.policy import check_interface, module_of, seen_columns
from connectors.rollout.buffer import add_advantages, transition_view
from connectors.views.view import View
from episode_learners.algorithms.acting_pipelines import check_recorded_alike
from episode_learners.algorithms.algorithm import (
    Algorithm,
    MakeScheduler,
    Measured,
    means,
    split_actor,
    stored_inputs,
    tensors_of,
)
from episode_learners.algorithms.config import EpochConfig
from episode_learners.algorithms.config_checks import count, flag, fraction, not_negative, positive
from episode_learners.algorithms.explained_variance import explained_variance
from episode_learners.algorithms.flat_optimizer import adam_optimizer
from episode_learners.algorithms.minibatches import check_sees_rollouts, rows_of, selected, steps_of_rollout
from episode_learners.policies.policy import Policy
from episodes.columns import Columns
from episodes.errors import InvalidArgument, UnknownKey
from episodes.single_agent import SingleAgentEpisode

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["PPO", "PPOConfig", "clipped_policy_loss", "clipped_surrogate", "ppo_loss", "ppo_pipeline"]

_REQUIRED_MEMBERS = ("parameters", "device", "distribution", "compute_values", "observation_space", "action_space")
_STEP_COLUMNS = (Columns.ACTIONS, Columns.ACTION_LOGP, Columns.ADVANTAGES, Columns.VALUE_TARGETS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOConfig(EpochConfig):
    """Hyperparameters of proximal policy optimization (`PPO`).

    Attributes:
        minibatch_size: Steps in a minibatch; for a recurrent policy, as many sequences as hold them.
        gamma: Discount per step.
        lambda_: Decay of generalized advantage estimation.
        max_seq_len: Steps in a sequence of a recurrent policy.
        clip: Largest deviation of the probability ratio from 1 that the policy loss rewards.
        dual_clip: Lower bound of the objective for negative advantages, as a multiple (above 1) of the advantage (Ye et
            al., 2020, https://arxiv.org/abs/1912.09729). None: no bound.
        value_clip: Largest change of a value that the value loss rewards. None: no limit.
        value_coefficient: Weight of the value loss.
        standardize_advantages: Whether advantages are scaled to mean 0 and standard deviation 1 in each train batch.
        max_kl: KL divergence from the acting policy after which an update ends early. None: all epochs run.
    """

    learning_rate: float = 3e-4
    num_epochs: int = 10
    minibatch_size: int = 128
    max_gradient_norm: float | None = 0.5
    gamma: float = fraction(0.99)
    lambda_: float = fraction(0.95)
    max_seq_len: int = count(20)
    clip: float = positive(0.2)
    dual_clip: float | None = positive(None)
    value_clip: float | None = positive(None)
    value_coefficient: float = not_negative(0.5)
    standardize_advantages: bool = flag(True)
    max_kl: float | None = positive(None)

    def __post_init__(self) -> None:
        EpochConfig.__post_init__(self)
        if self.dual_clip is not None and self.dual_clip <= 1:
            raise InvalidArgument(f"PPOConfig: dual_clip is {self.dual_clip}; it must be above 1")


class PPO(Algorithm):
    """Proximal policy optimization algorithm (PPO). It learns on-policy, from episodes that the current policy has just
    sampled.

    The metric `explained_variance` compares the values before an update with their targets. It needs the column
    "vf_preds", which `ppo_pipeline` adds.

    Args:
        policy: a policy with `action_dist_inputs` and `vf_preds` among its outputs, and the members of
            `episode_learners.Policy`.
        config: hyperparameters.
        pipeline: the pipeline from episodes to a train batch; by default `ppo_pipeline(policy, config)`.
        scheduler: schedule of the learning rate, for instance `linear_decay(100)`.
        seed: seed of the order of minibatches.
    """

    def __init__(
        self,
        policy: Policy | Actor,
        config: PPOConfig | None = None,
        *,
        pipeline: ConnectorPipeline | None = None,
        scheduler: MakeScheduler | None = None,
        seed: int = 0,
    ) -> None:
        policy, actor = split_actor(policy)
        config = config or PPOConfig()
        check_interface(policy, type(self).__name__, _REQUIRED_MEMBERS)
        optimizer = adam_optimizer(policy.parameters(), config, eps=1e-5)
        super().__init__(policy, {"policy": optimizer}, scheduler=scheduler, seed=seed, actor=actor)
        self.config = config
        self.pipeline = pipeline or ppo_pipeline(policy if actor is None else actor, config)

    def preprocess(self, episodes: Sequence[SingleAgentEpisode]) -> dict[str, Any]:
        """Return a train batch made of `episodes`, with advantages and value targets.

        Raises:
            StateMismatch: the episodes were recorded with other preprocessing of observations.
        """
        check_recorded_alike(episodes, self, is_on_policy=True)
        return self.pipeline(rl_module=self.policy, batch={}, episodes=episodes)

    def update_from_rollout(self, rollout: TensorDict) -> dict[str, float]:
        """Update the policy from a rollout [N, T + 1] of a `RolloutBuffer`, on the rollout's device, and return
        metrics.

        The block gets the columns of `add_advantages`. Its last observations need their values (`fill_rollout` sets
        them). Only the count of valid steps is copied to the host.

        Raises:
            InvalidArgument: the policy is recurrent or its spaces do not fit a block's rows of floats; or gradients are
                not finite, and nothing has changed.
        """
        return self._updated(self.rollout_batch(rollout))

    def rollout_batch(self, rollout: TensorDict) -> dict[str, Any]:
        """Return a train batch {column: tensor [B, ...]} of the valid steps of a rollout [N, T + 1], with advantages
        and value targets.

        Raises:
            InvalidArgument: the policy is recurrent, or its spaces do not fit rows of floats.
        """
        check_sees_rollouts(self.policy, "PPO")
        add_advantages(rollout, gamma=self.config.gamma, lambda_=self.config.lambda_)
        steps: Any = transition_view(rollout, flatten=True)
        advantages = steps["advantage"]
        if self.config.standardize_advantages and len(advantages):
            deviation = advantages.std(correction=0).clamp(min=SMALLEST_DEVIATION)
            advantages = (advantages - advantages.mean()) / deviation
        return {
            **steps_of_rollout(self.policy, steps),
            Columns.VF_PREDS: steps["value"],
            Columns.ADVANTAGES: advantages,
            Columns.VALUE_TARGETS: steps["return"],
        }

    def learn(self, batch: Mapping[str, Any]) -> dict[str, float]:
        """Take gradient steps on a train batch for `num_epochs` epochs, or fewer if the KL divergence exceeds `max_kl`,
        and return the mean of each logged scalar.

        Raises:
            UnknownKey: the batch lacks a column that the loss needs.
            InvalidArgument: the batch has no steps.
        """
        measured: list[Measured] = []
        columns = self._loss_columns(batch)
        num_steps = _num_steps(columns)
        shared_scalars: Measured = {}  # the same for all minibatches, so that the host waits once for all metrics
        if Columns.VF_PREDS in batch:  # other pipelines may omit it
            values, targets = batch[Columns.VF_PREDS], batch[Columns.VALUE_TARGETS]
            shared_scalars["explained_variance"] = explained_variance(values, targets, batch.get(Columns.LOSS_MASK))
        for _ in range(self.config.num_epochs):
            epoch = [self._gradient_step(minibatch) | shared_scalars for minibatch in self._epoch(columns, num_steps)]
            measured += epoch
            if self.config.max_kl is not None and means(epoch)["kl"] > self.config.max_kl:
                break
        return means(measured)

    def minibatches(self, batch: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield shuffled minibatches of about `minibatch_size` steps, for `num_epochs` passes over a train batch."""
        columns = self._loss_columns(batch)
        num_steps = _num_steps(columns)
        for _ in range(self.config.num_epochs):
            yield from self._epoch(columns, num_steps)

    def _epoch(self, columns: dict[str, Any], num_steps: int) -> Iterator[dict[str, Any]]:
        """Yield shuffled minibatches of about `minibatch_size` steps that together contain all rows of a train batch
        once.
        """
        num_rows = len(columns[Columns.ADVANTAGES])  # [B] or [B, T]
        return self.shuffled(columns, max(1, round(self.config.minibatch_size * num_rows / num_steps)))

    def loss(self, minibatch: Mapping[str, Any], optimizer: str = "policy") -> tuple[Tensor, Measured]:
        """Return PPO's loss for the steps of a minibatch, without padding (the sum of policy loss, value loss and
        entropy bonus), and scalars to log.
        """
        outputs = self.policy(minibatch)
        mask = minibatch.get(Columns.LOSS_MASK)
        sequences = minibatch
        if mask is not None:  # remove padding: from here on all rows are real steps
            real = mask.nonzero(as_tuple=True)  # once for all columns
            names = (*_STEP_COLUMNS, Columns.VF_PREDS)
            minibatch = rows_of({name: minibatch[name] for name in names if name in minibatch}, real)
            outputs = {name: outputs[name][real] for name in (Columns.ACTION_DIST_INPUTS, Columns.VF_PREDS)}
        rows: Measured | None = {} if self.measures_rows else None
        result = ppo_loss(self.policy.distribution, outputs, minibatch, self.config, rows)
        if rows is not None:
            self.measure_rows(sequences, rows, mask)
        return result

    def row_measurements_of(self, columns: dict[str, Tensor]) -> dict[str, Tensor]:
        errors = _squared_errors(columns["values"], columns, self.config.value_clip)
        measured = policy_measurements(columns)
        measured["loss"] = measured["loss"] + self.config.value_coefficient * errors
        return {**measured, "first_value": columns["values"], "value_target": columns[Columns.VALUE_TARGETS]}

    def _loss_columns(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return a train batch with only the columns that the loss or the policy reads.

        Raises:
            UnknownKey: a column is missing.
            InvalidArgument: the batch has no steps.
        """
        missing = [name for name in (Columns.OBS, *_STEP_COLUMNS) if name not in batch]
        if missing:
            raise UnknownKey(
                f"PPO.learn: the train batch has no {', '.join(missing)} (it has {', '.join(batch)}); sample with "
                "explore=True, and let the learner pipeline compute advantages."
            )
        if len(batch[Columns.ADVANTAGES]) == 0:
            raise InvalidArgument("PPO.learn: the train batch has no steps; sample some first.")
        names = [*seen_columns(batch), Columns.ACTION_LOGP, *self.extra_columns]
        if self.config.value_clip is not None:
            if Columns.VF_PREDS not in batch:
                raise UnknownKey(
                    "PPO.learn: value_clip needs the column 'vf_preds' of "
                    "GeneralizedAdvantageEstimation(with_values=True)"
                )
            names.append(Columns.VF_PREDS)
        return tensors_of(selected(batch, dict.fromkeys(names), type(self).__name__))


def _num_steps(columns: Mapping[str, Tensor]) -> int:
    """Return the number of environment steps in a train batch. Padding does not count."""
    mask = columns.get(Columns.LOSS_MASK)
    return len(columns[Columns.ADVANTAGES]) if mask is None else int(mask.sum())


def ppo_pipeline(
    policy: Policy | Actor,
    config: PPOConfig,
    *,
    pieces: Iterable[Connector | View] = (),
    observation_space: gym.Space | None = None,
) -> LearnerPipeline:
    """Return the learner pipeline of PPO, which turns episodes into a train batch with advantages and value targets on
    the policy's device.

    Args:
        policy: the policy; or its actor, if the policy's input differs from the observations that episodes store.
        config: hyperparameters, of which `gamma`, `lambda_`, `standardize_advantages` and `max_seq_len` are used.
        pieces: further connectors, which are applied first.
        observation_space: space of the stored observations, if `pieces` compute the policy's input from them.
    """
    advantages = GeneralizedAdvantageEstimation(
        gamma=config.gamma,
        lambda_=config.lambda_,
        normalize=config.standardize_advantages,
        with_values=True,
    )
    policy, actor = split_actor(policy)
    inputs = stored_inputs(policy, actor)
    if observation_space is not None:
        inputs["observation_space"] = observation_space
    return learner_pipeline(
        **inputs,
        pieces=pieces,
        returns=advantages,
        policy=policy,
        max_seq_len=config.max_seq_len if module_of(policy).is_recurrent else None,
        device=policy.device,
    )


def ppo_loss(
    distribution: ActionDistribution,
    outputs: Mapping[str, Tensor],
    batch: Mapping[str, Any],
    config: PPOConfig,
    rows: Measured | None = None,
) -> tuple[Tensor, Measured]:
    """Return PPO's scalar loss (policy loss, value loss, entropy bonus), given the policy's outputs [B, ...] for the
    steps of a batch, and scalars to log. Columns [B] for the measurements of the steps are added to `rows`.
    """
    inputs = outputs[Columns.ACTION_DIST_INPUTS]
    coefficient, dual_clip = config.entropy_coefficient, config.dual_clip
    loss, measured = clipped_policy_loss(distribution, inputs, batch, config.clip, coefficient, dual_clip, rows=rows)
    values = outputs[Columns.VF_PREDS]
    value_loss = _value_loss(values, batch, config.value_clip)
    if rows is not None:
        rows |= {"values": values, Columns.VALUE_TARGETS: batch[Columns.VALUE_TARGETS]}
        if config.value_clip is not None:
            rows[Columns.VF_PREDS] = batch[Columns.VF_PREDS]
    return loss + config.value_coefficient * value_loss, {**measured, "value_loss": value_loss.detach()}


def clipped_policy_loss(
    distribution: ActionDistribution,
    inputs: Tensor,
    batch: Mapping[str, Any],
    clip: float,
    entropy_coefficient: float,
    dual_clip: float | None = None,
    weights: Tensor | None = None,
    rows: Measured | None = None,
) -> tuple[Tensor, Measured]:
    """Return PPO's clipped policy loss with the entropy bonus, a scalar, given the policy's distribution inputs
    [B, ...] for the steps of a batch, and scalars to log.

    Args:
        distribution: the policy's action distribution.
        inputs: the policy's outputs `action_dist_inputs` [B, ...].
        batch: columns "actions", "action_logp" and "advantages" of the same steps.
        clip, dual_clip: see `clipped_surrogate`.
        entropy_coefficient: weight of the entropy bonus.
        weights: weights [B] of the steps, of mean 1. None: all are 1.
        rows: dict to which the columns [B] for `policy_measurements` are added.
    """
    log_ratio = distribution.log_prob(inputs, batch[Columns.ACTIONS]) - batch[Columns.ACTION_LOGP]
    ratio = log_ratio.exp()
    objective = clipped_surrogate(ratio, batch[Columns.ADVANTAGES], clip, dual_clip)
    policy_loss = -(objective if weights is None else objective * weights).mean()
    with torch.set_grad_enabled(entropy_coefficient > 0):
        entropy = distribution.entropy(inputs).mean()
    loss = policy_loss - entropy_coefficient * entropy if entropy_coefficient else policy_loss
    with torch.no_grad():
        measured = {
            "policy_loss": policy_loss.detach(),
            "entropy": entropy.detach(),
            "kl": (ratio - 1 - log_ratio).mean(),  # unbiased and never negative: joschu.net/blog/kl-approx.html
            "clip_fraction": ((ratio - 1).abs() > clip).float().mean(),
        }
    if rows is not None:
        rows |= {"objective": objective, "ratio": ratio, Columns.ADVANTAGES: batch[Columns.ADVANTAGES]}
        if weights is not None:
            rows[Columns.WEIGHTS] = weights
    return loss, measured


def policy_measurements(columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the measurements of steps, [N] each, given the columns of `clipped_policy_loss`: the absolute policy loss
    as "loss", "advantage", "ratio", "first_ratio", and "clipped" (1.0 if the ratio was clipped, else 0.0).
    """
    objective, ratio, advantages = columns["objective"], columns["ratio"], columns[Columns.ADVANTAGES]
    sizes = objective.abs()
    return {
        "loss": sizes * columns[Columns.WEIGHTS] if Columns.WEIGHTS in columns else sizes,
        "advantage": advantages,
        "ratio": ratio,
        "first_ratio": ratio,
        "clipped": (objective != ratio * advantages).float(),
    }


def clipped_surrogate(ratio: Tensor, advantages: Tensor, clip: float, dual_clip: float | None = None) -> Tensor:
    """Return PPO's clipped surrogate objective of each step, [B], given probability ratios [B] and advantages [B].

    Args:
        clip: ratios outside of 1 - clip..1 + clip do not increase the objective.
        dual_clip: for negative advantages, the objective is at least `dual_clip` times the advantage.

    >>> clipped_surrogate(torch.tensor([2.0, 9.0]), torch.tensor([1.0, -1.0]), 0.2, dual_clip=3.0)
    tensor([ 1.2000, -3.0000])
    """
    objective = torch.min(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    if dual_clip is None:
        return objective
    return torch.where(advantages < 0, torch.max(objective, dual_clip * advantages), objective)


def _value_loss(values: Tensor, batch: Mapping[str, Any], clip: float | None) -> Tensor:
    """Return the mean squared error between values [B] and their targets.

    With `clip`, a value that has moved further than `clip` from the recorded value is also compared as clipped, and
    the larger error counts.
    """
    if clip is None:
        return functional.mse_loss(values, batch[Columns.VALUE_TARGETS])
    return _squared_errors(values, batch, clip).mean()


def _squared_errors(values: Tensor, batch: Mapping[str, Any], clip: float | None) -> Tensor:
    """Return the squared errors [B] of which `_value_loss` is the mean."""
    targets = batch[Columns.VALUE_TARGETS]
    if clip is None:
        return (values - targets).square()
    old = batch[Columns.VF_PREDS]
    clipped = old + (values - old).clamp(-clip, clip)
    return torch.max((values - targets).square(), (clipped - targets).square())

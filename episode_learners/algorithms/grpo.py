"""Group relative policy optimization, GRPO (Shao et al., 2024, https://arxiv.org/abs/2402.03300)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from connectors.actor import Actor
from connectors.learner.pipeline import learner_pipeline
from connectors.pipeline import ConnectorPipeline
from connectors.policy import check_interface, module_of
from connectors.rollout.buffer import add_sequence_returns
from episode_learners.algorithms.acting_pipelines import check_recorded_alike
from episode_learners.algorithms.algorithm import Algorithm, MakeScheduler, Measured, split_actor, stored_inputs
from episode_learners.algorithms.config import EpochConfig
from episode_learners.algorithms.config_checks import choice, count, not_negative, positive
from episode_learners.algorithms.flat_optimizer import adam_optimizer
from episode_learners.algorithms.minibatches import check_sees_rollouts, selected, steps_of_rollout
from episode_learners.algorithms.ppo import clipped_policy_loss, policy_measurements
from episode_learners.policies.policy import Policy
from episodes.columns import Columns
from episodes.errors import InvalidArgument, UnknownKey
from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["GRPO", "GRPOConfig", "group_advantages"]

Scale = Literal["group", "batch"]
Mean = Literal["step", "episode"]
Baseline = Literal["group", "batch", "leave_one_out"]
_REQUIRED_MEMBERS = ("parameters", "device", "distribution", "observation_space", "action_space")
_SMALL = 1e-8  # added to standard deviations before a division
_STEP_WEIGHTS = "step_weights"  # column of the weights of steps in the mean over episodes


@dataclass(frozen=True, slots=True, kw_only=True)
class GRPOConfig(EpochConfig):
    """Hyperparameters of group relative policy optimization (`GRPO`).

    Attributes:
        group_size: Successive episodes that form a group, unless `group_of` is given.
        scale: Standard deviation that advantages are divided by: of the "group", of the "batch", or None.
        clip: Largest deviation of the probability ratio from 1 that the policy loss rewards.
        kl_coefficient: Weight of the KL divergence from the reference policy in the loss (beta in the paper).
        mean: "step": the loss is the mean over all steps. "episode": the mean over episodes of the mean over their
            steps, as in equation 3 of the paper.
    """

    num_epochs: int = 4
    max_gradient_norm: float | None = 0.5
    group_size: int = count(8)
    scale: Scale | None = choice("batch", "group", None)
    clip: float = positive(0.2)
    kl_coefficient: float = not_negative(0.0)
    mean: Mean = choice("step", "episode")


class GRPO(Algorithm):
    """Policy gradient algorithm without a critic (GRPO): the advantage of an episode is its return minus the mean
    return of its group of episodes.

    A group has episodes with the same start. `group_of(episode)` returns the key of an episode's group; by default
    each `group_size` successive episodes form a group. All episodes must be complete. The paper divides advantages by
    the group's standard deviation, which amplifies groups with nearly equal returns. The default here is the standard
    deviation of the batch.

    Args:
        policy: a policy with `action_dist_inputs` among its outputs, not recurrent, or its actor.
        config: hyperparameters; by default `GRPOConfig()`.
        group_of: function of an episode that returns the key of its group. None: each `group_size` successive episodes
            form a group.
        pipeline: the pipeline from episodes to a train batch; by default the learner pipeline.
        scheduler: function that returns the learning rate schedule of an optimizer, for instance `linear_decay(100)`.
        reference: the policy of the KL term; by default a copy of `policy` as it is now.
        seed: seed of the order of minibatches.

    Raises:
        InvalidArgument: the policy is recurrent.
    """

    def __init__(
        self,
        policy: Policy | Actor,
        config: GRPOConfig | None = None,
        *,
        group_of: Callable[[SingleAgentEpisode], Hashable] | None = None,
        pipeline: ConnectorPipeline | None = None,
        scheduler: MakeScheduler | None = None,
        reference: Policy | None = None,
        seed: int = 0,
    ) -> None:
        policy, actor = split_actor(policy)
        check_interface(policy, type(self).__name__, _REQUIRED_MEMBERS)
        if module_of(policy).is_recurrent:
            raise InvalidArgument(f"GRPO cannot train recurrent policies such as {type(policy).__name__}: use PPO")
        config = config or GRPOConfig()
        optimizer = adam_optimizer(policy.parameters(), config)
        targets = {"reference": policy if reference is None else reference} if config.kl_coefficient else None
        super().__init__(policy, {"policy": optimizer}, targets=targets, scheduler=scheduler, seed=seed, actor=actor)
        self.config, self.group_of = config, group_of
        self.pipeline = pipeline or learner_pipeline(
            **stored_inputs(policy, actor), policy=policy, device=policy.device
        )

    def preprocess(self, episodes: Sequence[SingleAgentEpisode]) -> dict[str, Any]:
        """Return a train batch made of complete episodes, with the group-relative advantage of its episode for each
        step.

        Raises:
            InvalidArgument: an episode is a cut chunk, or the number of episodes is not a multiple of `group_size`.
            UnknownKey: the batch has no log-probabilities of actions.
            StateMismatch: the episodes were recorded with other preprocessing of observations.
        """
        pack = EpisodePack.from_episodes(episodes)
        check_recorded_alike(pack, self, is_on_policy=True)
        cut = ~(pack.terminated | pack.truncated)
        if cut.any():
            raise InvalidArgument(
                f"GRPO compares the returns of whole episodes; episode {pack[int(cut.argmax())].id_} is a cut chunk: "
                "sample with num_episodes="
            )
        batch = self.pipeline(rl_module=self.policy, batch={}, episodes=pack)
        if Columns.ACTION_LOGP not in batch:
            raise UnknownKey("GRPO: the train batch has no action_logp; sample with explore=True")
        advantages = group_advantages(pack.returns(), self._groups(pack), self.config.scale)
        rows = np.repeat(advantages, pack.lengths).astype(np.float32)
        batch[Columns.ADVANTAGES] = torch.from_numpy(rows).to(self.policy.device)
        if self.config.mean == "episode":
            batch[_STEP_WEIGHTS] = torch.from_numpy(_step_weights(pack.lengths)).to(self.policy.device)
        return batch

    def update_from_rollout(self, rollout: TensorDict) -> dict[str, float]:
        """Update the policy from the first episode of each environment in a rollout [N, T + 1] of a `RolloutBuffer`, on
        the rollout's device, and return metrics.

        The sequence of an environment goes from row 0 to its first ending. `group_size` successive environments form a
        group, so they should have the same start. The block gets the columns of `add_sequence_returns`.

        Raises:
            InvalidArgument: a sequence has not ended in the block, the number of environments is not a multiple of
                `group_size`, or the policy is recurrent or its spaces do not fit rows of floats.
        """
        return self._updated(self.rollout_batch(rollout))

    def rollout_batch(self, rollout: TensorDict) -> dict[str, Any]:
        """Return a train batch {column: tensor [B, ...]} of the steps of the first episode of each environment in a
        rollout [N, T + 1].

        Raises:
            InvalidArgument: see `update_from_rollout`; or the algorithm has `group_of`, which needs episodes.
        """
        check_sees_rollouts(self.policy, "GRPO")
        if self.group_of is not None:
            raise InvalidArgument("GRPO: group_of takes episodes; use update(rollout_to_episodes(...)) with it")
        block: Any = add_sequence_returns(rollout)  # of tensors
        is_whole = ((block["terminated"] | block["truncated"]) & block["seq_mask"]).any(1).cpu()
        if not is_whole.all():
            raise InvalidArgument(
                f"GRPO compares the returns of whole episodes; environment {int((~is_whole).nonzero()[0])} has neither "
                f"terminated nor been truncated in its first sequence of {block.shape[1] - 1} rows at most"
            )
        returns = block["reward"].double().masked_fill(~block["seq_mask"], 0).sum(1).cpu().numpy()
        advantages = group_advantages(returns, self._successive_groups(len(returns)), self.config.scale)
        envs, rows = block["seq_mask"].nonzero(as_tuple=True)
        steps = {name: block[name][envs, rows] for name in ("obs", "action", "sample_log_prob")}
        env_advantages = torch.from_numpy(advantages.astype(np.float32)).to(envs.device)
        batch = {**steps_of_rollout(self.policy, steps), Columns.ADVANTAGES: env_advantages[envs]}
        if self.config.mean == "episode":
            lengths = block["seq_mask"].sum(1).cpu().numpy()
            batch[_STEP_WEIGHTS] = torch.from_numpy(_step_weights(lengths)).to(envs.device)
        return batch

    def _successive_groups(self, num_episodes: int) -> np.ndarray:
        """Return the group number of each episode, int [num_episodes], if each `group_size` successive episodes form a
        group.

        Raises:
            InvalidArgument: `num_episodes` is not a multiple of `group_size`.
        """
        if num_episodes % self.config.group_size:
            raise InvalidArgument(
                f"GRPO: {num_episodes} episodes; give a multiple of group_size, which is {self.config.group_size}"
            )
        return np.arange(num_episodes) // self.config.group_size

    def _groups(self, pack: EpisodePack) -> np.ndarray:
        """Return the group number of each episode of a pack, int [n], by `group_of` or by position."""
        if self.group_of is None:
            return self._successive_groups(len(pack))
        numbers: dict[Hashable, int] = {}
        return np.array([numbers.setdefault(self.group_of(episode), len(numbers)) for episode in pack])

    def minibatches(self, batch: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield shuffled minibatches of the columns that the loss reads, for `num_epochs` passes over a train batch."""
        names = [Columns.OBS, Columns.ACTIONS, Columns.ACTION_LOGP, Columns.ADVANTAGES, *self.extra_columns]
        names += [_STEP_WEIGHTS] if self.config.mean == "episode" else []
        columns = selected(batch, names, type(self).__name__)
        for _ in range(self.config.num_epochs):
            yield from self.shuffled(columns, self.config.minibatch_size)

    def loss(self, minibatch: Mapping[str, Any], optimizer: str = "policy") -> tuple[Tensor, Measured]:
        """Return PPO's clipped policy loss, plus the weighted KL divergence from the reference policy if configured,
        and scalars to log.
        """
        inputs = self.policy(minibatch, explore=True)[Columns.ACTION_DIST_INPUTS]  # as the actions were drawn
        config, distribution = self.config, self.policy.distribution
        weights = minibatch.get(_STEP_WEIGHTS)
        rows: Measured | None = {} if self.measures_rows else None
        loss, measured = clipped_policy_loss(
            distribution, inputs, minibatch, config.clip, config.entropy_coefficient, weights=weights, rows=rows
        )
        if rows is not None:
            self.measure_rows(minibatch, rows)
        if config.kl_coefficient:
            with torch.no_grad():
                reference = self._target("reference")(minibatch, explore=True)[Columns.ACTION_DIST_INPUTS]
            actions = minibatch[Columns.ACTIONS]
            log_ratio = distribution.log_prob(reference, actions) - distribution.log_prob(inputs, actions)
            kl = log_ratio.exp() - 1 - log_ratio  # equation 4 of the paper
            kl = (kl if weights is None else kl * weights).mean()
            loss, measured = loss + config.kl_coefficient * kl, {**measured, "reference_kl": kl.detach()}
        return loss, measured

    def row_measurements_of(self, columns: dict[str, Tensor]) -> dict[str, Tensor]:
        return policy_measurements(columns)


def _step_weights(lengths: np.ndarray) -> np.ndarray:
    """Return weights by which each episode counts equally in a mean over steps, float32 [sum(lengths)] with mean 1."""
    lengths = lengths[lengths > 0]
    return np.repeat(lengths.sum() / (len(lengths) * lengths), lengths).astype(np.float32)


def group_advantages(
    returns: np.ndarray, groups: np.ndarray, scale: Scale | None, baseline: Baseline = "group"
) -> np.ndarray:
    """Return the advantage of each episode, float64 [k]: its return minus a baseline such as the mean return of its
    group, optionally divided by a standard deviation.

    Args:
        returns: return of each episode.
        groups: group of each episode, ints of at least 0.
        scale: standard deviation that advantages are divided by: of the "group", of the "batch", or None.
        baseline: mean return of the "group", of the "batch", or of the other episodes of the group ("leave_one_out",
            Ahmadian et al., 2024, https://arxiv.org/abs/2402.14740). An episode alone in its group has no others, and
            an advantage of 0.

    >>> group_advantages(np.array([1.0, 3.0, 10.0, 10.0]), np.array([0, 0, 1, 1]), None).tolist()
    [-1.0, 1.0, 0.0, 0.0]
    """
    counts, returns = np.bincount(groups), np.where(np.isfinite(returns), returns, np.nan)
    means = np.bincount(groups, returns) / np.maximum(counts, 1)
    centered = advantages = returns - means[groups]
    if baseline == "batch":
        advantages = returns - returns.mean()
    elif baseline == "leave_one_out":
        advantages = centered * (counts / np.maximum(counts - 1, 1))[groups]
    if scale == "group":
        variances = np.bincount(groups, centered**2) / np.maximum(counts, 1)
        return advantages / (np.sqrt(variances)[groups] + _SMALL)
    return advantages / (advantages.std() + _SMALL) if scale == "batch" else advantages

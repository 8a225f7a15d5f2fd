"""Group relative policy optimization (Shao et al., 2024, https://arxiv.org/abs/2402.03300): comparison, no critic."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from connectors.learner import learner_pipeline
from connectors.pipeline import ConnectorPipeline
from connectors.policy import check_interface, module_of
from connectors.rollout.buffer import add_sequence_returns
from episode_learners.algorithms.algorithm import Algorithm, MakeScheduler, Measured, tensors_of
from episode_learners.algorithms.config_checks import check_numbers
from episode_learners.algorithms.flat_optimizer import FlatOptimizer, adam
from episode_learners.algorithms.minibatches import check_sees_rollouts, shuffled, steps_of_rollout
from episode_learners.algorithms.ppo import clipped_policy_loss
from episode_learners.policies.policy import Policy
from episodes.columns import Columns
from episodes.errors import InvalidArgument, UnknownKey
from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode

__all__ = ["GRPO", "GRPOConfig", "group_advantages"]

Scale = Literal["group", "batch"]
_ASKED = ("parameters", "device", "distribution", "observation_space", "action_space")
_SMALL = 1e-8  # added to deviations that returns are divided by


@dataclass(frozen=True, slots=True, kw_only=True)
class GRPOConfig:
    """The numbers of GRPO."""

    learning_rate: float = 1e-3
    group_size: int = 8  # episodes that are compared, where nothing else says which belong together
    scale: Scale | None = "batch"  # whose deviation advantages are divided by; None: they stay in units of reward
    num_epochs: int = 4
    minibatch_size: int = 256  # steps
    clip: float = 0.2
    entropy_coefficient: float = 0.0
    max_gradient_norm: float | None = 0.5

    def __post_init__(self) -> None:
        check_numbers(
            self,
            counts=("group_size", "num_epochs", "minibatch_size"),
            positive=("learning_rate", "clip", "max_gradient_norm"),
            not_negative=("entropy_coefficient",),
        )
        if self.scale not in ("group", "batch", None):
            raise InvalidArgument(f"GRPOConfig: scale is {self.scale!r}; it must be 'group', 'batch' or None")


class GRPO(Algorithm):
    """Makes the actions of episodes likelier that were worth more than their group's mean.

    A group is what began alike: `group_of(episode)` says which one an episode is of; by default each `group_size`
    successive episodes are one. Only whole episodes can be compared. Dividing by a group's own deviation makes groups
    whose returns hardly differ as loud as any, and can get stuck: the default divides by the batch's.

    Args:
        policy: one whose `forward(batch)` gives `action_dist_inputs`; without a memory.
    """

    def __init__(
        self,
        policy: Policy,
        config: GRPOConfig | None = None,
        *,
        group_of: Callable[[SingleAgentEpisode], Hashable] | None = None,
        pipeline: ConnectorPipeline | None = None,
        scheduler: MakeScheduler | None = None,
        seed: int = 0,
    ) -> None:
        check_interface(policy, type(self).__name__, _ASKED)
        if module_of(policy).is_recurrent:
            raise InvalidArgument(f"GRPO trains policies without a memory; {type(policy).__name__} has one: use PPO")
        config = config or GRPOConfig()
        optimizer = FlatOptimizer(policy.parameters(), adam(config.learning_rate), max_norm=config.max_gradient_norm)
        super().__init__(policy, {"policy": optimizer}, scheduler=scheduler, seed=seed)
        self.config, self.group_of = config, group_of
        spaces = (policy.observation_space, policy.action_space)
        self.pipeline = pipeline or learner_pipeline(*spaces, policy=policy, device=policy.device)

    def preprocess(self, episodes: Sequence[SingleAgentEpisode]) -> dict[str, Any]:
        pack = EpisodePack.from_episodes(episodes)
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
        return batch

    def update_from_rollout(self, rollout: TensorDict) -> dict[str, float]:
        """Learn from a block [N, T + 1] of a `RolloutBuffer` on the device where it lies; returns metrics.

        What an environment did first is its sequence, from row 0 to its first ending; `group_size` successive
        environments are a group, so let them begin alike. The block gets the columns of `add_sequence_returns`.

        Raises:
            InvalidArgument: a sequence has not ended in the block, environments are no whole groups, or the policy
                has a memory or spaces that rows of floats cannot be made into.
        """
        return self._updated(self.rollout_batch(rollout))

    def rollout_batch(self, rollout: TensorDict) -> dict[str, Any]:
        """The train batch {column: tensor [B, ...]} of the sequences' steps in a block [N, T + 1]."""
        check_sees_rollouts(self.policy, "GRPO")
        if self.group_of is not None:
            raise InvalidArgument("GRPO: group_of asks episodes; use update(rollout_to_episodes(...)) with it")
        block: Any = add_sequence_returns(rollout)  # of tensors
        is_whole = ((block["terminated"] | block["truncated"]) & block["seq_mask"]).any(1).cpu()
        if not is_whole.all():
            raise InvalidArgument(
                f"GRPO compares the returns of whole episodes; environment {int((~is_whole).nonzero()[0])} has neither "
                f"terminated nor been truncated in its first sequence of {block.shape[1] - 1} rows at most"
            )
        returns = block["reward"].double().masked_fill(~block["seq_mask"], 0).sum(1).cpu().numpy()
        advantages = group_advantages(returns, self._successive(len(returns)), self.config.scale)
        envs, rows = block["seq_mask"].nonzero(as_tuple=True)
        steps = {name: block[name][envs, rows] for name in ("obs", "action", "sample_log_prob")}
        of_envs = torch.from_numpy(advantages.astype(np.float32)).to(envs.device)
        return {**steps_of_rollout(self.policy, steps), Columns.ADVANTAGES: of_envs[envs]}

    def _successive(self, num_episodes: int) -> np.ndarray:
        """Groups of `group_size` successive ones."""
        if num_episodes % self.config.group_size:
            raise InvalidArgument(f"GRPO: {num_episodes} episodes are no groups of {self.config.group_size}")
        return np.arange(num_episodes) // self.config.group_size

    def _groups(self, pack: EpisodePack) -> np.ndarray:
        if self.group_of is None:
            return self._successive(len(pack))
        numbers: dict[Hashable, int] = {}
        return np.array([numbers.setdefault(self.group_of(episode), len(numbers)) for episode in pack])

    def minibatches(self, batch: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        names = (Columns.ACTIONS, Columns.ACTION_LOGP, Columns.ADVANTAGES)
        columns = {name: column for name, column in tensors_of(batch).items() if name in names or name == Columns.OBS}
        num_rows, device = len(columns[Columns.ADVANTAGES]), self.policy.device
        for _ in range(self.config.num_epochs):
            yield from shuffled(columns, num_rows, self.config.minibatch_size, self.generator, device)

    def loss(self, minibatch: Mapping[str, Any], optimizer: str = "policy") -> tuple[Tensor, Measured]:
        inputs = self.policy(minibatch, explore=True)[Columns.ACTION_DIST_INPUTS]  # as the actions were drawn
        coefficient = self.config.entropy_coefficient
        return clipped_policy_loss(self.policy.distribution, inputs, minibatch, self.config.clip, coefficient)


def group_advantages(returns: np.ndarray, groups: np.ndarray, scale: Scale | None) -> np.ndarray:
    """How much more than its group's mean each episode's return was [k], of returns [k] and group numbers [k].

    >>> group_advantages(np.array([1.0, 3.0, 10.0, 10.0]), np.array([0, 0, 1, 1]), None).tolist()
    [-1.0, 1.0, 0.0, 0.0]
    """
    counts, returns = np.bincount(groups), np.where(np.isfinite(returns), returns, np.nan)
    means = np.bincount(groups, returns) / np.maximum(counts, 1)
    advantages = returns - means[groups]
    if scale == "group":
        variances = np.bincount(groups, advantages**2) / np.maximum(counts, 1)
        return advantages / (np.sqrt(variances)[groups] + _SMALL)
    return advantages / (advantages.std() + _SMALL) if scale == "batch" else advantages

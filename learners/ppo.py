"""Proximal policy optimization (Schulman et al., 2017, https://arxiv.org/abs/1707.06347), recurrent policies too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn
from torch.optim import Adam

from connectors.connector import Connector
from connectors.distributions import ActionDistribution
from connectors.learner import GeneralizedAdvantageEstimation, LearnerPipeline, learner_pipeline
from connectors.pipeline import ConnectorPipeline
from connectors.policy import check_asked, module_of, seen_columns
from connectors.views import View, Views
from episodes.columns import Columns
from episodes.errors import InvalidArgument, UnknownKey
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks.nested import leaves, map_leaves
from learners.algorithm import Algorithm, MakeScheduler
from learners.policy import Policy

__all__ = ["PPO", "PPOConfig", "clipped_surrogate", "ppo_loss", "ppo_pipeline"]

_ASKED = ("parameters", "device", "distribution", "compute_values", "observation_space", "action_space")
_STEP_COLUMNS = (
    Columns.ACTIONS,
    Columns.ACTION_LOGP,
    Columns.ADVANTAGES,
    Columns.VALUE_TARGETS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOConfig:
    """The numbers of PPO."""

    learning_rate: float = 3e-4
    gamma: float = 0.99  # discount per step
    lambda_: float = 0.95  # of generalized advantage estimation
    num_epochs: int = 10  # passes over a train batch
    minibatch_size: int = 128  # steps; of a recurrent policy, as many sequences as hold them
    max_seq_len: int = 20  # steps in a sequence of a recurrent policy
    clip: float = 0.2  # how far the probability ratio may leave 1
    value_coefficient: float = 0.5
    entropy_coefficient: float = 0.0
    max_gradient_norm: float = 0.5
    standardize_advantages: bool = True
    max_kl: float | None = None  # no further epoch once the policy has moved that far; None: all epochs

    def __post_init__(self) -> None:
        for name in ("num_epochs", "minibatch_size", "max_seq_len"):
            if getattr(self, name) < 1:
                raise InvalidArgument(f"PPOConfig: {name} is {getattr(self, name)}; it must be at least 1.")
        for name in ("gamma", "lambda_"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidArgument(f"PPOConfig: {name} is {getattr(self, name)}; it must lie in 0..1.")


class PPO(Algorithm):
    """Learns from episodes that its own policy, as it is now, has just sampled.

    Args:
        policy: a policy whose `forward(batch)` gives `action_dist_inputs` and `vf_preds`, and that has all of
            `learners.Policy`; the error names what is missing.
        config: the numbers.
        pipeline: episodes to train batch; `ppo_pipeline(policy, config)` by default.
        scheduler: of the learning rate, for instance `linear_decay(100)`.
        seed: of the shuffling.
    """

    def __init__(
        self,
        policy: Policy,
        config: PPOConfig | None = None,
        *,
        pipeline: ConnectorPipeline | None = None,
        scheduler: MakeScheduler | None = None,
        seed: int = 0,
    ) -> None:
        config = config or PPOConfig()
        check_asked(policy, type(self).__name__, _ASKED)
        optimizer = Adam(policy.parameters(), lr=config.learning_rate, eps=1e-5, fused=True)
        super().__init__(policy, optimizer, scheduler=scheduler, seed=seed)
        self.config = config
        self.pipeline = pipeline or ppo_pipeline(policy, config)

    def preprocess(self, episodes: Sequence[SingleAgentEpisode]) -> dict[str, Any]:
        return self.pipeline(rl_module=self.policy, batch={}, episodes=episodes)

    def learn(self, batch: dict[str, Any]) -> dict[str, float]:
        columns = _learned_from(batch)
        measured: list[dict[str, Tensor]] = []
        for _ in range(self.config.num_epochs):
            epoch = [self._step(minibatch) for minibatch in self._minibatches(columns)]
            measured += epoch
            if self.config.max_kl is not None and _means(epoch)["kl"] > self.config.max_kl:
                break
        return _means(measured)

    def _minibatches(self, columns: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The rows of all columns in random order, `minibatch_size` steps at a time."""
        advantages = columns[Columns.ADVANTAGES]  # [B] or [B, T]
        steps_per_row = advantages.shape[1] if advantages.ndim == 2 else 1
        order = torch.randperm(len(advantages), generator=self.generator).to(advantages.device)
        for rows in order.split(max(1, self.config.minibatch_size // steps_per_row)):
            yield {name: _gathered(column, rows) for name, column in columns.items()}

    def _step(self, minibatch: dict[str, Any]) -> dict[str, Tensor]:
        """One step of the optimizer on rows of the train batch; what was measured, each a scalar tensor."""
        outputs = self.policy(minibatch)
        mask = minibatch.get(Columns.LOSS_MASK)
        if mask is not None:  # padding ends here: from now on all rows are real steps
            minibatch = {name: _gathered(minibatch[name], mask) for name in _STEP_COLUMNS if name in minibatch}
            outputs = {name: outputs[name][mask] for name in (Columns.ACTION_DIST_INPUTS, Columns.VF_PREDS)}
        loss, measured = ppo_loss(self.policy.distribution, outputs, minibatch, self.config)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.policy.parameters(), self.config.max_gradient_norm)
        if not torch.isfinite(norm):
            raise InvalidArgument(
                "PPO: the gradient is not finite, and no step was taken; look for NaN or infinite values in the "
                "observations, rewards or advantages of the batch (Batch(batch).isnull() tells where)"
            )
        measured["gradient_norm"] = norm
        self.optimizer.step()
        return measured


def ppo_pipeline(
    policy: Policy,
    config: PPOConfig,
    *,
    pieces: Iterable[Connector | View] = (),
    views: Views | None = None,
    observation_space: gym.Space | None = None,
) -> LearnerPipeline:
    """The pipeline from episodes to PPO's train batch on the policy's device.

    Args:
        pieces: your own, which come first.
        views: what the policy sees of what the episodes hold: `runner.env_to_module.views`.
        observation_space: of what the episodes hold, where the policy sees something else and there are no `views`.
    """
    advantages = GeneralizedAdvantageEstimation(
        gamma=config.gamma, lambda_=config.lambda_, normalize=config.standardize_advantages
    )
    if observation_space is None:
        observation_space = policy.observation_space if views is None else views.given.observation_space
    return learner_pipeline(
        observation_space,
        policy.action_space,
        pieces=pieces,
        views=views,
        returns=advantages,
        policy=policy,
        max_seq_len=config.max_seq_len if module_of(policy).has_memory else None,
        device=policy.device,
    )


def ppo_loss(
    distribution: ActionDistribution, outputs: Mapping[str, Tensor], batch: Mapping[str, Any], config: PPOConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss, a scalar, of a policy's outputs [B, ...] on steps [B, ...], and what it is made of."""
    inputs = outputs[Columns.ACTION_DIST_INPUTS]
    log_ratio = distribution.log_prob(inputs, batch[Columns.ACTIONS]) - batch[Columns.ACTION_LOGP]
    ratio = log_ratio.exp()
    policy_loss = -clipped_surrogate(ratio, batch[Columns.ADVANTAGES], config.clip).mean()
    value_loss = (outputs[Columns.VF_PREDS] - batch[Columns.VALUE_TARGETS]).square().mean()
    entropy = distribution.entropy(inputs).mean()
    loss = policy_loss + config.value_coefficient * value_loss - config.entropy_coefficient * entropy
    measured = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "kl": (ratio - 1 - log_ratio).mean(),  # unbiased and never negative: http://joschu.net/blog/kl-approx.html
        "clip_fraction": ((ratio - 1).abs() > config.clip).float().mean(),
    }
    return loss, {name: value.detach() for name, value in measured.items()}


def clipped_surrogate(ratio: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """PPO's objective [B] of probability ratios [B]: leaving 1 - clip..1 + clip gains nothing."""
    return torch.min(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)


def _learned_from(batch: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a train batch that PPO and its policy read."""
    missing = [name for name in (Columns.OBS, *_STEP_COLUMNS) if name not in batch]
    if missing:
        raise UnknownKey(
            f"PPO.learn: the train batch has no {', '.join(missing)} (it has {', '.join(batch)}); sample with "
            "explore=True, and let the learner pipeline compute advantages."
        )
    if len(batch[Columns.ADVANTAGES]) == 0:
        raise InvalidArgument("PPO.learn: the train batch has no steps; sample some first.")
    columns = {**seen_columns(batch), Columns.ACTION_LOGP: batch[Columns.ACTION_LOGP]}
    return {name: column for name, column in columns.items() if _is_tensors(column)}


def _is_tensors(column: Any) -> bool:
    return all(isinstance(leaf, Tensor) for leaf in leaves(column))


def _gathered(column: Any, rows: Tensor) -> Any:
    """The rows, by index or by mask, of a column of nested tensors."""
    return map_leaves(lambda leaf: leaf[rows], column)


def _means(measured: list[dict[str, Tensor]]) -> dict[str, float]:
    table = torch.stack([torch.stack(list(row.values())) for row in measured])
    return dict(zip(measured[0], table.mean(0).tolist(), strict=True))

"""GRPO for language agents: policy gradients of sampled tokens, with advantages relative to a group of episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from connectors.learner.token_columns import TokenColumns
from connectors.pipeline import ConnectorPipeline
from connectors.tensors import NumpyToTensor
from episode_learners.algorithms.algorithm import Algorithm, MakeScheduler, Measured
from episode_learners.algorithms.config import AlgorithmConfig
from episode_learners.algorithms.config_checks import choice, count, not_negative, positive
from episode_learners.algorithms.flat_optimizer import adam_optimizer
from episode_learners.algorithms.grpo import Baseline, Scale, group_advantages
from episode_learners.algorithms.token_losses import (
    TokenMean,
    clipped_token_loss,
    label_log_probs,
    sequence_of_labels,
    token_mean,
)
from episodes.columns import Columns
from episodes.errors import InvalidArgument, UnknownKey
from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode
from episodes.tokens.batch import Layout
from episodes.tokens.minibatches import select_sequences, sequence_groups, sequence_lengths
from episodes.tokens.names import GROUP

__all__ = ["TokenGRPO", "TokenGRPOConfig", "TokenPolicy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenGRPOConfig(AlgorithmConfig):
    """Hyperparameters of GRPO for language models (`TokenGRPO`).

    Attributes:
        num_epochs: Passes over a train batch.
        num_minibatches: Gradient steps per pass. Each uses the same number of sequences, shuffled.
        max_tokens: Most tokens, padding included, in one forward pass. Gradients of larger minibatches are
            accumulated, with the same result. None: no limit.
        layout: "packed": sequences one after another. "padded": a row per sequence.
        group_size: Successive episodes that form a group, unless all have a group in their custom data.
        baseline: Mean return that is subtracted: of the "group", of the "batch", or of the other episodes of the group
            ("leave_one_out").
        scale: Standard deviation that advantages are divided by: of the "group", of the "batch", or None.
        mean: "token": the loss is the mean over all tokens. "sequence": the mean over sequences of the mean over their
            tokens.
        ratio: Importance ratio of each "token", or of the whole "sequence" (GSPO).
        clip_low: Largest decrease of the ratio below 1 that the loss rewards.
        clip_high: Largest increase of the ratio above 1 that the loss rewards.
        kl_coefficient: Weight of the KL divergence from the reference policy in the loss.
    """

    learning_rate: float = 1e-6
    max_gradient_norm: float | None = 1.0
    num_epochs: int = count(1)
    num_minibatches: int = count(1)
    max_tokens: int | None = count(None)
    layout: Layout = choice("packed", "padded")
    group_size: int = count(8)
    baseline: Baseline = choice("group", "batch", "leave_one_out")
    scale: Scale | None = choice("batch", "group", None)
    mean: TokenMean = choice("token", "sequence")
    ratio: TokenMean = choice("token", "sequence")
    clip_low: float = positive(0.2)
    clip_high: float = positive(0.2)
    kl_coefficient: float = not_negative(0.0)


class TokenPolicy(nn.Module):
    """Policy made of a language model: it maps a batch of tokens to logits.

    Args:
        model: the model.
        forward: function of the model and a token batch that returns logits [N, V] or [S, L, V], or an object with the
            attribute `logits`. By default `model(batch)`.
    """

    def __init__(self, model: nn.Module, forward: Callable[[Any, Mapping[str, Any]], Any] | None = None) -> None:
        super().__init__()
        self.model, self._forward = model, forward

    @property
    def device(self) -> torch.device:
        """Device of the model's first parameter."""
        return next(self.model.parameters()).device

    def forward(self, batch: Mapping[str, Any]) -> Tensor:
        outputs = self.model(batch) if self._forward is None else self._forward(self.model, batch)
        return getattr(outputs, "logits", outputs)


class TokenGRPO(Algorithm):
    """GRPO algorithm for language models: a clipped policy gradient of sampled tokens without a critic. The advantage
    of an episode is its return relative to a group of episodes.

    Shao et al., 2024, https://arxiv.org/abs/2402.03300. Episodes are recorded by a `Conversation` or `TokenRecorder`
    with the output "logp". A group is the episodes with one `custom_data["group"]`, or `group_size` successive
    episodes. All episodes must be complete.

    `update(pack)` learns from episodes. To use advantages of turns, override `episode_advantages`, or build the batch
    with `token_batch(pack, advantages=...)` and call `learn`.

    Args:
        model: a causal language model.
        config: hyperparameters.
        forward: function of the model and a token batch that returns logits. By default `model(batch)`. For a model of
            Hugging Face with the padded layout:
            `lambda model, batch: model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits`.
        reference: the model of the KL term; by default a copy of `model` as it is now.
        scheduler: function that returns the learning rate schedule of an optimizer.
        seed: seed of the order of minibatches.
    """

    policy: TokenPolicy  # type: ignore[assignment]

    def __init__(
        self,
        model: nn.Module,
        config: TokenGRPOConfig | None = None,
        *,
        forward: Callable[[Any, Mapping[str, Any]], Any] | None = None,
        reference: nn.Module | None = None,
        scheduler: MakeScheduler | None = None,
        seed: int = 0,
    ) -> None:
        config = config or TokenGRPOConfig()
        policy: Any = TokenPolicy(model, forward)
        targets: dict[str, nn.Module] = {}
        if config.kl_coefficient:
            targets["reference"] = policy if reference is None else TokenPolicy(reference, forward)
        optimizer = adam_optimizer(model.parameters(), config)
        super().__init__(policy, {"policy": optimizer}, targets=targets, scheduler=scheduler, seed=seed)
        self.config = config
        columns = TokenColumns(layout=config.layout, episode_advantages=self.episode_advantages)
        self.pipeline = ConnectorPipeline(connectors=[columns, NumpyToTensor(device=policy.device)])

    def episode_advantages(self, pack: EpisodePack) -> np.ndarray:
        """Return the advantage of each episode of a pack, float64 [n]: its return relative to its group. Override it to
        use other advantages.
        """
        config = self.config
        return group_advantages(pack.returns(), self._groups(pack), config.scale, config.baseline)

    def _groups(self, pack: EpisodePack) -> np.ndarray:
        """Return the group number of each episode of a pack, int [n], by its `custom_data["group"]`, or else by its
        position.

        Raises:
            InvalidArgument: episodes have no groups, and their number is not a multiple of `group_size`.
        """
        keys = [data.get(GROUP) for data in pack.custom_data or ()]
        if keys and None not in keys:
            numbers: dict[Any, int] = {}
            return np.array([numbers.setdefault(key, len(numbers)) for key in keys])
        if len(pack) % self.config.group_size:
            raise InvalidArgument(
                f"TokenGRPO: {len(pack)} episodes without groups; record them with group=, or give a multiple of "
                f"group_size, which is {self.config.group_size}"
            )
        return np.arange(len(pack)) // self.config.group_size

    def update(self, episodes: Sequence[SingleAgentEpisode]) -> dict[str, float]:
        return self._updated(self.preprocess(episodes))

    def preprocess(self, episodes: Sequence[SingleAgentEpisode]) -> dict[str, Any]:
        """Return a batch of the tokens of complete episodes, with the advantage of its episode for each sampled token.

        Raises:
            InvalidArgument: an episode is a chunk of an episode, or the number of episodes without groups is not a
                multiple of `group_size`.
            UnknownKey: the episodes have no log-probabilities of tokens.
        """
        pack = EpisodePack.from_episodes(episodes)
        is_part = ~(pack.terminated | pack.truncated) | (pack.t_started > 0)
        if is_part.any():
            raise InvalidArgument(
                f"TokenGRPO compares the returns of whole episodes; episode {pack.ids[int(is_part.argmax())]} is a "
                "chunk: join its chunks with concat_episode, or set terminated or truncated in its last turn"
            )
        batch = self.pipeline(rl_module=self.policy, batch={}, episodes=pack)
        if Columns.ACTION_LOGP not in batch:
            raise UnknownKey("TokenGRPO: the episodes have no output 'logp'; record turns with logp=")
        return batch

    def minibatches(self, batch: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield `num_minibatches` minibatches of token sequences in random order, for `num_epochs` passes over a batch.
        A single minibatch is the whole batch.
        """
        num = len(sequence_lengths(batch))
        for _ in range(self.config.num_epochs):
            if self.config.num_minibatches == 1:
                yield dict(batch)
                continue
            order = torch.randperm(num, generator=self.generator, device=self.generator.device).numpy()
            for indices in np.array_split(order, min(self.config.num_minibatches, num)):
                yield select_sequences(batch, indices).to_dict()

    def backward(self, minibatch: Mapping[str, Any], optimizer: str = "policy", scale: float = 1.0) -> Measured:
        """Add the gradient of a minibatch's loss, times `scale`, to the gradients of the parameters. The minibatch is
        processed in parts of at most `max_tokens` tokens, to save memory.
        """
        parts = list(self._parts(minibatch))
        if len(parts) == 1:
            return super().backward(minibatch, optimizer, scale)
        weights = [self._weight(part) for part in parts]
        total = max(sum(weights), 1)
        measured: Measured = {}
        for part, weight in zip(parts, weights, strict=True):
            for name, value in super().backward(part, optimizer, scale * weight / total).items():
                measured[name] = measured.get(name, 0.0) + value * (weight / total)
        return measured

    def _parts(self, minibatch: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Yield parts of a minibatch that have at most `max_tokens` tokens each. Without a limit, yield the minibatch
        itself.
        """
        limit = self.config.max_tokens
        if limit is None or minibatch["input_ids"].numel() <= limit:
            yield minibatch
            return
        is_padded = self.config.layout == "padded"
        for indices in sequence_groups(sequence_lengths(minibatch), limit, is_padded=is_padded):
            yield select_sequences(minibatch, indices).to_dict()

    def _weight(self, part: Mapping[str, Any]) -> int:
        """Return the weight of a part of a minibatch in the mean loss: its number of learned tokens, or of sequences,
        depending on `mean`.
        """
        sequences = sequence_of_labels(part)
        return len(sequences) if self.config.mean == "token" else len(sequences.unique())

    def loss(self, minibatch: Mapping[str, Any], optimizer: str = "policy") -> tuple[Tensor, Measured]:
        """Return the clipped policy loss of the sampled tokens, plus the weighted KL divergence from the reference
        model if configured, and scalars to log.
        """
        config = self.config
        log_probs = label_log_probs(self.policy(minibatch), minibatch)
        loss, measured = clipped_token_loss(
            log_probs,
            minibatch,
            clip_low=config.clip_low,
            clip_high=config.clip_high,
            mean=config.mean,
            ratio=config.ratio,
        )
        if config.kl_coefficient:
            with torch.no_grad():
                reference = label_log_probs(cast(Tensor, self._target("reference")(minibatch)), minibatch)
            log_ratios = reference - log_probs
            kl = token_mean(log_ratios.exp() - 1 - log_ratios, sequence_of_labels(minibatch), config.mean)
            loss, measured = loss + config.kl_coefficient * kl, {**measured, "reference_kl": kl.detach()}
        return loss, measured

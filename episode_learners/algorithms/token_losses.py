"""Losses of language models over the tokens that they sampled. Only tokens where "loss_mask" is True are learned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from episodes.columns import Columns
from episodes.errors import ShapeMismatch, UnknownKey
from episodes.tokens.names import EPISODES, TRAINER_LOGP, WEIGHTS

__all__ = [
    "DIVISORS",
    "TRAINER_LOGP",
    "TokenMean",
    "clipped_token_loss",
    "label_log_probs",
    "token_divisors",
    "token_mean",
]

TokenMean = Literal["token", "sequence"]
DIVISORS = "divisors"
"""Column of the divisor of each token's value in the mean over a minibatch, of which a batch is a part."""


def label_log_probs(logits: Tensor, batch: Mapping[str, Any]) -> Tensor:
    """Return the log-probability that a model's logits give to each learned token (where "loss_mask" is True), float32
    [A].

    Args:
        logits: [N, V] or [1, N, V] of a packed batch, [S, L, V] of a padded one.
        batch: columns "labels" and "loss_mask", [N] or [S, L].

    Raises:
        ShapeMismatch: the logits do not have one row per token of the batch.
    """
    mask = batch[Columns.LOSS_MASK].bool()
    if logits.ndim < 2 or logits.shape[:-1].numel() != mask.numel():
        raise ShapeMismatch(
            f"the model returned logits of shape {list(logits.shape)} for tokens of shape {list(mask.shape)}; return "
            "the tokens' shape and a last axis for the vocabulary"
        )
    logits = logits.reshape(*mask.shape, logits.shape[-1])[mask]
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    return logits.log_softmax(-1).gather(-1, batch["labels"][mask].long()[:, None])[:, 0]


def episode_of_labels(batch: Mapping[str, Any]) -> Tensor:
    """Return the episode that each learned token (where "loss_mask" is True) belongs to, int64 [A]. All sequences
    (branches) of an episode have its number.

    Raises:
        UnknownKey: the batch has no column "episodes".
    """
    if EPISODES not in batch:
        raise UnknownKey(
            f"the batch has no {EPISODES!r}, only {sorted(batch)}; give the episode of each sequence, int64 [S], as "
            "token_batch does"
        )
    mask = batch[Columns.LOSS_MASK].bool()
    sequences = mask.nonzero()[:, 0]
    if mask.ndim == 1:
        sequences = torch.bucketize(sequences, batch["cu_seqlens"][1:].to(sequences.dtype), right=True)
    return batch[EPISODES].to(sequences.device)[sequences]


def token_divisors(batch: Mapping[str, Any], mean: TokenMean) -> Tensor:
    """Return the number by which the value of each token is divided in the mean over a batch, in the shape of
    "loss_mask": the number of learned tokens, or of the learned tokens of its episode times the number of episodes.

    With a column "weights", the means are weighted, with sums of weights in place of numbers. The divisor of a token
    with weight 0 is infinite.

    Args:
        batch: a packed or padded token batch. The weights of an episode's tokens are equal.
        mean: "token": mean over all tokens. "sequence": mean over episodes of the mean over their tokens. The weight of
            an episode does not depend on the number of its branches. Episodes without a learned token do not count.
    """
    mask = batch[Columns.LOSS_MASK].bool()
    weights = batch[WEIGHTS][mask] if WEIGHTS in batch else None
    dtype = torch.int64 if weights is None else weights.dtype
    divisors = torch.ones(mask.shape, dtype=dtype, device=mask.device)
    if mean == "token":
        numbers = mask.sum() if weights is None else weights.sum().expand(len(weights))
    else:
        _, indices, counts = torch.unique(episode_of_labels(batch), return_inverse=True, return_counts=True)
        num_episodes: Any = len(counts)
        if weights is not None:
            num_episodes = weights.new_zeros(len(counts)).index_copy(0, indices, weights).sum()
        numbers = (counts * num_episodes)[indices]
    divisors[mask] = numbers if weights is None else (numbers / weights).masked_fill(weights == 0, torch.inf)
    return divisors


def token_mean(values: Tensor, divisors: Tensor) -> Tensor:
    """Return the mean of one value per learned token, or the share in it of a part of the minibatch: 0 if there are no
    tokens.

    Args:
        values: one per learned token, [A].
        divisors: divisors of the learned tokens, [A].
    """
    return (values / divisors).sum()


def clipped_token_loss(
    log_probs: Tensor,
    batch: Mapping[str, Any],
    *,
    divisors: Tensor,
    clip_low: float,
    clip_high: float,
    ratio: TokenMean,
    max_correction: float | None = None,
    rows: dict[str, Tensor] | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the clipped policy gradient loss of sampled tokens, a scalar, as in PPO and GRPO, and a dict of scalars to
    log.

    Args:
        log_probs: log-probabilities of the learned tokens under the current policy, [A].
        batch: columns "loss_mask", "action_logp", "advantages", "episodes" and "cu_seqlens" (packed).
        divisors: divisors of the learned tokens in the mean, [A], see `token_divisors`.
        clip_low: ratios below 1 - clip_low do not increase the objective of negative advantages.
        clip_high: ratios above 1 + clip_high do not increase the objective of positive advantages.
        ratio: importance ratio of each "token", or of the "sequence": the geometric mean of the ratios of all tokens of
            an episode, its branches included (GSPO, Zheng et al., 2025, https://arxiv.org/abs/2507.18071). The batch
            then has all sequences of its episodes.
        max_correction: truncated importance sampling (Yao et al., 2025, https://fengyao.notion.site/off-policy-rl) with
            this largest weight C. The batch has the column "trainer_logp", the log-probabilities p of the trained model
            before the update. Ratios are relative to p, and the objective of each token is multiplied by
            min(exp(p - action_logp), C), without a gradient. None: ratios are relative to "action_logp".
        rows: dict to which columns [A] for measurements of the tokens are added.
    """
    mask = batch[Columns.LOSS_MASK].bool()
    sampler = batch[Columns.ACTION_LOGP][mask]
    before = sampler if max_correction is None else batch[TRAINER_LOGP][mask]
    log_ratios = log_probs - before
    ratios = (log_ratios if ratio == "token" else _episode_means(log_ratios, episode_of_labels(batch))).exp()
    advantages = batch[Columns.ADVANTAGES][mask]
    objective = torch.min(ratios * advantages, ratios.clamp(1 - clip_low, 1 + clip_high) * advantages)
    measured = {}
    if max_correction is not None:
        mismatches = before - sampler
        weights = mismatches.exp()
        objective = objective * weights.clamp(max=max_correction)
        measured["sampler_kl"] = token_mean(weights - 1 - mismatches, divisors)
        measured["truncated_fraction"] = token_mean((weights > max_correction).to(weights.dtype), divisors)
    if rows is not None:
        rows |= {"objective": objective, "ratio": ratios, "advantage": advantages, "divisors": divisors}
        rows |= {"log_prob": log_probs, Columns.ACTION_LOGP: sampler}
    with torch.no_grad():
        is_clipped = ((ratios > 1 + clip_high) & (advantages > 0)) | ((ratios < 1 - clip_low) & (advantages < 0))
        measured["kl"] = token_mean(log_ratios.exp() - 1 - log_ratios, divisors)
        if rows is not None:
            rows["clipped"] = is_clipped
        measured["clip_fraction"] = token_mean(is_clipped.to(ratios.dtype), divisors)
    return -token_mean(objective, divisors), measured


def _episode_means(values: Tensor, episodes: Tensor) -> Tensor:
    """Return for each token the mean of the values of its episode, [A].

    Args:
        values: one per learned token, [A].
        episodes: episode of each token, int64 [A].
    """
    _, indices, counts = torch.unique(episodes, return_inverse=True, return_counts=True)
    sums = values.new_zeros(len(counts)).index_add(0, indices, values)
    return (sums / counts)[indices]

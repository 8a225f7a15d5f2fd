"""Losses of language models over the tokens that they sampled. Only tokens where "loss_mask" is True are learned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from episodes.columns import Columns
from episodes.errors import ShapeMismatch

__all__ = ["TokenMean", "clipped_token_loss", "label_log_probs", "sequence_of_labels", "token_mean"]

TokenMean = Literal["token", "sequence"]


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


def sequence_of_labels(batch: Mapping[str, Any]) -> Tensor:
    """Return the index of the sequence that each learned token (where "loss_mask" is True) belongs to, int64 [A]."""
    mask = batch[Columns.LOSS_MASK].bool()
    places = mask.nonzero()[:, 0]
    if mask.ndim == 2:
        return places
    return torch.bucketize(places, batch["cu_seqlens"][1:].to(places.dtype), right=True)


def token_mean(values: Tensor, sequences: Tensor, mean: TokenMean) -> Tensor:
    """Average one value per token, [A]: over all tokens, or first within each sequence and then over the sequences.
    Return 0 if there are no tokens.

    Args:
        values: one per learned token.
        sequences: index of the sequence of each token, int64 [A].
        mean: "token" or "sequence".
    """
    if not len(values):
        return values.sum()
    return values.mean() if mean == "token" else _sequence_means(values, sequences)[0].mean()


def _sequence_means(values: Tensor, sequences: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of the values of each sequence that has tokens, [S'], and for each token the index of its mean,
    [A].
    """
    _, indices, counts = torch.unique_consecutive(sequences, return_inverse=True, return_counts=True)
    sums = values.new_zeros(len(counts)).index_add(0, indices, values)
    return sums / counts, indices


def clipped_token_loss(
    log_probs: Tensor,
    batch: Mapping[str, Any],
    *,
    clip_low: float,
    clip_high: float,
    mean: TokenMean,
    ratio: TokenMean,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the clipped policy gradient loss of sampled tokens, a scalar, as in PPO and GRPO, and a dict of scalars to
    log.

    Args:
        log_probs: log-probabilities of the learned tokens under the current policy, [A].
        batch: columns "loss_mask", "action_logp", "advantages" and "cu_seqlens" (packed).
        clip_low: ratios below 1 - clip_low do not increase the objective of negative advantages.
        clip_high: ratios above 1 + clip_high do not increase the objective of positive advantages.
        mean: mean over all tokens, or over sequences of their means.
        ratio: importance ratio of each "token", or of the "sequence": the geometric mean of its tokens' ratios (GSPO,
            Zheng et al., 2025, https://arxiv.org/abs/2507.18071).
    """
    mask, sequences = batch[Columns.LOSS_MASK].bool(), sequence_of_labels(batch)
    log_ratios = log_probs - batch[Columns.ACTION_LOGP][mask]
    if ratio == "sequence" and len(log_ratios):
        means, indices = _sequence_means(log_ratios, sequences)
        ratios = means.exp()[indices]
    else:
        ratios = log_ratios.exp()
    advantages = batch[Columns.ADVANTAGES][mask]
    objective = torch.min(ratios * advantages, ratios.clamp(1 - clip_low, 1 + clip_high) * advantages)
    with torch.no_grad():
        is_clipped = ((ratios > 1 + clip_high) & (advantages > 0)) | ((ratios < 1 - clip_low) & (advantages < 0))
        measured = {
            "kl": token_mean(log_ratios.exp() - 1 - log_ratios, sequences, mean),
            "clip_fraction": token_mean(is_clipped.to(ratios.dtype), sequences, mean),
        }
    return -token_mean(objective, sequences, mean), measured

"""GRPO for language agents: policy gradients of sampled tokens, with advantages relative to a group of episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
    DIVISORS,
    TRAINER_LOGP,
    TokenMean,
    clipped_token_loss,
    label_log_probs,
    token_divisors,
    token_mean,
)
from episodes.batch.origin import resolved
from episodes.batch.train_batch import TrainBatch
from episodes.columns import Columns
from episodes.errors import InvalidArgument, UnknownKey
from episodes.pack import EpisodePack
from episodes.pack.steps import PackSteps
from episodes.single_agent import SingleAgentEpisode
from episodes.tokens.arguments import as_numpy
from episodes.tokens.batch import Layout
from episodes.tokens.groups import group_numbers
from episodes.tokens.long_sequences import Longer, limit_sequences
from episodes.tokens.minibatches import select_sequences, sequence_groups, sequence_lengths
from episodes.tokens.names import EPISODES

__all__ = ["TokenGRPO", "TokenGRPOConfig", "TokenPolicy"]

_PLACES = "places"  # column of the index of each position in the whole batch


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenGRPOConfig(AlgorithmConfig):
    """Hyperparameters of GRPO for language models (`TokenGRPO`).

    Attributes:
        num_epochs: Passes over a train batch.
        num_minibatches: Gradient steps per pass. Each uses the same number of episodes, shuffled, with all their
            sequences (branches).
        max_tokens: Most tokens, padding included, in one forward pass. Gradients of larger minibatches are
            accumulated, with the same result. None: no limit. With `ratio="sequence"`, all sequences of an episode are
            in one forward pass.
        max_length: Most tokens of a sequence, such as the model's context. None: no limit.
        longer: What to do with longer sequences: raise an "error", "skip" them or "cut" their end. Metrics then have
            "skipped_sequences", "cut_sequences" and "lost_tokens" (learned tokens that were left out).
        layout: "packed": sequences one after another. "padded": a row per sequence.
        group_size: Successive episodes that form a group, if none has a group in its custom data.
        baseline: Mean return that is subtracted: of the "group", of the "batch", or of the other episodes of the group
            ("leave_one_out").
        scale: Standard deviation that advantages are divided by: of the "group", of the "batch", or None.
        mean: "token": the loss is the mean over all tokens. "sequence": the mean over episodes of the mean over their
            tokens. The tokens of all branches of an episode count together.
        ratio: Importance ratio of each "token", or of the whole "sequence" (GSPO): all sampled tokens of an episode.
        clip_low: Largest decrease of the ratio below 1 that the loss rewards.
        clip_high: Largest increase of the ratio above 1 that the loss rewards.
        kl_coefficient: Weight of the KL divergence from the reference policy in the loss.
        max_correction: Truncated importance sampling, for a server whose log-probabilities differ from those of the
            model that is trained: each token is weighted by the quotient of both probabilities, at most this number,
            such as 2. Costs a forward pass per update. None: the recorded log-probabilities count as those of the
            model. See `clipped_token_loss`.
    """

    learning_rate: float = 1e-6
    max_gradient_norm: float | None = 1.0
    num_epochs: int = count(1)
    num_minibatches: int = count(1)
    max_tokens: int | None = count(None)
    max_length: int | None = count(None)
    longer: Longer = choice("error", "skip", "cut")
    layout: Layout = choice("packed", "padded")
    group_size: int = count(8)
    baseline: Baseline = choice("group", "batch", "leave_one_out")
    scale: Scale | None = choice("batch", "group", None)
    mean: TokenMean = choice("token", "sequence")
    ratio: TokenMean = choice("token", "sequence")
    clip_low: float = positive(0.2)
    clip_high: float = positive(0.2)
    kl_coefficient: float = not_negative(0.0)
    max_correction: float | None = positive(None)


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
    with the output "logp". A group is a group of a `TokenRecorder`, or the episodes of other origin with one
    `custom_data["group"]`, or `group_size` successive episodes without groups: see `group_numbers`. All episodes must
    be complete.

    `update(pack)` learns from episodes. To use other advantages of episodes, override `episode_advantages`. For
    advantages of turns, build the batch with `token_batch(pack, advantages=...)` and call `learn`.

    Args:
        model: a causal language model.
        config: hyperparameters.
        forward: function of the model and a token batch that returns logits. By default `model(batch)`. Models of
            Hugging Face need one; docs/how_to/token_grpo.md has it for both layouts. With the packed layout it passes
            "position_ids", without which attention crosses sequences.
        reference: the model of the KL term; by default a copy of `model` as it is now.
        token_advantages: function that returns the advantage of each sampled token of a pack, [A] or ragged, in place
            of the advantages of episodes.
        episode_weights: function that returns the weight of each episode of a pack in the means of the loss, [n].
        infos: keys of infos that become columns of the batch, such as "images". None: infos must not have "images".
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
        token_advantages: Callable[[EpisodePack], Any] | None = None,
        episode_weights: Callable[[EpisodePack], np.ndarray] | None = None,
        infos: Sequence[str] | None = None,
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
        columns = TokenColumns(
            layout=config.layout,
            episode_advantages=self.episode_advantages if token_advantages is None else None,
            token_advantages=token_advantages,
            episode_weights=episode_weights,
            infos=infos,
        )
        self.pipeline = ConnectorPipeline(connectors=[columns, NumpyToTensor(device=policy.device)])

    def episode_advantages(self, pack: EpisodePack) -> np.ndarray:
        """Return the advantage of each episode of a pack, float64 [n]: its return relative to its group. Override it to
        use other advantages.
        """
        config = self.config
        groups = group_numbers(pack, group_size=config.group_size)
        return group_advantages(pack.returns(), groups, config.scale, config.baseline)

    def update(self, episodes: Sequence[SingleAgentEpisode]) -> dict[str, float]:
        return self._updated(self.preprocess(episodes))

    def preprocess(self, episodes: Sequence[SingleAgentEpisode]) -> dict[str, Any]:
        """Return a batch of the tokens of complete episodes, with the advantage of its episode for each sampled token.

        Raises:
            InvalidArgument: an episode is a chunk of an episode, a group is not complete, or the number of episodes
                without groups is not a multiple of `group_size`.
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
        if isinstance(batch, TrainBatch) and batch.lazy_origin is not None:
            batch.lazy_origin = PackSteps(pack, episodes), batch.lazy_origin[1]
        if Columns.ACTION_LOGP not in batch:
            raise UnknownKey("TokenGRPO: the episodes have no output 'logp'; record turns with logp=")
        return batch

    def learn(self, batch: Mapping[str, Any]) -> dict[str, float]:
        """Take gradient steps on the minibatches of a token batch, and return the mean of each logged scalar.

        Sequences above `max_length` are handled as configured. With `max_correction`, the batch gets the column
        "trainer_logp" before the first step, unless it has one.

        Raises:
            InvalidArgument: a sequence is longer than `max_length`, or all are.
        """
        config, counts = self.config, {}
        if self.measures_rows:
            batch = {**batch, _PLACES: _places_of(batch)}
        if config.max_length is not None:
            limited, report = limit_sequences(batch, config.max_length, longer=config.longer)
            batch = limited.to_dict()
            lost = report.num_skipped, report.num_cut, report.num_lost_tokens
            counts = dict(zip(("skipped_sequences", "cut_sequences", "lost_tokens"), map(float, lost), strict=True))
        if config.max_correction is not None and TRAINER_LOGP not in batch:
            batch = {**batch, TRAINER_LOGP: self.trainer_log_probs(batch)}
        return {**super().learn(batch), **counts}

    @torch.no_grad()
    def trainer_log_probs(self, batch: Mapping[str, Any]) -> Tensor:
        """Return the log-probability that the trained model gives to each learned token of a token batch, in the shape
        of "loss_mask" and 0 elsewhere. At most `max_tokens` tokens are in one forward pass.
        """
        log_probs = torch.zeros_like(batch[Columns.ACTION_LOGP])
        for part in self._parts({**batch, _PLACES: _places_of(batch)}):
            values = label_log_probs(self.policy(part), part)
            log_probs.view(-1)[part[_PLACES][part[Columns.LOSS_MASK].bool()]] = values.to(log_probs.dtype)
        return log_probs

    def minibatches(self, batch: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield `num_minibatches` minibatches of the sequences of whole episodes in random order, for `num_epochs`
        passes over a batch. A single minibatch is the whole batch.
        """
        for _ in range(self.config.num_epochs):
            if self.config.num_minibatches == 1:
                yield dict(batch)
                continue
            owners = as_numpy(batch[EPISODES])
            episodes = np.unique(owners)
            order = torch.randperm(len(episodes), generator=self.generator, device="cpu").numpy()
            for part in np.array_split(episodes[order], max(min(self.config.num_minibatches, len(episodes)), 1)):
                yield select_sequences(batch, np.flatnonzero(np.isin(owners, part))).to_dict()

    def backward(self, minibatch: Mapping[str, Any], optimizer: str = "policy", scale: float = 1.0) -> Measured:
        """Add the gradient of a minibatch's loss, times `scale`, to the gradients of the parameters. The minibatch is
        processed in parts of at most `max_tokens` tokens, to save memory.
        """
        measured: Measured = {}
        for part in self._parts(minibatch):
            for name, value in super().backward(part, optimizer, scale).items():
                measured[name] = measured[name] + value if name in measured else value
        return measured

    def _parts(self, minibatch: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Yield parts of a minibatch that have at most `max_tokens` tokens each. Without a limit, yield the minibatch
        itself. The losses of the parts add up to the loss of the minibatch.
        """
        config, limit = self.config, self.config.max_tokens
        if limit is None or minibatch["input_ids"].numel() <= limit:
            yield minibatch
            return
        whole = {**minibatch, DIVISORS: token_divisors(minibatch, config.mean)}
        groups = sequence_groups(
            sequence_lengths(whole),
            limit,
            is_padded=config.layout == "padded",
            episodes=as_numpy(whole[EPISODES]) if config.ratio == "sequence" else None,
        )
        for indices in groups:
            yield select_sequences(whole, indices).to_dict()

    def loss(self, minibatch: Mapping[str, Any], optimizer: str = "policy") -> tuple[Tensor, Measured]:
        """Return the clipped policy loss of the sampled tokens, plus the weighted KL divergence from the reference
        model if configured, and scalars to log.
        """
        config = self.config
        log_probs = label_log_probs(self.policy(minibatch), minibatch)
        divisors = minibatch[DIVISORS] if DIVISORS in minibatch else token_divisors(minibatch, config.mean)
        divisors = divisors[minibatch[Columns.LOSS_MASK].bool()]
        rows: Measured | None = {} if _PLACES in minibatch else None
        loss, measured = clipped_token_loss(
            log_probs,
            minibatch,
            divisors=divisors,
            clip_low=config.clip_low,
            clip_high=config.clip_high,
            ratio=config.ratio,
            max_correction=config.max_correction,
            rows=rows,
        )
        if config.kl_coefficient:
            with torch.no_grad():
                reference = label_log_probs(cast(Tensor, self._target("reference")(minibatch)), minibatch)
            log_ratios = reference - log_probs
            kls = log_ratios.exp() - 1 - log_ratios
            kl = token_mean(kls, divisors)
            if rows is not None:
                rows["reference_kl"] = kls
            loss, measured = loss + config.kl_coefficient * kl, {**measured, "reference_kl": kl.detach()}
        if rows is not None:
            places = TrainBatch({}, (None, partial(as_numpy, minibatch[_PLACES])))  # type: ignore[arg-type]
            self.measure_rows(places, rows, minibatch[Columns.LOSS_MASK].bool())
        return loss, measured

    def row_measurements_of(self, columns: dict[str, Tensor]) -> dict[str, Tensor]:
        sizes = columns["objective"].abs() + self.config.kl_coefficient * columns.get("reference_kl", 0.0)
        ratio = columns["ratio"]
        return {
            "loss": sizes / columns["divisors"],
            "advantage": columns["advantage"],
            "ratio": ratio,
            "first_ratio": ratio,
            "clipped": columns["clipped"].float(),
            "first_logp_difference": columns[Columns.ACTION_LOGP] - columns["log_prob"],
        }

    def _row_facts(self, batch: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return the turn of each predicted token, and its index among the sampled tokens of the turn, float32 in the
        shape of "loss_mask", with NaN at other positions.
        """
        origin = getattr(batch, "lazy_origin", None)
        if origin is None:
            return {}
        source, steps = origin[0], resolved(origin).numbers
        turns, tokens = (np.full(steps.shape, np.nan, np.float32) for _ in range(2))
        turns[steps >= 0] = source.places(steps[steps >= 0]).t
        order = np.argsort(steps, axis=None, kind="stable")  # the tokens of a turn are next to each other
        ordered = steps.ravel()[order]
        tokens.ravel()[order] = np.arange(len(order)) - np.searchsorted(ordered, ordered)
        tokens[steps < 0] = np.nan
        return {"turn": turns, "token": tokens}


def _places_of(batch: Mapping[str, Any]) -> Tensor:
    """Return the index of each position of a token batch, int64 in the shape of "loss_mask"."""
    mask = batch[Columns.LOSS_MASK]
    return torch.arange(mask.numel(), device=mask.device).reshape(mask.shape)

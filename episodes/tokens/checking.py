"""Check a token batch against the model that sampled it, to find shifted masks, changed tokens
and wrong prompt templates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from episodes.batch import Batch
from episodes.columns import Columns
from episodes.errors import ContractViolation, InvalidArgument, ShapeMismatch, WrongType
from episodes.tokens import names
from episodes.tokens.arguments import as_numpy
from episodes.tokens.minibatches import checked_lengths, is_of_sequences, select_sequences
from episodes.tracks.validation import checked_number

__all__ = ["TokenCheck", "check_token_batch"]

_NEEDED = (names.INPUT_IDS, names.LABELS, names.LOSS_MASK, Columns.ACTION_LOGP)
_MOST = 0.9  # share of positions from which a cause explains the differences
_SHIFTED = 0.5  # the same for a shift: at an end of each turn there is no other value to agree with
_ROWS = 1024  # rows of logits that are normalized at once


@dataclass(frozen=True, slots=True)
class TokenCheck:
    """Result of `check_token_batch`. It is truthy if no problem was found.

    Attributes:
        problems: descriptions of the problems.
        num_tokens: number of learned tokens that were compared.
        max_difference: largest absolute difference between a recorded and a recomputed log-probability.
        mean_difference: mean absolute difference.
    """

    problems: tuple[str, ...]
    num_tokens: int
    max_difference: float
    mean_difference: float

    def __bool__(self) -> bool:
        return not self.problems

    def raise_if_wrong(self) -> TokenCheck:
        """Return this result, or raise `ContractViolation` if it contains problems."""
        if self.problems:
            raise ContractViolation(str(self))
        return self

    def __str__(self) -> str:
        sizes = (
            f"{self.num_tokens} tokens, differences up to {self.max_difference:.2g}, mean {self.mean_difference:.2g}"
        )
        return "\n".join(
            [f"{len(self.problems) or 'no'} problem{'s' * (len(self.problems) != 1)}: {sizes}", *self.problems]
        )


class _Comparison(NamedTuple):
    """Columns of a token batch that are compared, [N] each: tokens, labels and loss mask, and the recorded and the
    model's log-probabilities."""

    tokens: np.ndarray
    labels: np.ndarray
    mask: np.ndarray
    recorded: np.ndarray  # recorded log-probability of the label
    model: np.ndarray  # log-probability of the next token; NaN at the last position of a sequence
    sequences: np.ndarray  # index of the sequence
    positions: np.ndarray  # position in the sequence

    def differences(self, shift: int) -> np.ndarray:
        """Return the absolute difference between recorded and model log-probabilities at all positions in the loss
        mask. The model's values are read `shift` positions later, to detect columns shifted by one.

        The result is inf where the later position is outside of the sequence.
        """
        learned = np.flatnonzero(self.mask)
        predicting = (learned + shift).clip(0, max(len(self.mask) - 1, 0))
        differences = np.abs(self.recorded[learned] - self.model[predicting])
        is_inside = (self.sequences[predicting] == self.sequences[learned]) & (predicting == learned + shift)
        return np.where(is_inside & ~np.isnan(differences), differences, np.inf)

    def place(self, position: int) -> str:
        """Return the text "sequence i, position j", for error messages, of an index into all
        N positions of the batch."""
        return f"sequence {self.sequences[position]}, position {self.positions[position]}"


def check_token_batch(
    model: Callable[[Any], Any], batch: Mapping[str, Any] | Batch, *, tolerance: float = 1e-3
) -> TokenCheck:
    """Compare recorded log-probabilities with the log-probabilities that the model returns now,
    and return the problems found.

    The batch may come from `token_batch` or from any other pipeline. Run the check before the first update, with the
    weights that sampled. Besides differences, it finds their usual causes:

    - labels or masks that are shifted by one, in either direction;
    - a mask that includes tokens which the model did not sample;
    - tokens that changed after sampling, by encoding the decoded text again, or by a chat template: a sequence agrees
      up to some token, and differs from there on;
    - another prompt template or temperature, or other weights: all sequences differ from the first token on;
    - attention across sequences: a sequence alone agrees, and differs next to other sequences. To find it, the model is
      called again with single sequences.

    Args:
        model: function that returns logits [N, V] (packed) or [S, L, V] (padded) for the batch, as arrays or tensors.
        batch: columns "input_ids", "labels", "loss_mask", "action_logp", and "cu_seqlens" (packed) or
            "attention_mask" (padded on the right).
        tolerance: largest difference of log-probabilities that counts as equal. Inference engines with lower precision
            need more than the default.

    Raises:
        WrongType: `model` is not a function, or `batch` not a `Batch` or dict.
        InvalidArgument: a column is missing, or `tolerance` is not a number of at least 0.
        ShapeMismatch: the logits do not fit the batch, or a token is not in the vocabulary.

    >>> import numpy as np
    >>> uniform = lambda batch: np.zeros((4, 2))
    >>> batch = {"input_ids": np.array([0, 1, 1, 0]), "labels": np.array([-100, 1, 0, -100])}
    >>> batch |= {"loss_mask": batch["labels"] >= 0, "cu_seqlens": np.array([0, 4])}
    >>> print(check_token_batch(uniform, batch | {"action_logp": np.array([0, -0.6931, -0.6931, 0])}))
    no problems: 2 tokens, differences up to 4.7e-05, mean 4.7e-05
    """
    if not callable(model):
        raise WrongType(f"check_token_batch: model={model!r}; give a function from a batch to logits")
    lengths = checked_lengths(batch, "check_token_batch")
    tolerance = checked_number("check_token_batch: tolerance", tolerance, 0)
    missing = [name for name in _NEEDED if name not in batch.keys()]  # noqa: SIM118 - of a `Batch`, `in` looks at rows
    if missing:
        raise InvalidArgument(f"check_token_batch: the batch has no {missing}; it has {sorted(batch.keys())}")
    comparison = _compare(model(batch), batch, lengths)
    differences = comparison.differences(0)
    problems = _find_label_problems(comparison)
    crossing = _find_crossing_attention(model, batch, lengths, comparison, tolerance)
    problems += crossing or _find_difference_problems(comparison, differences, tolerance)
    finite = differences[np.isfinite(differences)]
    largest, mean = (float(finite.max()), float(finite.mean())) if len(finite) else (0.0, 0.0)
    return TokenCheck(tuple(problems), len(differences), largest, mean)


def _compare(logits: object, batch: Mapping[str, Any] | Batch, lengths: np.ndarray) -> _Comparison:
    """Return the model's and the recorded log-probability of each token of the batch, without padding.

    Args:
        logits: logits [*tokens, vocabulary], or an object with an attribute `logits`.
        lengths: tokens of each sequence.

    Raises:
        ShapeMismatch: columns or logits have other shapes than the tokens, or a token is not in the vocabulary.
    """
    tokens, labels, mask, recorded = (as_numpy(batch[name]) for name in _NEEDED)
    is_packed = tokens.ndim == 1 and tokens.size == lengths.sum()
    shapes = [list(column.shape) for column in (tokens, labels, mask, recorded)]
    if len({*map(tuple, shapes)}) > 1 or not (is_packed or (tokens.ndim == 2 and len(tokens) == len(lengths))):
        raise ShapeMismatch(
            f"check_token_batch: {list(_NEEDED)} have shapes {shapes}; give one shape, [N] for {int(lengths.sum())} "
            f"packed tokens or [S, L] for {len(lengths)} padded sequences"
        )
    logits = as_numpy(getattr(logits, "logits", logits))
    if logits.shape[:-1] not in (tokens.shape, (1, *tokens.shape)):
        raise ShapeMismatch(
            f"check_token_batch: logits of shape {list(logits.shape)} for tokens of shape {list(tokens.shape)}; return "
            "logits [*tokens, vocabulary]"
        )
    logits = logits.reshape(*tokens.shape, logits.shape[-1])
    if tokens.ndim == 2:
        is_token = np.arange(tokens.shape[1]) < lengths[:, None]
        logits, tokens, labels, mask, recorded = (c[is_token] for c in (logits, tokens, labels, mask, recorded))
    tokens, starts = tokens.astype(np.int64), lengths.cumsum() - lengths
    if len(tokens) and not 0 <= tokens.min() <= tokens.max() < logits.shape[-1]:
        i = int(((tokens < 0) | (tokens >= logits.shape[-1])).argmax())
        raise ShapeMismatch(
            f"check_token_batch: token {tokens[i]} at position {i}, and logits for a vocabulary of {logits.shape[-1]}; "
            "use the model that sampled, and token ids of its tokenizer"
        )
    model = _log_probs(logits, np.append(tokens, 0)[1:])
    model[(starts + lengths - 1)[lengths > 0]] = np.nan
    positions = np.arange(len(tokens)) - starts.repeat(lengths)
    sequences = np.arange(len(lengths)).repeat(lengths)
    return _Comparison(tokens, labels, mask.astype(bool), recorded.astype(float), model, sequences, positions)


def _log_probs(logits: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Return the log-probabilities of tokens [N] under logits [N, V], float64 [N]."""
    log_probs = np.empty(len(tokens))
    for start in range(0, len(tokens), _ROWS):
        part = logits[start : start + _ROWS].astype(np.float64)
        part -= part.max(-1, keepdims=True)
        rows = np.arange(len(part))
        log_probs[start : start + _ROWS] = part[rows, tokens[start : start + _ROWS]] - np.log(np.exp(part).sum(-1))
    return log_probs


def _find_crossing_attention(
    model: Callable[[Any], Any],
    batch: Mapping[str, Any] | Batch,
    lengths: np.ndarray,
    comparison: _Comparison,
    tolerance: float,
) -> list[str]:
    """Call the model with a single sequence that differs. If the sequence agrees alone, return a list with one text,
    which says that attention crosses sequences or reaches padding. Otherwise the list is empty.
    """
    learned = np.flatnonzero(comparison.mask)
    is_wrong = comparison.differences(0) > tolerance
    wrong = np.unique(comparison.sequences[learned[is_wrong]])
    if len(lengths) < 2 or not len(wrong):
        return []
    sequence = int(wrong[lengths[wrong].argmin()])
    alone = select_sequences({name: batch[name] for name in batch.keys() if _is_column(name, batch)}, [sequence])  # noqa: SIM118
    try:
        logits = model(alone if isinstance(batch, Batch) else alone.to_dict())
        single = _compare(logits, alone, lengths[[sequence]])
    except ShapeMismatch:  # a model of batches with a fixed number of tokens
        return []
    if (single.differences(0) > tolerance).any():
        return []
    count = f"{int(is_wrong.sum())} of {len(learned)} log-probabilities differ by more than {tolerance:g}"
    fits = f"{count}, in {len(wrong)} of {len(lengths)} sequences, and sequence {sequence} alone agrees"
    if names.CU_SEQLENS in batch.keys():  # noqa: SIM118
        return [
            f"{fits}: attention crosses packed sequences. Give the model 'cu_seqlens', or for a model of Hugging Face "
            "position_ids=batch['position_ids'][None] with use_cache=False and no attention mask, or use "
            "layout='padded'"
        ]
    return [
        f"{fits}: attention reaches padding or other rows. Give the model 'attention_mask', and positions that begin "
        "at the first token of each row"
    ]


def _is_column(name: str, batch: Mapping[str, Any] | Batch) -> bool:
    """Return True if the value is a column of a token batch that `select_sequences` can divide."""
    column = batch[name]
    if not hasattr(column, "shape"):
        return False
    shape = tuple(column.shape)
    of_batch = (names.CU_SEQLENS, names.MAX_SEQLEN)
    return (
        name in of_batch
        or is_of_sequences(name, column)
        or shape[: np.ndim(batch[names.INPUT_IDS])] == tuple(batch[names.INPUT_IDS].shape)
    )


def _find_label_problems(comparison: _Comparison) -> list[str]:
    """Check that each label in the loss mask is the next token of its sequence. Return a list with at most one text,
    which names the first wrong label.
    """
    learned = np.flatnonzero(comparison.mask)
    labels, has_next = comparison.labels[learned], ~np.isnan(comparison.model[learned])
    following = np.append(comparison.tokens, -1)[1:][learned]
    is_wrong = ~has_next | (labels != following)
    if not is_wrong.any():
        return []
    if (labels == comparison.tokens[learned]).mean() > _MOST > (~is_wrong).mean():
        return ["labels are not shifted: the label of a position is its own token, and must be the token after it"]
    first = int(learned[is_wrong.argmax()])
    return [
        f"the label is not the next token at {int(is_wrong.sum())} of {len(learned)} learned positions, first at "
        f"{comparison.place(first)}"
    ]


def _find_difference_problems(comparison: _Comparison, differences: np.ndarray, tolerance: float) -> list[str]:
    """Check that recorded and model log-probabilities agree within `tolerance`.

    Return a list with one text that names the probable cause of a difference. The list is empty if they agree.
    """
    learned = np.flatnonzero(comparison.mask)
    differs = differences > tolerance
    if not differs.any():
        return []
    count = f"{int(differs.sum())} of {len(learned)} log-probabilities differ by more than {tolerance:g}"
    for shift, side in ((-1, "before"), (1, "after")):
        agrees = comparison.differences(shift) <= tolerance
        if agrees.mean() > max(_SHIFTED, (~differs).mean()):
            return [
                f"{count}: they are those of the position {side} them, so the mask and the log-probabilities are "
                "shifted by one; all columns belong to the position that predicts a token"
            ]
    wrong = learned[differs]
    if (comparison.recorded[wrong] == 0).mean() > _MOST:
        return [
            f"{count}, and are recorded as 0: the mask includes tokens that were not sampled, first at "
            f"{comparison.place(int(wrong[0]))}; it is shifted by one or too wide"
        ]
    # The first learned token of each sequence has only the prompt before it.
    is_first = np.append(True, comparison.sequences[learned][1:] != comparison.sequences[learned][:-1])
    bad = np.isin(comparison.sequences[learned], comparison.sequences[wrong])
    if differs[is_first & bad].mean() > _MOST:
        return [
            f"{count}, in {len(np.unique(comparison.sequences[wrong]))} sequences from the first sampled token on: "
            "another prompt (template, system message, BOS token), temperature or weights than at sampling"
        ]
    return [
        f"{count}, first at {comparison.place(int(wrong[0]))} after {int((~differs[: differs.argmax()]).sum())} tokens "
        "that agree: tokens before it changed after sampling (decoded text was encoded again, or a template rewrote "
        "earlier turns); record token ids, and pass whole prompts with prompt="
    ]

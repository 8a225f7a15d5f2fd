"""Sequences of token batches that are longer than a model's limit: skip or cut them, and count them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from episodes.batch import Batch
from episodes.errors import InvalidArgument
from episodes.tokens import names
from episodes.tokens.arguments import as_numpy
from episodes.tokens.minibatches import checked_lengths, is_of_sequences, select_beginnings
from episodes.tracks.validation import checked_count

__all__ = ["LengthReport", "Longer", "limit_sequences"]

Longer = Literal["error", "skip", "cut"]
_OF_INPUTS = (names.INPUT_IDS, names.POSITION_IDS, names.ATTENTION_MASK, names.CU_SEQLENS, names.MAX_SEQLEN)


@dataclass(frozen=True)
class LengthReport:
    """Numbers of sequences that `limit_sequences` skipped or cut.

    Attributes:
        max_length: the largest allowed number of tokens.
        longest: number of tokens of the longest sequence, before.
        num_sequences: number of sequences, before.
        num_skipped: number of sequences that are left out, also those whose learned tokens were all cut off.
        num_cut: number of sequences that lost their end.
        num_tokens: number of learned tokens, before.
        num_lost_tokens: number of learned tokens that are left out.
        num_lost_episodes: number of episodes of which no sequence is left.
    """

    max_length: int
    longest: int
    num_sequences: int
    num_skipped: int
    num_cut: int
    num_tokens: int
    num_lost_tokens: int
    num_lost_episodes: int

    def __bool__(self) -> bool:
        return self.num_skipped + self.num_cut > 0

    def __str__(self) -> str:
        return (
            f"{self.num_skipped} sequences skipped and {self.num_cut} cut of {self.num_sequences}, to "
            f"{self.max_length} tokens (longest: {self.longest}); without {self.num_lost_tokens} of {self.num_tokens} "
            f"learned tokens, and without {self.num_lost_episodes} episodes"
        )


def limit_sequences(
    batch: Mapping[str, Any] | Batch, max_length: int, *, longer: Longer = "error"
) -> tuple[Batch, LengthReport]:
    """Return a token batch whose sequences have at most `max_length` tokens, and a report of what was left out.

    Advantages of the remaining tokens stay as they are, so compute them from whole groups before.

    Args:
        batch: a packed or padded token batch, of arrays or tensors.
        max_length: the largest number of tokens in a sequence, such as the model's context.
        longer: what to do with longer sequences. "error": raise. "skip": leave them out. "cut": keep the first
            `max_length` tokens; a sequence is left out if no learned token remains.

    Raises:
        InvalidArgument: with "error", a sequence is longer; or all sequences would be left out; or with "cut", the
            batch has a column of infos, such as images, and it is unknown which of them belong to the cut tokens; or
            an argument is invalid.
        WrongType, ShapeMismatch: the batch is not a valid token batch.

    >>> from episodes.tokens import Conversation, token_batch
    >>> from episodes import EpisodePack
    >>> talk = Conversation("a", outputs={})
    >>> talk.begin([1, 2])
    >>> talk.turn([3, 4, 5], terminated=True)
    >>> batch, report = limit_sequences(token_batch(EpisodePack.from_episodes([talk.episode])), 4, longer="cut")
    >>> batch["input_ids"].tolist(), batch["labels"].tolist()
    ([1, 2, 3, 4], [-100, 3, 4, -100])
    >>> report.num_cut, report.num_lost_tokens
    (1, 1)
    """
    lengths = checked_lengths(batch, "limit_sequences")
    checked_count("limit_sequences: max_length", max_length)
    if longer not in ("error", "skip", "cut"):
        raise InvalidArgument(f"limit_sequences: longer={longer!r}; give 'error', 'skip' or 'cut'")
    is_longer, longest = lengths > max_length, int(lengths.max(initial=0))
    if longer == "error" and is_longer.any():
        raise InvalidArgument(
            f"limit_sequences: {int(is_longer.sum())} of {len(lengths)} sequences have more than {max_length} tokens, "
            f"the longest {longest}; give longer='skip' or longer='cut', or a larger limit"
        )
    of_infos = [name for name, column in batch.items() if name != names.EPISODES and is_of_sequences(name, column)]
    if longer == "cut" and is_longer.any() and of_infos:
        raise InvalidArgument(
            f"limit_sequences: longer='cut' with the columns {of_infos}: it is unknown which of their values belong to "
            "the tokens that are cut off; give longer='skip'"
        )
    counts = _num_learned(batch, lengths)
    indices = np.flatnonzero(~is_longer) if longer == "skip" else np.arange(len(lengths))
    limited = select_beginnings(batch, lengths, indices, np.minimum(lengths[indices], max_length))
    num_cut = 0
    if longer == "cut" and is_longer.any():
        _forget_next_tokens(limited, np.flatnonzero(is_longer), max_length)
        remaining = checked_lengths(limited, "limit_sequences")
        is_used = ~is_longer | (_num_learned(limited, remaining) > 0)
        indices = np.flatnonzero(is_used)
        num_cut = int((is_longer & is_used).sum())
        limited = select_beginnings(limited, remaining, indices, remaining[indices])
    if len(lengths) and not len(indices):
        raise InvalidArgument(
            f"limit_sequences: all {len(lengths)} sequences have more than {max_length} tokens, the longest {longest}, "
            "so none is left to learn from; give a larger limit"
        )
    num_left = int(as_numpy(limited[names.LOSS_MASK]).astype(bool).sum())
    owners = [_owners(part) for part in (batch, limited)]
    return limited, LengthReport(
        max_length,
        longest,
        len(lengths),
        len(lengths) - len(indices),
        num_cut,
        int(counts.sum()),
        int(counts.sum()) - num_left,
        len(owners[0] - owners[1]),
    )


def _owners(batch: Mapping[str, Any] | Batch) -> set[int]:
    """Return the episodes that a batch has sequences of, or an empty set if it does not know."""
    return set(as_numpy(batch[names.EPISODES]).tolist()) if names.EPISODES in batch.keys() else set()  # noqa: SIM118


def _num_learned(batch: Mapping[str, Any] | Batch, lengths: np.ndarray) -> np.ndarray:
    """Return the number of learned tokens of each sequence, int64 [S]."""
    mask = as_numpy(batch[names.LOSS_MASK]).astype(bool)
    if mask.ndim == 2:
        return mask.sum(1)
    sequences = np.arange(len(lengths)).repeat(lengths)
    return np.bincount(sequences[mask], minlength=len(lengths))


def _forget_next_tokens(batch: Batch, sequences: np.ndarray, length: int) -> None:
    """Remove from a batch what the last positions of `sequences` have about the tokens after them, which were cut off.

    Args:
        batch: the batch, which is changed.
        sequences: indices of sequences of `length` tokens, int64 [k].
        length: number of their tokens.
    """
    is_packed = names.CU_SEQLENS in batch.keys()  # noqa: SIM118
    places: Any = (sequences, length - 1)
    if is_packed:
        places = as_numpy(batch[names.CU_SEQLENS])[sequences + 1] - 1
    for name, column in batch.items():
        if name not in _OF_INPUTS and not is_of_sequences(name, column):
            column[places] = names.IGNORED if name == names.LABELS else 0

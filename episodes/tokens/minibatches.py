"""Selection of sequences from a token batch, and minibatches with a limited number of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.batch import Batch
from episodes.errors import InvalidArgument, ShapeMismatch, StepOutOfRange, WrongType
from episodes.tokens import names
from episodes.tokens.arguments import as_numpy
from episodes.tracks.indexing import offsets_of, ranges
from episodes.tracks.validation import checked_count

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["select_sequences", "sequence_lengths", "token_minibatches"]


def sequence_lengths(batch: Mapping[str, Any] | Batch) -> np.ndarray:
    """Return the number of tokens of each sequence of a token batch, int64 [S].

    Args:
        batch: arrays or tensors of a packed or padded `token_batch`.

    Raises:
        WrongType: `batch` is not a `Batch` or dict.
        InvalidArgument: the batch has neither "cu_seqlens" nor "attention_mask".
        ShapeMismatch: these are not increasing offsets [S + 1], or a mask [S, L] of rows padded on the right.
    """
    return checked_lengths(batch, "sequence_lengths")


def checked_lengths(batch: object, call: str) -> np.ndarray:
    """Return the number of tokens of each sequence of a token batch, int64 [S]. Raise an error that names the function
    `call` if the batch is invalid.

    Raises:
        WrongType: `batch` is neither a `Batch` nor a mapping.
        InvalidArgument: the batch has neither offsets nor an attention mask.
        ShapeMismatch: the offsets or the attention mask are malformed.
    """
    if not isinstance(batch, (Mapping, Batch)):
        raise WrongType(
            f"{call}: batch is a {type(batch).__name__}; give the Batch of token_batch, or a dict of columns"
        )
    if names.CU_SEQLENS in batch.keys():  # noqa: SIM118 - of a `Batch`, `in` looks at rows
        bounds = as_numpy(batch[names.CU_SEQLENS])
        is_right = bounds.dtype.kind in "iu" and bounds.ndim == 1 and len(bounds) and bounds[0] == 0
        lengths = np.diff(bounds).astype(np.int64) if is_right else np.array([-1])
        if (lengths < 0).any():
            raise ShapeMismatch(
                f"{call}: {names.CU_SEQLENS!r} is {bounds}; give int offsets [S + 1] from 0, increasing"
            )
        return lengths
    if names.ATTENTION_MASK in batch.keys():  # noqa: SIM118
        mask = as_numpy(batch[names.ATTENTION_MASK])
        if mask.ndim != 2 or mask.dtype.kind not in "biuf":
            raise ShapeMismatch(
                f"{call}: {names.ATTENTION_MASK!r} has shape {list(mask.shape)} and dtype {mask.dtype}; give a mask "
                "[S, L]"
            )
        mask = mask.astype(bool)
        is_wrong = (mask[:, 1:] > mask[:, :-1]).any(1)
        if is_wrong.any():
            raise ShapeMismatch(
                f"{call}: {names.ATTENTION_MASK!r} has padding before tokens in row {int(is_wrong.argmax())}; give "
                "rows that are padded on the right"
            )
        return mask.sum(1)
    raise InvalidArgument(
        f"{call}: a token batch has {names.CU_SEQLENS!r} (packed) or {names.ATTENTION_MASK!r} (padded), this one has "
        f"{sorted(map(str, batch.keys()))}"
    )


def select_sequences(batch: Mapping[str, Any] | Batch, indices: ArrayLike) -> Batch:
    """Return a token batch with only the sequences at `indices`, in this order.

    Padded rows are cut to the longest of them. Columns are arrays or tensors.

    Args:
        batch: a packed or padded token batch.
        indices: indices of the sequences, int [k].

    Raises:
        WrongType: `batch` is not a `Batch` or dict of arrays or tensors, or the indices are not a list of ints.
        StepOutOfRange: an index is negative, or not less than the number of sequences.
        InvalidArgument, ShapeMismatch: the batch has no valid lengths of sequences.
    """
    lengths = checked_lengths(batch, "select_sequences")
    indices = _checked_indices(indices)
    if indices.size and not 0 <= indices.min() <= indices.max() < len(lengths):
        raise StepOutOfRange(f"select_sequences: indices {indices.tolist()}; there are sequences 0..{len(lengths) - 1}")
    for name, column in batch.items():
        if not hasattr(column, "shape"):
            raise WrongType(f"select_sequences: batch[{name!r}] is a {type(column).__name__}; give arrays or tensors")
    return select_beginnings(batch, lengths, indices, lengths[indices])


def select_beginnings(
    batch: Mapping[str, Any] | Batch, lengths: np.ndarray, indices: np.ndarray, sizes: np.ndarray
) -> Batch:
    """Return a copy of a token batch with only the first tokens of the sequences at `indices`.

    Args:
        batch: a packed or padded token batch.
        lengths: number of tokens of each sequence, int64 [S].
        indices: indices of the sequences, int64 [k].
        sizes: number of tokens that remain of each of them, int64 [k].
    """
    longest = int(sizes.max(initial=0))
    selected: dict[str, Any] = {}
    if names.CU_SEQLENS not in batch.keys():  # noqa: SIM118
        for name, column in batch.items():
            rows = column[indices]
            selected[name] = rows if is_of_sequences(name, column) else rows[:, :longest]
        return Batch(selected)
    starts = lengths.cumsum() - lengths
    tokens = ranges(starts[indices], sizes)
    bounds = offsets_of(sizes).astype(np.int32)
    for name, column in batch.items():
        if name == names.CU_SEQLENS:
            selected[name] = _like(column, bounds)
        elif name == names.MAX_SEQLEN:
            selected[name] = _like(column, np.array(longest, np.int32))
        else:
            selected[name] = column[indices if is_of_sequences(name, column) else tokens]
    return Batch(selected)


def is_of_sequences(name: str, column: Any) -> bool:
    """Return True if a column of a token batch has one value per sequence: "episodes", and objects such as images."""
    return name == names.EPISODES or column.dtype == object


def token_minibatches(
    batch: Mapping[str, Any] | Batch, max_tokens: int, *, rng: np.random.Generator | None = None
) -> Iterator[Batch]:
    """Yield minibatches of whole sequences, with at most `max_tokens` tokens each, padding included.

    Sequences (branches) of an episode may be in different minibatches. The column "episodes" has the episode of each.

    Args:
        batch: a packed or padded token batch, of arrays or tensors.
        max_tokens: the budget of a minibatch.
        rng: shuffles the sequences. None: packed sequences stay in order, padded ones are sorted by length.

    Raises:
        InvalidArgument: a sequence alone has more tokens, or `max_tokens` is not an int of at least 1.
        WrongType: `batch` is not a `Batch` or dict, or `rng` is not a generator.
        ShapeMismatch: the batch has no valid lengths of sequences.
    """
    lengths = checked_lengths(batch, "token_minibatches")
    if rng is not None and not isinstance(rng, np.random.Generator):
        raise WrongType(f"token_minibatches: rng={rng!r}; give np.random.default_rng(seed), or None")
    is_padded = names.CU_SEQLENS not in batch.keys()  # noqa: SIM118
    for indices in sequence_groups(lengths, max_tokens, is_padded=is_padded, rng=rng):
        yield select_sequences(batch, indices)


def sequence_groups(
    lengths: np.ndarray,
    max_tokens: int,
    *,
    is_padded: bool,
    rng: np.random.Generator | None = None,
    episodes: np.ndarray | None = None,
) -> list[np.ndarray]:
    """Divide sequences into minibatches of at most `max_tokens` tokens, and return the sequence indices of each
    minibatch. Each sequence is in exactly one.

    Args:
        lengths: number of tokens of each sequence, int [S].
        max_tokens: the budget of a minibatch.
        is_padded: count each sequence with the length of the longest one of its minibatch.
        rng: shuffles the sequences. None: in order, or sorted by length if `is_padded`.
        episodes: episode of each sequence, int [S], to keep the sequences of an episode in one minibatch.

    Raises:
        InvalidArgument: a sequence alone has more tokens, or with `episodes` the sequences of one episode.

    >>> sequence_groups(np.array([3, 5, 2, 4]), 8, is_padded=False)
    [array([0, 1]), array([2, 3])]
    >>> sequence_groups(np.array([3, 5, 2, 4]), 9, is_padded=False, episodes=np.array([0, 1, 0, 1]))
    [array([0, 2]), array([1, 3])]
    """
    checked_count("max_tokens", max_tokens)
    units = np.arange(len(lengths)) if episodes is None else np.unique(episodes, return_inverse=True)[1].reshape(-1)
    counts = np.bincount(units)  # sequences of each unit that stays together
    longest_of, tokens_of = np.zeros(len(counts), np.int64), np.bincount(units, lengths).astype(np.int64)
    np.maximum.at(longest_of, units, lengths)
    costs = longest_of * counts if is_padded else tokens_of
    if costs.max(initial=0) > max_tokens:
        unit = int(costs.argmax())
        members = np.flatnonzero(units == unit)
        what = (
            f"sequence {members[0]} has" if episodes is None else f"the sequences {members.tolist()} of an episode have"
        )
        raise InvalidArgument(f"max_tokens={max_tokens}: {what} {costs[unit]} tokens; give a larger budget")
    if rng is not None:
        order = rng.permutation(len(counts))
    else:
        order = np.argsort(longest_of, kind="stable") if is_padded else np.arange(len(counts))
    groups: list[list[int]] = []  # units of each minibatch
    num = total = longest = 0
    for unit in order.tolist():
        longest, total = max(longest, int(longest_of[unit])), total + int(tokens_of[unit])
        num += int(counts[unit])
        if not groups or (longest * num if is_padded else total) > max_tokens:
            groups.append([])
            longest, total, num = int(longest_of[unit]), int(tokens_of[unit]), int(counts[unit])
        groups[-1].append(unit)
    members = np.split(np.argsort(units, kind="stable"), counts.cumsum()[:-1]) if len(counts) else []
    return [np.concatenate([members[unit] for unit in group]) for group in groups]


def _checked_indices(indices: ArrayLike) -> np.ndarray:
    """Return indices as int64 [k]. Raise `WrongType` unless they are ints in a list, array or tensor."""
    array = as_numpy(indices)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise WrongType(f"select_sequences: indices={indices!r}; give ints [k], such as [0]")
    return array.astype(np.int64)


def _like(column: Any, values: np.ndarray) -> Any:
    """Return `values` as is if `column` is a numpy array, else as a tensor with the dtype and device of `column`."""
    return values if isinstance(column, np.ndarray) else column.new_tensor(values)

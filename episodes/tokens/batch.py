"""Training batches for losses over the tokens of language models, as packed or padded sequences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np

from episodes.batch import Batch
from episodes.columns import Columns
from episodes.errors import InvalidArgument, ShapeMismatch, TrackMismatch, UnknownKey, WrongType
from episodes.pack import EpisodePack
from episodes.tokens import names
from episodes.tokens.arguments import check_pack
from episodes.tokens.sequences import TokenSequences
from episodes.tracks.ragged import Ragged
from episodes.tracks.validation import checked_count, checked_items

__all__ = ["token_batch"]

_COLUMNS = (names.ATTENTION_MASK, names.CU_SEQLENS, names.MAX_SEQLEN, names.EPISODES)
Layout = Literal["packed", "padded"]


def token_batch(
    pack: EpisodePack,
    *,
    layout: Layout = "packed",
    advantages: Any = None,
    episode_advantages: Any = None,
    outputs: Iterable[str] | None = None,
    with_last_observation: bool = False,
    pad_to: int | None = None,
    pad_id: int = 0,
) -> Batch:
    """Return a training batch for a loss over tokens, with one sequence per episode, and more if later
    prompts changed earlier tokens.

    All columns are aligned with the position that **predicts** a token, so `logits[i]` belongs to `labels[i]`,
    `action_logp[i]`, `advantages[i]` and `loss_mask[i]`. Nothing is left to shift.

    Columns, [N] if packed and [S, L] if padded (N tokens in S sequences of at most L):

    - "input_ids": the tokens.
    - "labels": the token after each position if it is learned from, else -100.
    - "loss_mask": bool, whether the token after each position is learned from: it was sampled by the model in a step
      of the pack, and the output "learned" is not 0 for it. Each such token occurs once. An episode that is in the pack
      twice is learned from twice.
    - "position_ids": int32, counted from 0 in each sequence.
    - "advantages" (only if given): float32, 0 where no sampled token is predicted.
    - a column per extra model output with a value per token: "action_logp" for the output "logp", "policy_version" for
      "version", or else for the versions of steps; other outputs by their name. 0 where no sampled token is predicted.
    - packed: "cu_seqlens", int32 [S + 1], and "max_seqlen", for attention kernels of variable length. Padded:
      "attention_mask", bool [S, L]; sequences start at the left.
    - "episodes": index in the pack of each sequence's episode, int64 [S].

    Args:
        pack: episodes with ragged tokens, as a `Conversation` records.
        layout: "packed" (sequences one after another) or "padded" (a row per sequence).
        advantages: one per turn, [num_steps].
        episode_advantages: one per episode, [n], in place of `advantages`.
        outputs: names of the extra model outputs that become columns; by default all with a value per token.
        with_last_observation: include the tokens after the last turn.
        pad_to: length L of padded rows, by default that of the longest sequence.
        pad_id: token of the padding.

    Raises:
        WrongType: `pack` is not an `EpisodePack`, or advantages are not numbers.
        TrackMismatch: observations or actions are not ragged integers, or an output does not have one value per
            sampled token, or has the name of another column.
        InvalidArgument: the layout is unknown, both kinds of advantages are given or one is not finite, `pad_to` is
            given for packed sequences, `pad_id` is not a token id, earlier turns of a chunk are missing, two chunks of
            one id and start differ, or a log-probability cannot be one of a sampled token.
        ShapeMismatch: advantages have another length, or a sequence is longer than `pad_to`.
        UnknownKey: the pack does not have one of the `outputs`.
    """
    check_pack(pack, "token_batch")
    if layout not in ("packed", "padded"):
        raise InvalidArgument(f"token_batch: layout={layout!r}; give 'packed' or 'padded'")
    if advantages is not None and episode_advantages is not None:
        raise InvalidArgument("token_batch: give advantages (per turn) or episode_advantages, not both")
    if pad_to is not None and layout == "packed":
        raise InvalidArgument("token_batch: pad_to needs layout='padded'")
    if layout == "packed":
        sequences = TokenSequences(pack, with_last_observation=with_last_observation)
    else:
        row_length = "longest" if pad_to is None else checked_count("token_batch: pad_to", pad_to)
        sequences = TokenSequences(pack, with_last_observation=with_last_observation, row_length=row_length)
    if advantages is not None:
        advantages = _checked_advantages("advantages", advantages, pack.num_steps, "turns")
    if episode_advantages is not None:
        episode_advantages = _checked_advantages("episode_advantages", episode_advantages, len(pack), "episodes")
    columns = _token_columns(sequences, advantages, episode_advantages, outputs, pad_id)
    if layout == "padded":
        shape = sequences.attention_mask.shape
        columns = {name: column.reshape(shape) for name, column in columns.items()}
        columns[names.ATTENTION_MASK] = sequences.attention_mask
    else:
        columns[names.CU_SEQLENS] = sequences.cu_seqlens
        columns[names.MAX_SEQLEN] = np.array(sequences.lengths.max(initial=0), np.int32)
    return Batch({**columns, names.EPISODES: sequences.episodes})


def _checked_advantages(name: str, values: Any, num: int, purpose: str) -> np.ndarray:
    """Return user-given advantages as float32 [num].

    Args:
        name: name of the argument, for errors.
        purpose: what there is an advantage for, such as "turns", for errors.

    Raises:
        WrongType: the values are not numbers.
        ShapeMismatch: there are not `num` values.
        InvalidArgument: a value is NaN or infinite.
    """
    try:
        array = np.asarray(values)
        array = None if array.dtype.kind not in "biuf" else array.astype(np.float32)
    except (TypeError, ValueError, RuntimeError):
        array = None
    if array is None:
        raise WrongType(
            f"token_batch: {name} is a {type(values).__name__}; give numbers, one for each of {num} {purpose}"
        )
    if array.shape != (num,):
        raise ShapeMismatch(f"token_batch: {name} has shape {list(array.shape)}; give one for each of {num} {purpose}")
    is_wrong = ~np.isfinite(array)
    if is_wrong.any():
        i = int(is_wrong.argmax())
        raise InvalidArgument(
            f"token_batch: {name}[{i}] is {array[i]}; give finite numbers (a standard deviation of 0 needs a small "
            "constant added)"
        )
    return array


def _token_columns(
    sequences: TokenSequences, advantages: Any, episode_advantages: Any, outputs: Iterable[str] | None, pad_id: int
) -> dict[str, np.ndarray]:
    """Return the batch columns with one value per token position: tokens, labels, loss mask, advantages and model
    outputs, [N] each.

    Raises:
        UnknownKey: `outputs` has a name that the pack lacks.
    """
    pack = sequences.pack
    extra = pack.extra_model_outputs
    if outputs is None:
        outputs = [key for key, values in extra.items() if type(values) is Ragged and values.ndim == 2]
    outputs = checked_items("token_batch: outputs", outputs, "names of extra model outputs")
    unknown = [key for key in outputs if key not in [*extra]]
    if unknown:
        raise UnknownKey(f"token_batch: no extra model outputs {unknown}; the pack has {list(extra)}")
    mask, sampled = sequences.predicts, sequences.sampled_tokens
    if names.LEARNED in extra:
        is_learned = _values_of_sampled(sequences, names.LEARNED) != 0
        mask, sampled = sequences.place(is_learned), sampled[is_learned]
    tokens = sequences.tokens(pad_id)
    labels = np.full(len(tokens), names.IGNORED, _signed(tokens.dtype))
    labels[mask] = sampled
    columns = {
        names.INPUT_IDS: tokens,
        names.LABELS: labels,
        names.LOSS_MASK: mask,
        names.POSITION_IDS: sequences.position_ids,
    }
    if advantages is not None:
        columns[Columns.ADVANTAGES] = sequences.place_per_turn(advantages)
    if episode_advantages is not None:
        columns[Columns.ADVANTAGES] = sequences.place_per_episode(episode_advantages)
    for key in outputs:
        if key != names.LEARNED:
            column = names.COLUMN_OF_OUTPUT.get(key, key)
            if column in columns or column in _COLUMNS:
                raise TrackMismatch(
                    f"token_batch: the extra model output {key!r} would replace the column {column!r} of the batch; "
                    "leave it out of outputs=[...], or rename it"
                )
            values = _values_of_sampled(sequences, key)
            columns[column] = sequences.place(sequences.log_probs() if key == names.LOGP else values)
    if pack.policy_versions is not None and Columns.POLICY_VERSION not in columns:
        columns[Columns.POLICY_VERSION] = sequences.place_per_turn(pack.get_policy_versions())
    return columns


def _values_of_sampled(sequences: TokenSequences, key: str) -> np.ndarray:
    """Return the values of the extra model output `key` for all sampled tokens, [A]. Raise `TrackMismatch` unless the
    output has one value per token.
    """
    track = sequences.pack.extra_model_outputs[key]
    if type(track) is not Ragged or track.ndim != 2 or not track.has_lengths_of(sequences.pack.actions):
        raise TrackMismatch(
            f"token_batch: the extra model output {key!r} does not have one value per sampled token; leave it out of "
            "outputs=[...], or record it as a ragged track"
        )
    return sequences.of_sampled(track)


def _signed(dtype: np.dtype) -> np.dtype:
    """Return a signed integer dtype for labels that can represent all token ids and -100."""
    return dtype if dtype.kind == "i" and dtype.itemsize > 1 else np.dtype(np.int64)

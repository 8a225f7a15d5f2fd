"""Training batches for losses over the tokens of language models, as packed or padded sequences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

import numpy as np

from episodes.batch import Batch
from episodes.batch.train_batch import TrainBatch
from episodes.columns import Columns
from episodes.errors import InvalidArgument, ShapeMismatch, TrackMismatch, UnknownKey, WrongType
from episodes.pack import EpisodePack
from episodes.pack.steps import PackSteps
from episodes.tokens import names
from episodes.tokens.arguments import check_pack
from episodes.tokens.sequences import TokenSequences
from episodes.tracks.ragged import Ragged
from episodes.tracks.stacking import object_array
from episodes.tracks.validation import checked_count, checked_items

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["token_batch"]

_COLUMNS = (names.ATTENTION_MASK, names.CU_SEQLENS, names.MAX_SEQLEN, names.EPISODES, names.WEIGHTS)
Layout = Literal["packed", "padded"]


def token_batch(
    pack: EpisodePack,
    *,
    layout: Layout = "packed",
    advantages: ArrayLike | None = None,
    episode_advantages: ArrayLike | None = None,
    token_advantages: ArrayLike | Ragged | None = None,
    episode_weights: ArrayLike | None = None,
    outputs: Iterable[str] | None = None,
    infos: Iterable[str] | None = None,
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
    - "advantages" and "weights" (only if given): float32, 0 where no sampled token is predicted.
    - a column per extra model output with a value per token: "action_logp" for the output "logp", "policy_version" for
      "version", or else for the versions of steps; other outputs by their name. 0 where no sampled token is predicted.
    - packed: "cu_seqlens", int32 [S + 1], and "max_seqlen", for attention kernels of variable length. Padded:
      "attention_mask", bool [S, L]; sequences start at the left.
    - "episodes": index in the pack of each sequence's episode, int64 [S].
    - a column per key in `infos`, objects [S]: the list of the values that the infos of the sequence's observations
      have for this key, in order. Values that are lists, such as the images of an observation, are joined.

    The `origin` of the batch has the turn of the token that each position predicts, or -1 if it was not sampled.

    Args:
        pack: episodes with ragged tokens, as a `Conversation` records.
        layout: "packed" (sequences one after another) or "padded" (a row per sequence).
        advantages: one per turn, [num_steps].
        episode_advantages: one per episode, [n], in place of `advantages`.
        token_advantages: one per sampled token, in place of `advantages`: numbers [A] in the order of the steps, or a
            ragged track like an output with a value per token. Tokens of lookbacks have none in [A].
        episode_weights: weight of each episode in the mean of a loss, at least 0, [n], for the column "weights".
        outputs: names of the extra model outputs that become columns; by default all with a value per token.
        infos: keys of infos that become columns, such as "images". None: no column, and an error if infos have
            "images". Give [] to train on the tokens alone.
        with_last_observation: include the tokens after the last turn.
        pad_to: length L of padded rows, by default that of the longest sequence.
        pad_id: token of the padding.

    Raises:
        WrongType: `pack` is not an `EpisodePack`, or advantages are not numbers.
        TrackMismatch: observations or actions are not ragged integers, or an output does not have one value per
            sampled token, or has the name of another column.
        InvalidArgument: the layout is unknown, several kinds of advantages are given or one is not finite, a weight is
            negative or all are 0, infos have "images" that no column takes, a branch repeats only a part of an
            observation with a value in `infos`, `pad_to` is given for packed sequences, `pad_id` is not a token id,
            earlier turns of a chunk are missing, two chunks of one id and start differ, or a log-probability cannot be
            one of a sampled token.
        ShapeMismatch: advantages have another length, or a sequence is longer than `pad_to`.
        UnknownKey: the pack does not have one of the `outputs`.
    """
    check_pack(pack, "token_batch")
    if layout not in ("packed", "padded"):
        raise InvalidArgument(f"token_batch: layout={layout!r}; give 'packed' or 'padded'")
    if sum(given is not None for given in (advantages, episode_advantages, token_advantages)) > 1:
        raise InvalidArgument(
            "token_batch: give only one of advantages (per turn), episode_advantages and token_advantages"
        )
    if pad_to is not None and layout == "packed":
        raise InvalidArgument("token_batch: pad_to needs layout='padded'")
    if layout == "packed":
        sequences = TokenSequences(pack, with_last_observation=with_last_observation)
    else:
        row_length = "longest" if pad_to is None else checked_count("token_batch: pad_to", pad_to)
        sequences = TokenSequences(pack, with_last_observation=with_last_observation, row_length=row_length)
    given = {}
    if advantages is not None:
        values = _checked_numbers("advantages", advantages, pack.num_steps, "turns")
        given[Columns.ADVANTAGES] = sequences.place_per_turn(values)
    if episode_advantages is not None:
        values = _checked_numbers("episode_advantages", episode_advantages, len(pack), "episodes")
        given[Columns.ADVANTAGES] = sequences.place_per_episode(values)
    if token_advantages is not None:
        values = _checked_token_advantages(sequences, token_advantages)
        given[Columns.ADVANTAGES] = sequences.place(values)
    if episode_weights is not None:
        values = _checked_weights(episode_weights, len(pack))
        given[names.WEIGHTS] = sequences.place_per_episode(values)
    columns = _token_columns(sequences, given, outputs, pad_id)
    of_sequences = _info_columns(sequences, infos, {*columns, *_COLUMNS})
    if layout == "padded":
        shape = sequences.attention_mask.shape
        columns = {name: column.reshape(shape) for name, column in columns.items()}
        columns[names.ATTENTION_MASK] = sequences.attention_mask
    else:
        columns[names.CU_SEQLENS] = sequences.cu_seqlens
        columns[names.MAX_SEQLEN] = np.array(sequences.lengths.max(initial=0), np.int32)
    columns |= {**of_sequences, names.EPISODES: sequences.episodes}
    turns = sequences.place_per_turn(np.arange(1, pack.num_steps + 1)) - 1
    origin = PackSteps(pack), turns.reshape(columns[names.LOSS_MASK].shape)
    return Batch(TrainBatch(columns, origin))


def _info_columns(sequences: TokenSequences, infos: Iterable[str] | None, taken: set[str]) -> dict[str, np.ndarray]:
    """Return a column of objects [S] for each key in `infos`: the values of the observations of each sequence.

    Raises:
        InvalidArgument: `infos` is None, and an observation of a sequence has images.
        TrackMismatch: a key is the name of another column, one of `taken`.
    """
    if infos is None:
        owners = [k for k, images in enumerate(sequences.info_values(names.IMAGES)) if images]
        if owners:
            id_ = sequences.pack.ids[sequences.episodes[owners[0]]]
            raise InvalidArgument(
                f"token_batch: infos of episode {id_} have {names.IMAGES!r}, which no column has; give "
                f"infos=[{names.IMAGES!r}] for a column of them, or infos=[] to train on the tokens alone"
            )
        return {}
    keys = checked_items("token_batch: infos", infos, "keys of infos")
    columns = {}
    for key in keys:
        if key in taken:
            raise TrackMismatch(
                f"token_batch: infos[{key!r}] would replace the column {key!r} of the batch; store it under another key"
            )
        columns[key] = object_array(sequences.info_values(key))
    return columns


def _checked_numbers(name: str, values: ArrayLike, num: int, purpose: str) -> np.ndarray:
    """Return user-given advantages or weights as float32 [num].

    Args:
        name: name of the argument, for errors.
        purpose: what there is a number for, such as "turns", for errors.

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


def _checked_token_advantages(sequences: TokenSequences, values: ArrayLike | Ragged) -> np.ndarray:
    """Return user-given advantages of sampled tokens as float32 [A].

    Raises:
        ShapeMismatch: there is not one value for each sampled token.
        WrongType, InvalidArgument: see `_checked_numbers`.
    """
    num = len(sequences.sampled_tokens)
    if type(values) is Ragged:
        actions = sequences.pack.actions
        if values.ndim != 2 or not values.has_lengths_of(actions):
            raise ShapeMismatch(
                "token_batch: token_advantages are a ragged track with other lengths than the actions; give one value "
                "for each sampled token"
            )
        values = sequences.of_sampled(values)
    return _checked_numbers("token_advantages", values, num, "sampled tokens")


def _checked_weights(values: ArrayLike, num: int) -> np.ndarray:
    """Return user-given weights of episodes as float32 [num].

    Raises:
        InvalidArgument: a weight is negative or not finite, or all are 0.
        WrongType, ShapeMismatch: see `_checked_numbers`.
    """
    weights = _checked_numbers("episode_weights", values, num, "episodes")
    if (weights < 0).any() or (num and not weights.any()):
        raise InvalidArgument(
            f"token_batch: episode_weights={weights.tolist()[:8]}; give numbers of at least 0 that are not all 0"
        )
    return weights


def _token_columns(
    sequences: TokenSequences, given: dict[str, np.ndarray], outputs: Iterable[str] | None, pad_id: int
) -> dict[str, np.ndarray]:
    """Return the batch columns with one value per token position: tokens, labels, loss mask, the columns `given` and
    model outputs, [N] each.

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
        **given,
    }
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

"""Checks of what a language agent records: token ids, values of sampled tokens, rewards, and declared outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.errors import InvalidArgument, ShapeMismatch, TrackMismatch, WrongType, rejected_type
from episodes.pack import EpisodePack
from episodes.tokens.names import KEPT_TOKENS, LEARNED, LOGP, TOKEN_REWARDS, VERSION
from episodes.tracks.casting import checked_reward
from episodes.tracks.ragged import RaggedKind
from episodes.tracks.ragged_items import as_ragged_item

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike

_ARGUMENTS = ("ids", "reply_ids", "reward", "prompt", "infos", "terminated", "truncated", "policy_version")
_NUMBERS = {
    LOGP: ("f", "floats"),
    LEARNED: ("biu", "bools"),
    VERSION: ("iu", "integers"),
    TOKEN_REWARDS: ("f", "floats"),
}
MOST_LOGP = 0.01  # engines with low precision return log-probabilities slightly above 0
_LEAST_LOGP = -1e3  # no token is ever sampled with it; engines return -9999, -1e9 or the like for masked tokens


def token_kind(dtype: DTypeLike | None, label: str) -> RaggedKind:
    """Return the `RaggedKind` (dtype and value shape) of token sequences with token ids of type `dtype`. Raise
    `InvalidArgument` unless `dtype` is an integer type.

    Raises:
        InvalidArgument: the dtype is not one of integers.
    """
    try:
        kind = None if dtype is None else np.dtype(dtype).kind
    except TypeError:
        kind = None
    if kind not in ("i", "u"):
        raise InvalidArgument(f"{label}: dtype={dtype!r}; tokens are integers, give a dtype such as np.int32")
    return RaggedKind(np.dtype(dtype))


def output_kinds(outputs: object, label: str) -> dict[str, RaggedKind]:
    """Return a dict from output name to `RaggedKind` (dtype and shape of the value per token), given `outputs`, a dict
    from name to dtype, or None for only "logp".

    Raises:
        WrongType: `outputs` is not a dict of dtypes.
        InvalidArgument: a name is not a str or is an argument of `turn`, or the dtype does not fit the name's meaning.
    """
    if outputs is None:
        outputs = {LOGP: np.dtype(np.float32)}
    if not isinstance(outputs, Mapping):
        raise WrongType(f"{label}: outputs={outputs!r}; give a dict of dtypes by name, such as {{'logp': 'f4'}}")
    kinds = {}
    for name, dtype in outputs.items():
        if name in _ARGUMENTS or not isinstance(name, str):
            raise InvalidArgument(
                f"{label}: outputs[{name!r}]: outputs become keyword arguments of turn, which has {list(_ARGUMENTS)}; "
                "give another name, a str"
            )
        if isinstance(dtype, Mapping):
            raise WrongType(f"{label}: outputs[{name!r}]={dtype!r}; give a dtype, such as 'f4'")
        try:
            kinds[name] = kind = dtype if isinstance(dtype, RaggedKind) else RaggedKind(dtype)
        except WrongType as error:
            raise WrongType(f"{label}: outputs[{name!r}]={dtype!r}; give a dtype, such as 'f4' ({error})") from None
        allowed, what = _NUMBERS.get(name, (kind.dtype.kind, ""))
        if kind.dtype.kind not in allowed or (name in _NUMBERS and kind.value_shape):
            raise InvalidArgument(f"{label}: outputs[{name!r}]={dtype!r}; this output has {what}, one per token")
    return kinds


def check_group(group: Hashable, label: str) -> None:
    """Raise `WrongType` unless `group`, the user's key for a group of conversations, is hashable."""
    try:
        hash(group)
        is_key = bool(group == group)  # not NaN, which would be another group for each episode
    except TypeError:
        is_key = False
    if not is_key:
        raise WrongType(f"{label}: group={group!r}; give an int, a str or a tuple, which can be a dict's key")


def as_token_ids(ids: ArrayLike, kind: RaggedKind, label: Callable[[], str]) -> np.ndarray:
    """Validate token ids, given as a list, array or tensor, and return them as an array [L] of the dtype in `kind`.

    Args:
        ids: the token ids, as a list, array or tensor.
        kind: the kind.
        label: function that returns the first words of an error message.

    Raises:
        WrongType: the ids are text, a dict, None, bools, or a tensor that numpy cannot read.
        ShapeMismatch: the ids are not [L], or the dtype cannot hold them.
        InvalidArgument: an id is negative.
    """
    if type(ids) is not np.ndarray or ids.dtype is not kind.dtype or ids.ndim != 1:
        ids = _converted(ids, kind, label, "token ids")
    if len(ids) and ids.item(i := ids.argmin()) < 0:
        raise InvalidArgument(f"{label()} has {ids[i]} at index {i}; token ids are 0 or more")
    return ids


def as_token_values(values: ArrayLike, kind: RaggedKind, num: int, label: Callable[[], str]) -> np.ndarray:
    """Validate one output, such as log-probabilities, of `num` sampled tokens, and return it as an array [num, ...] of
    the dtype and value shape in `kind`.

    Raises:
        WrongType: the values are text, a dict, None, or a tensor that numpy cannot read.
        ShapeMismatch: there are not `num` values, or the dtype cannot hold them.
    """
    shape = kind.value_shape
    if type(values) is not np.ndarray or values.dtype is not kind.dtype or values.shape[1:] != shape or not values.ndim:
        values = _converted(values, kind, label, "one value per sampled token")
    if len(values) != num:
        raise ShapeMismatch(f"{label()} has a length of {len(values)} for {num} sampled ids; give one value for each")
    return values


def checked_outputs(
    outputs: Mapping[str, Any], kinds: Mapping[str, RaggedKind], num: int, label: Callable[[], str], owner: str
) -> dict[str, np.ndarray]:
    """Validate the declared outputs of `num` sampled tokens, and return them as arrays [num, ...].

    Args:
        outputs: the values, by name.
        kinds: dtypes and value shapes of the declared outputs.
        num: number of sampled tokens.
        label: function that returns the first words of an error message.
        owner: name of the class that declares outputs.

    Raises:
        TrackMismatch: an output is missing, or was not declared.
        WrongType, ShapeMismatch: an output is not one value per sampled token.
        InvalidArgument: a log-probability cannot be one of a sampled token.
    """
    if outputs.keys() != kinds.keys():
        raise _wrong_outputs(outputs, list(kinds), label(), owner)
    checked = {}
    for name, kind in kinds.items():
        checked[name] = as_token_values(outputs[name], kind, num, lambda name=name: f"{label()}: {name}")
    if LOGP in checked:
        check_logp(checked[LOGP], lambda: f"{label()}: {LOGP}")
    return checked


def _wrong_outputs(outputs: Mapping[str, Any], declared: list[str], label: str, owner: str) -> TrackMismatch:
    """Return the error for outputs that have other names than the declared ones."""
    unknown = [name for name in outputs if name not in declared]
    if unknown:
        return TrackMismatch(
            f"{label}: {unknown[0]!r} is neither an argument nor a declared output, which are {declared}; declare "
            f"it with {owner}(outputs={{..., {unknown[0]!r}: 'f4'}})"
        )
    missing = [name for name in declared if name not in outputs]
    return TrackMismatch(
        f"{label}: values of the output {missing[0]!r} are missing; give {missing[0]}=[one value per sampled "
        f"token], or declare other outputs, such as none with {owner}(outputs={{}})"
    )


def check_logp(logp: np.ndarray, label: Callable[[], str]) -> None:
    """Raise `InvalidArgument` if a log-probability is NaN, greater than 0 (by more than rounding, 0.01), or so low that
    no such token can have been sampled (-inf, or a number that replaces it)."""
    if not len(logp) or (
        logp.item(logp.argmax()) <= MOST_LOGP and logp.item(logp.argmin()) >= _LEAST_LOGP
    ):  # both indices are that of the first NaN; `max` and `min` take three times as long
        return
    i = int((~((logp <= MOST_LOGP) & (logp >= _LEAST_LOGP))).argmax())
    if not logp[i] <= MOST_LOGP:
        raise InvalidArgument(
            f"{label()} has {logp[i]:.6g} at index {i}; log-probabilities are 0 or less (math.log of the probability)"
        )
    raise InvalidArgument(
        f"{label()} has {logp[i]:.6g} at index {i}; a sampled token has a log-probability of at least "
        f"{_LEAST_LOGP:g}, and engines return -inf or -9999 for tokens that they could not sample. Record what the "
        "policy sampled, or 0 and learned=False for a token that was forced"
    )


def _converted(values: ArrayLike, kind: RaggedKind, label: Callable[[], str], what: str) -> np.ndarray:
    """Convert a list, array or tensor to an array [L, ...] of the dtype and value shape in `kind`.
    `label` and `what` are texts for errors.

    Raises:
        WrongType: the values are text or a dict, numpy cannot read the tensor, or token ids are bools.
        ShapeMismatch: the values do not have the shape and dtype of `kind`.
    """
    is_text = isinstance(values, (str, bytes, Mapping, Set)) or hasattr(values, "keys")
    if is_text or not (hasattr(values, "__array__") or isinstance(values, Sequence) or np.isscalar(values)):
        hint = "; encode text with the tokenizer, and take the list of ids" if what == "token ids" and is_text else ""
        raise WrongType(f"{label()} is a {type(values).__name__}; give {what} as a list, array or tensor [L]{hint}")
    try:
        values = values if isinstance(values, np.ndarray) else np.asarray(values)
    except ValueError:
        pass  # items of several lengths, which `as_ragged_item` rejects
    except (TypeError, RuntimeError) as error:  # a tensor with gradients, on a GPU, or of bfloat16
        raise WrongType(
            f"{label()} is a {type(values).__name__} that numpy cannot read ({error}); give "
            f"{'ids.cpu()' if what == 'token ids' else 'tensor.detach().float().cpu()'}"
        ) from None
    if what == "token ids" and isinstance(values, np.ndarray) and values.dtype.kind == "b" and values.size:
        raise WrongType(f"{label()} has bools; give token ids, which are integers")
    return as_ragged_item(values, kind, label)


def finite_reward(reward: object, label: Callable[[], str]) -> float:
    """Return a reward as a float. Raise an error unless it is one finite number.

    Raises:
        ShapeMismatch: the reward is an array.
        WrongType: the reward is not a number.
        InvalidArgument: the reward is NaN or infinite.
    """
    number = checked_reward(reward, label)
    if not math.isfinite(number):
        raise InvalidArgument(f"{label()}: reward={reward!r}; give a finite number")
    return float(number)


def check_infos(infos: object, label: Callable[[], str]) -> None:
    """Raise an error unless `infos` is a dict without the key "kept_tokens", which only `turn(prompt=...)` sets.

    Raises:
        WrongType: `infos` is not a dict.
        InvalidArgument: `infos` has the key "kept_tokens".
    """
    if not isinstance(infos, dict):
        raise WrongType(f"{label()}: infos={infos!r}; give a dict, or None")
    if KEPT_TOKENS in infos:
        raise InvalidArgument(f"{label()}: infos[{KEPT_TOKENS!r}] is set by turn(prompt=...); give another key")


def as_numpy(column: Any) -> np.ndarray:
    """Convert an array, or a tensor on any device, to a numpy array.

    A tensor is detached. Floating-point tensors become float32 (also bfloat16, which numpy lacks).
    """
    if hasattr(column, "detach"):
        column = column.detach().cpu()
        column = column.float() if column.is_floating_point() else column
    return np.asarray(column)


def check_pack(pack: object, call: str) -> None:
    """Raise `WrongType` unless `pack` is an `EpisodePack`. The error message names the function `call`."""
    if not isinstance(pack, EpisodePack):
        raise WrongType(
            f"{call}: pack is a {rejected_type(pack, EpisodePack)}; give an EpisodePack, as TokenRecorder.take() and "
            "EpisodePack.from_episodes([talk.episode, ...]) return"
        )

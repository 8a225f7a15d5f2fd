"""Views of conversations with a language model: turns as text, or as HTML coloured by log-probability."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.errors import InvalidArgument, ShapeMismatch, TrackMismatch, WrongType, rejected_type
from episodes.inspect import formatting
from episodes.single_agent import SingleAgentEpisode
from episodes.tokens.names import KEPT_TOKENS, LEARNED, LOGP, TRAINER_LOGP, VERSION
from episodes.tracks.notebook_repr import notebook_repr
from episodes.tracks.ragged import RaggedKind
from episodes.tracks.validation import checked_count

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["ConversationView", "Decode", "Message", "Token", "is_conversation", "view_conversation"]

Decode = Callable[[list[int]], str]
MOST_TOKENS = 400  # of a message in a view
MOST_MESSAGES = 200
_COLDEST = -6.0  # log-probability with the strongest colour
_ROUNDING = 1e-3  # difference of log-probabilities that has no strong colour
_LOGP = "background of sampled tokens: log-probability, 0", f"{_COLDEST:g} and below", "147,51,234"
_COMPARED = "background of sampled tokens: distance of the sampler's from the trainer's log-probability, 0"


@dataclass(frozen=True, slots=True)
class Token:
    """Display of one token of a conversation: text, tooltip and colour.

    Attributes:
        text: its text, or its id.
        title: id, log-probability and version.
        heat: 0 for a log-probability of 0, up to 1 for -6 and below. With trainer's log-probabilities, 0 if the
            sampler's is equal, up to 1 for the largest difference of the conversation.
        is_dim: whether it is a sampled token that is left out of the loss.
    """

    text: str
    title: str
    heat: float = 0.0
    is_dim: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """Display of the tokens of one action (by the model) or one observation (prompt or reply).

    Attributes:
        role: "prompt", "model" or "reply".
        step: index of the step.
        tokens: the first tokens.
        num_left: number of further tokens.
        notes: reward, advantage, policy version and kept tokens.
    """

    role: str
    step: int
    tokens: Sequence[Token]
    num_left: int
    notes: Sequence[str]


@dataclass(frozen=True, slots=True)
class ConversationView:
    """View of a conversation with a language model: HTML in notebooks, text for `print`.

    Attributes:
        title: the episode as text.
        messages: the first messages.
        num_left: number of further messages.
        joined_by: text between the tokens of a message.
        heat: meaning of the background of tokens, or "" if none has a background.
        most: the number with the strongest background, as text.
        colour: colour of the background, as "red,green,blue".
    """

    title: str
    messages: Sequence[Message]
    num_left: int
    joined_by: str
    heat: str = ""
    most: str = ""
    colour: str = ""

    _repr_html_ = notebook_repr("episodes.inspect.html", "conversation")

    def __str__(self) -> str:
        lines = [self.title]
        for message in self.messages:
            text = self.joined_by.join(token.text for token in message.tokens)
            note = f" ... {message.num_left} more tokens" if message.num_left else ""
            notes = f"  [{', '.join(message.notes)}]" if message.notes else ""
            lines.append(f"{message.role:6} {message.step:3}  {text}{note}{notes}")
        return "\n".join([*lines, *([f"... {self.num_left} more messages"] if self.num_left else [])])

    __repr__ = __str__


def is_conversation(episode: SingleAgentEpisode) -> bool:
    """Return True if the episode's observations and actions are token sequences (integer arrays of varying length)."""
    tracks = episode.tracks
    if not tracks.observations.total:
        return False
    kinds = [track.ragged for track in (tracks.observations, tracks.actions)]
    return all(isinstance(kind, RaggedKind) and kind.value_shape == () and kind.dtype.kind in "iu" for kind in kinds)


def view_conversation(
    episode: SingleAgentEpisode,
    *,
    decode: Decode | None = None,
    advantages: ArrayLike | None = None,
    max_tokens: int = MOST_TOKENS,
) -> ConversationView:
    """Return a view of a token episode's turns as text or HTML. `decode` converts tokens to text.

    In HTML, sampled tokens have a background that is stronger the lower their log-probability is, and those that are
    left out of the loss are dimmed. The title of a token has its id, log-probability and policy version. If the episode
    has an extra output "trainer_logp", such as `TokenGRPO.trainer_log_probs` computes, the background shows the
    sampler's minus the trainer's log-probability instead, and each turn has their mean absolute difference.

    Args:
        episode: an episode of turns of tokens, growing or finalized.
        decode: function that returns the text of a list of token ids, such as `tokenizer.decode`. Without it, ids are
            shown.
        advantages: advantage of the episode, or of each turn, [T].
        max_tokens: number of tokens that are shown of a message.

    Raises:
        WrongType: `episode` is not an episode, `decode` is not a function, or an advantage is not a number.
        TrackMismatch: the episode is not made of ragged tokens.
        InvalidArgument: `decode` fails, or returns something other than text.
        ShapeMismatch: there are not one or T advantages.
    """
    if not isinstance(episode, SingleAgentEpisode):
        raise WrongType(
            f"view_conversation: episode is a {rejected_type(episode, SingleAgentEpisode)}; give one episode, "
            "such as pack[0] or talk.episode"
        )
    if decode is not None and not callable(decode):
        raise WrongType(f"view_conversation: decode={decode!r}; give a function from a list of ids to text")
    max_tokens = checked_count("view_conversation: max_tokens", max_tokens, 0)
    if not is_conversation(episode):
        raise TrackMismatch(
            f"view_conversation: the observations and actions of episode {episode.id_} are no ragged tokens"
        )
    gains = None if advantages is None else _checked_advantages(advantages, len(episode))
    versions = episode.get_policy_versions().tolist()
    kinds: dict[str, Any] = episode.tracks.ragged_kinds()
    outputs = [key for key in (LOGP, TRAINER_LOGP, LEARNED, VERSION) if isinstance(kinds.get(key), RaggedKind)]
    outputs = [key for key in outputs if not kinds[key].value_shape]  # one number per token
    largest = _largest_difference(episode) if {LOGP, TRAINER_LOGP} <= set(outputs) else 0.0
    messages: list[Message] = []
    for t in range(len(episode) + 1):
        if t:
            values = {key: episode.get_extra_model_outputs(key, t - 1).tolist() for key in outputs}
            notes = [f"reward {formatting.number(float(episode.get_rewards(t - 1)))}"]
            notes += [] if gains is None else [f"advantage {formatting.number(float(gains[t - 1]))}"]
            notes += [f"version {versions[t - 1]}"] if versions[t - 1] >= 0 else []
            if LOGP in values and TRAINER_LOGP in values and len(values[LOGP]):
                differences = np.abs(np.subtract(values[LOGP], values[TRAINER_LOGP]))
                known = differences[np.isfinite(differences)]
                notes += [f"sampler and trainer differ by {formatting.number(known.mean(), 3)}"] if len(known) else []
            actions = episode.get_actions(t - 1)
            messages.append(_message("model", t - 1, actions, values, notes, decode, max_tokens, largest))
        info = episode.get_infos(t)
        kept = [f"after the first {info[KEPT_TOKENS]} tokens"] if KEPT_TOKENS in info else []
        observed = episode.get_observations(t)
        if len(observed) or kept or not t:
            messages.append(_message("reply" if t else "prompt", t, observed, {}, kept, decode, max_tokens))
    shown = messages[:MOST_MESSAGES]
    compared = _COMPARED, formatting.number(largest, 2), "217,119,6"
    legend = (compared if TRAINER_LOGP in outputs else _LOGP) if LOGP in outputs else ("", "", "")
    return ConversationView(repr(episode), shown, len(messages) - len(shown), " " if decode is None else "", *legend)


def _largest_difference(episode: SingleAgentEpisode) -> float:
    """Return the largest distance of a sampler's from a trainer's log-probability in an episode, at least 0.001."""
    pairs = (
        [np.asarray(episode.get_extra_model_outputs(key, t), np.float64) for key in (LOGP, TRAINER_LOGP)]
        for t in range(len(episode))
    )
    distances = np.concatenate([np.zeros(0), *(np.abs(a - b) for a, b in pairs if a.shape == b.shape)])
    return max(float(np.max(distances[np.isfinite(distances)], initial=0.0)), _ROUNDING)


def _checked_advantages(values: ArrayLike, num: int) -> np.ndarray:
    """Return the advantages of the turns, float [T], from a number for all turns or one per turn.

    Raises:
        WrongType: the values are not numbers.
        ShapeMismatch: neither one number nor one per turn.
    """
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError):
        array = np.asarray("")
    if array.dtype.kind not in "biuf":
        raise WrongType(f"view_conversation: advantages={values!r}; give numbers")
    if array.shape not in ((), (num,)):
        raise ShapeMismatch(f"view_conversation: advantages have shape {list(array.shape)}; give one, or {num} (turns)")
    return np.broadcast_to(array.astype(float), num)


def _message(
    role: str,
    step: int,
    ids: np.ndarray,
    values: dict[str, list[Any]],
    notes: Sequence[str],
    decode: Decode | None,
    max_tokens: int,
    largest: float = 0.0,
) -> Message:
    """Return a message of the first `max_tokens` tokens, coloured by log-probability if it is known, or by its
    difference from the trainer's.

    Args:
        step: index of the message's turn.
        ids: the token ids.
        values: outputs per token, by name. Those that the message lacks, as of a prompt, are missing.
        notes: texts that are shown with the message.
        largest: the difference with the strongest colour.
    """
    tokens = []
    for k, id_ in enumerate(ids[:max_tokens].tolist()):
        title = [str(id_)] if decode is not None else []
        logp = values[LOGP][k] if LOGP in values else 0.0
        title += [f"log-probability {logp:.3g}"] if LOGP in values else []
        title += [f"version {values[VERSION][k]}"] if VERSION in values else []
        share = logp / _COLDEST
        if LOGP in values and TRAINER_LOGP in values:
            share = abs(logp - values[TRAINER_LOGP][k]) / largest
            title += [f"sampler minus trainer {logp - values[TRAINER_LOGP][k]:.3g}"]
        heat = min(max(share, 0.0), 1.0) if share == share else 0.0
        is_dim = LEARNED in values and not values[LEARNED][k]
        tokens.append(Token(_text(id_, decode), ", ".join(title), round(heat, 2), is_dim))
    return Message(role, step, tokens, max(len(ids) - max_tokens, 0), notes)


def _text(id_: int, decode: Decode | None) -> str:
    """Return a token as text, decoded by `decode`, or its id without `decode`.

    Raises:
        InvalidArgument: `decode` raised an error, or returned no str.
    """
    if decode is None:
        return str(id_)
    try:
        text = decode([id_])
    except Exception as error:
        raise InvalidArgument(f"decode([{id_}]) raised {type(error).__name__}: {error}") from error
    if not isinstance(text, str):
        raise InvalidArgument(f"decode([{id_}]) returned {text!r}; it must return the text of a list of token ids")
    return text

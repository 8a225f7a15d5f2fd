"""Views of conversations with a language model: turns as text, as HTML, or as data for a page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.errors import InvalidArgument, ShapeMismatch, TrackMismatch, WrongType, rejected_type
from episodes.inspect import formatting
from episodes.single_agent import SingleAgentEpisode
from episodes.tokens.names import FINISH_REASON, GROUP, GROUP_SIZE, KEPT_TOKENS, LEARNED, LOGP, TRAINER_LOGP, VERSION
from episodes.tracks.notebook_repr import notebook_repr
from episodes.tracks.ragged import RaggedKind
from episodes.tracks.validation import checked_count

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = [
    "ConversationView",
    "Decode",
    "Message",
    "Quantity",
    "Token",
    "is_conversation",
    "page_conversation",
    "view_conversation",
]

Decode = Callable[[list[int]], str]
MOST_TOKENS = 400  # of a message in a view
MOST_MESSAGES = 200
MOST_OF_PAGE = 50_000  # tokens of a conversation on a page, of which the longest messages are shortened
MOST_MESSAGES_OF_PAGE = 2000
LEARNER = "learner"  # extra output of `LearnedTracks`
_TOOL_CALLS = "tool_calls"
_OPACITY = 0.75  # of the strongest colour
_TINY = 1e-9
_STOPS = (0, 4, 25, 56, 100)  # percent of a scale with a half, at which its background has the colour of the number
_WARM, _COOL, _COUNT = "var(--ep-warm)", "var(--ep-cool)", "var(--ep-many)"  # of the style: red, green, blue
MOST_OF_CHARACTER = 4  # tokens of bytes that make one character
_BROKEN = "\ufffd"  # in place of a part of a character


@dataclass(frozen=True, slots=True)
class Quantity:
    """Number of each sampled token that its background shows, on one scale for all conversations.

    The strength of the colour is the square root of the distance from `zero`, as a share of that of `low` or `high`, so
    small numbers are seen beside large ones.

    Attributes:
        name: its key in `Message.values`.
        label: its name in words.
        low, zero, high: the number with the strongest colour on each side, and the number without colour.
        is_log: whether the scale is that of the logarithm of the number.
        remark: what the number is, in words.
    """

    name: str
    label: str
    low: float
    zero: float
    high: float
    remark: str
    is_log: bool = False

    @property
    def is_centred(self) -> bool:
        """Whether numbers below and above `zero` have colours."""
        return self.low < self.zero < self.high

    @property
    def colours(self) -> tuple[str, str]:
        """Colours of numbers below and above `zero`, as CSS variables of red, green and blue."""
        return (_COOL, _WARM) if self.is_centred else (_COUNT, _COUNT)

    def strengths(self, values: ArrayLike) -> np.ndarray:
        """Return the strength of the colour of numbers [n], from -100 for `low` to 100 for `high`, int8 [n].

        It is 0 for NaN.

        >>> logp, difference = QUANTITIES[:2]
        >>> logp.strengths([-3.0, float("-inf"), float("nan")]), difference.strengths([0.1, -1.0])
        (array([ -71, -100,    0], dtype=int8), array([  71, -100], dtype=int8))
        """
        scale = np.array([self.low, self.zero, self.high])
        numbers = np.clip(np.asarray(values, np.float64), self.low, self.high)
        if self.is_log:
            scale, numbers = np.log(scale), np.log(numbers)
        low, zero, high = scale.tolist()
        below, above = max(zero - low, _TINY), max(high - zero, _TINY)
        shares = np.nan_to_num(np.where(numbers < zero, (numbers - zero) / below, (numbers - zero) / above))
        return np.round(100 * np.sign(shares) * np.sqrt(np.abs(shares))).astype(np.int8)

    def css(self, strength: int) -> str:
        """Return the colour of a strength in CSS, or "" for none."""
        shade = self.colours[strength > 0]
        return f"rgba({shade}, {abs(strength) * _OPACITY / 100:.3g})" if strength else ""

    @property
    def ends(self) -> tuple[str, str]:
        """The numbers with the lowest and the highest colour as texts."""
        low, high = formatting.number(self.low), formatting.number(self.high)
        return ("0", f"{low} and below") if self.high == self.zero else (low, high)

    @property
    def gradient(self) -> str:
        """The scale as a CSS background."""
        strengths = [round(10 * mark**0.5) for mark in _STOPS]
        below, above = self.colours
        half, middle = (2, 50) if self.is_centred else (1, 0)
        stops = [(middle + mark / half, above, strength) for mark, strength in zip(_STOPS, strengths, strict=True)]
        if self.is_centred:
            left = [(middle - mark / half, below, strength) for mark, strength in zip(_STOPS, strengths, strict=True)]
            stops = left[::-1] + stops
        colours = [f"rgba({shade}, {strength * _OPACITY / 100:.3g}) {place:g}%" for place, shade, strength in stops]
        return f"linear-gradient(to right, {', '.join(colours)})"


QUANTITIES = (
    Quantity(LOGP, "log-probability", -6.0, 0.0, 0.0, "of the token, as the sampler recorded it"),
    Quantity("logp_difference", "sampler minus trainer", -0.2, 0.0, 0.2, "difference of the log-probabilities"),
    Quantity("advantage", "advantage", -2.0, 0.0, 2.0, "as the policy loss used it"),
    Quantity("ratio", "ratio", 0.8, 1.0, 1.25, "of probabilities, mean of the gradient steps", is_log=True),
    Quantity("loss_share", "loss share", 0.0, 0.0, 4.0, "of the update's absolute loss, in mean shares of its tokens"),
)
_LABELS = {quantity.name: quantity.label for quantity in QUANTITIES} | {TRAINER_LOGP: "trainer's log-probability"}
_OF_LEARNER = {"advantages": "advantage", "ratios": "ratio", "clipped": "clipped", "loss_shares": "loss_share"}
_OF_LEARNER |= {"shares": "share"}  # of the update's loss, as a fraction


@dataclass(frozen=True, slots=True)
class Token:
    """Display of one token of a conversation: text, tooltip and colour.

    Attributes:
        text: its text, or its id.
        title: id, and what is known of it in words.
        colour: its background in CSS, or "".
        is_dim: whether it is a sampled token that is left out of the loss.
    """

    text: str
    title: str
    colour: str = ""
    is_dim: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """Tokens of one action (by the model) or one observation (prompt, reply, or result of a tool).

    Attributes:
        role: "prompt", "model", "reply" or "tool".
        step: index of the step in the episode.
        ids: ids of the first tokens, int [n].
        texts: their texts, or None without `decode`. A character of several tokens is the text of the last one, and the
            text of the others is None.
        values: numbers per token [n]: those of `QUANTITIES`, "trainer_logp", "clipped", "share", "learned" and
            "version".
        num_left: number of further tokens.
        notes: reward, advantage, share of the loss, policy version and kept tokens.
        turn: step since the begin of the conversation.
    """

    role: str
    step: int
    ids: np.ndarray
    texts: Sequence[str | None] | None
    values: Mapping[str, np.ndarray]
    num_left: int
    notes: Sequence[str]
    turn: int

    def tokens(self, quantity: Quantity | None) -> Iterator[Token]:
        """Iterate over the display of the tokens, with the colour of a quantity."""
        rows = {name: values.tolist() for name, values in self.values.items()}
        is_coloured = quantity is not None and quantity.name in rows
        strengths = quantity.strengths(rows[quantity.name]).tolist() if quantity is not None and is_coloured else []
        for k, id_ in enumerate(self.ids.tolist()):
            title = [] if self.texts is None else [str(id_), *(["part of a character"] * (self.texts[k] is None))]
            title += [f"{_LABELS[name]} {_word(row[k])}" for name, row in rows.items() if name in _LABELS]
            title += ["clipped"] if "clipped" in rows and rows["clipped"][k] > 0 else []
            title += [f"version {rows[VERSION][k]}"] if VERSION in rows else []
            is_dim = LEARNED in rows and not rows[LEARNED][k]
            title += ["left out of the loss"] if is_dim else []
            text = str(id_) if self.texts is None else self.texts[k] or ""
            colour = quantity.css(strengths[k]) if quantity is not None and strengths else ""
            yield Token(text, ", ".join(title), colour, is_dim)


def _word(value: float) -> str:
    """Return a number of a token as text."""
    return formatting.number(value) if value == value else "unknown"


@dataclass(frozen=True, slots=True)
class ConversationView:
    """View of a conversation with a language model: HTML in notebooks, text for `print`.

    Attributes:
        title: id, number of turns and tokens, return, ending and group, as text.
        messages: the first messages.
        num_left: number of further messages.
        is_decoded: whether texts of the tokens are known.
        facts: the parts of the title after the id.
        quantities: those that some token has.
    """

    title: str
    messages: Sequence[Message]
    num_left: int
    is_decoded: bool
    facts: Sequence[str] = ()
    quantities: Sequence[Quantity] = field(default=(), repr=False)

    _repr_html_ = notebook_repr("episodes.inspect.html", "conversation")

    @property
    def quantity(self) -> Quantity | None:
        """The quantity that the background shows: the difference from the trainer if it is known."""
        known = {quantity.name: quantity for quantity in self.quantities}
        return known.get("logp_difference", known.get(LOGP))

    def __str__(self) -> str:
        lines, space = [self.title], "" if self.is_decoded else " "
        for message in self.messages:
            ids = map(str, message.ids.tolist())
            text = space.join(ids if message.texts is None else (part or "" for part in message.texts))
            text += f" ... {message.num_left} more tokens" if message.num_left else ""
            notes = f" ({', '.join(message.notes)})" if message.notes else ""
            lines.append(f"{message.role}, turn {message.turn}{notes}:")
            lines += [f"  {line}" for line in text.split("\n")] if text else []
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

    In HTML, sampled tokens have a background that is stronger the lower their log-probability is, up to -6, and those
    that are left out of the loss are struck through. The title of a token has its id, log-probability and policy
    version. If the episode has an extra output "trainer_logp", such as `TokenGRPO.trainer_log_probs` computes, the
    background shows the sampler's minus the trainer's log-probability instead, from -0.2 to 0.2, and each turn has
    their mean absolute difference. The scales are the same for all conversations. The strength of a colour grows with
    the square root of the number.

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
    return _view(episode, decode, gains, max_tokens, MOST_MESSAGES)


def page_conversation(episode: SingleAgentEpisode, decode: Decode | None = None) -> dict[str, Any]:
    """Convert a conversation to data for a page, of at most 50,000 tokens: the longest messages are shortened.

    Args:
        episode: a conversation, see `is_conversation`.
        decode: function from a list of token ids to text.
    """
    lengths = np.array([len(ids) for *_, ids in _raw_messages(episode)])
    max_tokens = int(lengths.max(initial=0))
    while np.minimum(lengths, max_tokens).sum() > MOST_OF_PAGE and max_tokens > 1:
        max_tokens //= 2
    view = _view(episode, decode, None, max_tokens, MOST_MESSAGES_OF_PAGE)
    messages = view.messages
    names = list(dict.fromkeys(name for message in messages for name in message.values))
    sampled = [message for message in messages if message.role == "model"]
    values = {name: np.concatenate([message.values[name] for message in sampled]) for name in names}
    return {
        "name": "",
        "facts": list(view.facts),
        "decoded": view.is_decoded,
        "left": view.num_left,
        "quantity": view.quantity.name if view.quantity is not None else "",
        "ids": np.concatenate([np.zeros(0, np.int64), *(message.ids for message in messages)]),
        "texts": [text for message in messages for text in message.texts or ()],
        "values": values,
        "quantities": [
            {
                "name": quantity.name,
                "label": quantity.label,
                "remark": quantity.remark,
                "ends": quantity.ends,
                "gradient": quantity.gradient,
                "colours": quantity.colours,
                "opacity": _OPACITY,
                "strengths": quantity.strengths(values[quantity.name]),
            }
            for quantity in view.quantities
        ],
        "messages": [
            {
                "role": message.role,
                "step": message.step,
                "turn": message.turn,
                "size": len(message.ids),
                "left": message.num_left,
                "notes": list(message.notes),
            }
            for message in messages
        ],
    }


def _raw_messages(episode: SingleAgentEpisode) -> Iterator[tuple[str, int, dict[str, Any], np.ndarray]]:
    """Iterate over the messages of a conversation as role, step, info and token ids."""
    begin = episode.t_started
    for t in range(len(episode) + 1):
        info = episode.get_infos(t)
        reason = info.get(FINISH_REASON)
        if t:
            yield "model", t - 1, {} if reason is None else {FINISH_REASON: reason}, episode.get_actions(t - 1)
        observed = episode.get_observations(t)
        kept = {KEPT_TOKENS: info[KEPT_TOKENS]} if KEPT_TOKENS in info else {}
        if len(observed) or kept or not t:
            yield "tool" if reason == _TOOL_CALLS else "reply" if t + begin else "prompt", t, kept, observed


def _view(
    episode: SingleAgentEpisode, decode: Decode | None, gains: np.ndarray | None, max_tokens: int, max_messages: int
) -> ConversationView:
    """Return the view of a conversation, given the advantage of each turn or None."""
    text_of = None if decode is None else cache(partial(_text, decode))
    versions = episode.get_policy_versions().tolist()
    kinds: dict[str, Any] = episode.tracks.ragged_kinds()
    outputs = [key for key in (LOGP, TRAINER_LOGP, LEARNED, VERSION) if _is_per_token(kinds.get(key))]
    learner = kinds.get(LEARNER)
    of_learner = [key for key in _OF_LEARNER if isinstance(learner, Mapping) and _is_per_token(learner.get(key))]
    messages: list[Message] = []
    num_messages, num_sampled, num_learned, num_others = 0, 0, 0, 0
    for role, t, info, ids in _raw_messages(episode):
        num_messages += 1
        if role != "model":
            num_others += len(ids)
            notes = [f"after the first {info[KEPT_TOKENS]} tokens"] if info else []
            values: dict[str, np.ndarray] = {}
        else:
            stored = {key: np.asarray(episode.get_extra_model_outputs(key, t)) for key in outputs}
            learned = episode.get_extra_model_outputs(LEARNER, t) if of_learner else {}
            stored |= {_OF_LEARNER[key]: np.asarray(learned[key]) for key in of_learner}
            odd = {key: len(numbers) for key, numbers in stored.items() if len(numbers) != len(ids)}
            values = _per_token(stored | {key: np.full(len(ids), np.nan) for key in odd})
            num_sampled += len(ids)
            num_learned += int(np.count_nonzero(values[LEARNED])) if LEARNED in values else len(ids)
            notes = [f"reward {formatting.number(float(episode.get_rewards(t)))}"]
            notes += [] if gains is None else [f"advantage {formatting.number(float(gains[t]))}"]
            notes += [f"version {versions[t]}"] if versions[t] >= 0 else []
            notes += [f"finish reason {formatting.clipped(info[FINISH_REASON])}"] if info else []
            notes += _summary(values, gains is None)
            notes += [f"unknown {key}: {count} numbers for {len(ids)} tokens" for key, count in odd.items()]
        if len(messages) < max_messages:
            shown = np.asarray(ids[:max_tokens])
            texts = None if text_of is None else _texts(shown.tolist(), text_of)
            values = {name: numbers[:max_tokens] for name, numbers in values.items()}
            left = max(len(ids) - max_tokens, 0)
            messages.append(Message(role, t, shown, texts, values, left, notes, episode.t_started + t))
    masks = f" ({num_learned:,} learned from)" if LEARNED in outputs else ""
    group, size = (episode.custom_data.get(key) for key in (GROUP, GROUP_SIZE))
    facts = [
        formatting.counted(len(episode), "turn") + (f" from turn {episode.t_started}" if episode.t_started else ""),
        formatting.counted(num_sampled, "sampled token") + masks,
        formatting.counted(num_others, "other token"),
        f"return {formatting.number(episode.get_return())}",
        formatting.ended(episode.ending, is_cut=False),
    ]
    facts += [] if group is None else [f"one of {size} in " * bool(size) + f"group {formatting.clipped(group)}"]
    present = {name for message in messages for name, numbers in message.values.items() if np.isfinite(numbers).any()}
    quantities = [quantity for quantity in QUANTITIES if quantity.name in present]
    title = f"{formatting.shortened(episode.id_)}: {', '.join(facts)}"
    return ConversationView(title, messages, num_messages - len(messages), decode is not None, facts, quantities)


def _is_per_token(kind: Any) -> bool:
    """Return True if this is the kind of a ragged output with one number per item."""
    return isinstance(kind, RaggedKind) and not kind.value_shape and kind.dtype.kind in "biuf"


def _per_token(stored: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return numbers per token by name, with the difference of the log-probabilities."""
    values = dict(stored)
    if LOGP in stored and TRAINER_LOGP in stored:
        values["logp_difference"] = np.subtract(stored[LOGP], stored[TRAINER_LOGP], dtype=np.float64)
    return values


def _summary(values: Mapping[str, np.ndarray], has_advantage: bool) -> list[str]:
    """Return what is known of the tokens of a turn together, as texts."""
    notes = []
    known = {name: numbers[np.isfinite(numbers)] for name, numbers in values.items()}
    known = {name: numbers for name, numbers in known.items() if len(numbers)}
    if "advantage" in known and has_advantage:
        low, high = (formatting.number(float(end)) for end in (known["advantage"].min(), known["advantage"].max()))
        notes.append(f"advantage {low}" if low == high else f"advantage {low} to {high}")
    if "share" in known:
        notes.append(f"loss share {formatting.number(100 * float(known['share'].sum()), 3)} %")
    if "clipped" in known and known["clipped"].any():
        notes.append(f"{np.count_nonzero(known['clipped'])} of {len(known['clipped'])} tokens clipped")
    if "logp_difference" in known:
        distance = float(np.abs(known["logp_difference"]).mean())
        notes.append(f"sampler and trainer: mean |Δ log-probability| {formatting.number(distance, 3)}")
    if LEARNED in values and not values[LEARNED].all():
        notes.append(f"{np.count_nonzero(values[LEARNED] == 0)} of {len(values[LEARNED])} tokens left out of the loss")
    return notes


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


def _texts(ids: list[int], text_of: Callable[[tuple[int, ...]], str]) -> list[str | None]:
    """Return the text of each token. A character of several tokens is the text of the last one; the others have None.

    >>> _texts([226, 130, 172, 33], lambda ids: bytes(ids).decode("utf-8", "replace"))
    [None, None, '€', '!']
    """
    texts: list[str | None] = []
    while len(texts) < len(ids):
        begin, text = len(texts), text_of((ids[len(texts)],))
        parts: list[str | None] = [text]
        for stop in range(begin + 2, min(begin + MOST_OF_CHARACTER, len(ids)) + 1) if _BROKEN in text else ():
            whole = text_of(tuple(ids[begin:stop]))
            if _BROKEN not in whole:
                parts = [*[None] * (stop - begin - 1), whole]
                break
        texts += parts
    return texts


def _text(decode: Decode, ids: tuple[int, ...]) -> str:
    """Return the text of tokens, decoded by `decode`.

    Raises:
        InvalidArgument: `decode` raised an error, or returned no str.
    """
    try:
        text = decode(list(ids))
    except Exception as error:
        raise InvalidArgument(f"decode({list(ids)}) raised {type(error).__name__}: {error}") from error
    if not isinstance(text, str):
        raise InvalidArgument(f"decode({list(ids)}) returned {text!r}; it must return the text of a list of token ids")
    return text

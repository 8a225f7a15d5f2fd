"""Random conversations, and their token sequences computed one token at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from episodes.tokens import Conversation

OUTPUTS = {"logp": "f4", "learned": "?", "version": "i4", "value": "f8"}
_TOKENS = st.lists(st.integers(0, 9), max_size=4)


@dataclass
class Turn:
    """One turn. `keep` is the length of the prefix that the next prompt keeps; None: everything."""

    ids: list[int]
    reply: list[int]
    reward: float
    keep: int | None
    values: dict[str, list[Any]]


@dataclass
class Plain:
    """A conversation as plain values."""

    prompt: list[int]
    turns: list[Turn]
    ending: str = "terminated"
    group: Any = None
    has_outputs: bool = True

    def record(
        self, id_: str = "a", as_prompts: bool = False, after_turn: Callable[[Conversation], object] | None = None
    ) -> Conversation:
        """Return the conversation, recorded by replies where nothing is dropped, or always by whole prompts."""
        talk = Conversation(id_, outputs=OUTPUTS if self.has_outputs else {}, group=self.group)
        talk.begin(np.array(self.prompt, np.int32))
        context = list(self.prompt)
        for t, turn in enumerate(self.turns):
            is_last = t == len(self.turns) - 1
            ending = {self.ending: True} if is_last and self.ending != "cut" else {}
            arguments = {**turn.values, **ending} if self.has_outputs else ending
            context += turn.ids
            if turn.keep is None and not as_prompts:
                talk.turn(turn.ids, turn.reply, turn.reward, **arguments)
            else:
                context = context[: turn.keep]
                talk.turn(turn.ids, reward=turn.reward, prompt=[*context, *turn.reply], **arguments)
            context += turn.reply
            assert talk.context.tolist() == context
            if after_turn is not None:
                after_turn(talk)
        return talk


@dataclass
class PlainSequence:
    """One sequence: the tokens, and for sampled tokens of real steps that are not context (turn, index in the turn)."""

    episode: int
    tokens: list[int] = field(default_factory=list)
    sources: list[tuple[int, int] | None] = field(default_factory=list)
    has_turn: bool = False


def plain_sequences(plain: Plain, episode: int, first_turn: int = 0, with_last: bool = False) -> list[PlainSequence]:
    """Return the sequences of a conversation whose turns before `first_turn` are context."""
    sequences = [PlainSequence(episode, list(plain.prompt), [None] * len(plain.prompt))]
    for t, turn in enumerate(plain.turns):
        now = sequences[-1]
        is_real = t >= first_turn
        now.tokens += turn.ids
        now.sources += [(t - first_turn, k) if is_real else None for k in range(len(turn.ids))]
        now.has_turn |= is_real
        if t == len(plain.turns) - 1 and not with_last:
            break
        prompt = now.tokens[: turn.keep] + turn.reply
        keep = 0
        while keep < min(len(prompt), len(now.tokens)) and prompt[keep] == now.tokens[keep]:
            keep += 1
        if keep < len(now.tokens):
            now = PlainSequence(episode, now.tokens[:keep], [None] * keep)
            sequences.append(now)
        now.tokens += prompt[keep:]
        now.sources += [None] * len(prompt[keep:])
    sequences = [sequence for sequence in sequences if sequence.has_turn]
    return [sequence for sequence in sequences if any(sequence.sources)] or sequences[:1]


@st.composite
def conversations(draw: st.DrawFn, *, breaks: bool = True, outputs: bool = True) -> Plain:
    """Draw a conversation of up to five turns with empty turns, dropped tokens, masks and versions."""
    prompt = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
    turns: list[Turn] = []
    length = len(prompt)
    for _ in range(draw(st.integers(0, 5))):
        ids, reply = draw(_TOKENS), draw(_TOKENS)
        length += len(ids)
        # A first token is never sampled, so a prefix has at least one token.
        keep = draw(st.none() | st.integers(1, length)) if breaks else None
        num = len(ids)
        values = {
            "logp": draw(st.lists(st.integers(-8, 0).map(float), min_size=num, max_size=num)),
            "learned": draw(st.lists(st.booleans(), min_size=num, max_size=num)),
            "version": draw(st.lists(st.integers(0, 3), min_size=num, max_size=num)),
            "value": draw(st.lists(st.integers(-9, 9).map(float), min_size=num, max_size=num)),
        }
        turns.append(Turn(ids, reply, float(draw(st.integers(-2, 2))), keep, values))
        length = (length if keep is None else keep) + len(reply)
    ending = draw(st.sampled_from(["terminated", "truncated", "cut"])) if turns else "cut"
    return Plain(prompt, turns, ending, has_outputs=outputs)

"""Long texts next to each other, with the parts in which they differ."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

SHORT = 60  # characters of a text that is shown whole
AROUND = 24  # characters of what is equal, before and after a part that differs
MOST_COMPARED = 1200  # words of a text after its common beginning
_WORDS = re.compile(r"\w+|\s+|.", re.DOTALL)


class Part(NamedTuple):
    """Part of a text.

    Attributes:
        text: the part.
        differs: whether the part is not in all texts.
    """

    text: str
    differs: bool


def differing_parts(texts: Sequence[str]) -> list[list[Part]]:
    """Return the parts of each text: without those that differ, all texts are equal, up to the first `MOST_COMPARED`
    words after what they have in common at their beginnings. From then on, all differs.
    """
    words = [_WORDS.findall(text) for text in texts]
    least = min(map(len, words), default=0)
    begin = next((i for i in range(least) if len({row[i] for row in words}) > 1), least)
    middles = [row[begin : begin + MOST_COMPARED] for row in words]
    common = middles[0] if middles else []
    for row in middles[1:]:
        blocks = SequenceMatcher(None, common, row, autojunk=False).get_matching_blocks()
        common = [word for block in blocks for word in common[block.a : block.a + block.size]]
    result = []
    for row, middle in zip(words, middles, strict=True):
        parts = [(word, False) for word in row[:begin]]
        parts += zip(middle, _others(middle, common), strict=True)
        parts += [(word, True) for word in row[begin + MOST_COMPARED :]]
        result.append(_joined(parts))
    return result


def _others(words: list[str], common: list[str]) -> list[bool]:
    """Return whether each word is left when the common ones, which are among the words in this order, are removed."""
    blocks = SequenceMatcher(None, common, words, autojunk=False).get_matching_blocks()
    if sum(block.size for block in blocks) == len(common):
        kept = {block.b + i for block in blocks for i in range(block.size)}
        return [i not in kept for i in range(len(words))]
    rest = iter(common)
    following = next(rest, None)
    others = []
    for word in words:
        others.append(word != following)
        following = following if others[-1] else next(rest, None)
    return others


def _joined(words: list[tuple[str, bool]]) -> list[Part]:
    """Join neighbouring words of the same kind."""
    parts: list[Part] = []
    for text, differs in words:
        if parts and parts[-1].differs == differs:
            parts[-1] = Part(parts[-1].text + text, differs)
        else:
            parts.append(Part(text, differs))
    return parts


def shortened_parts(parts: Sequence[Part], most: int) -> list[Part]:
    """Return the parts of a text with "…" in place of the middle of long ones: of what is equal, the 24 characters next
    to parts that differ are left, and of those, `most` characters.
    """
    result = []
    for i, (text, differs) in enumerate(parts):
        before, after = AROUND * (i > 0), AROUND * (i + 1 < len(parts))
        if differs and len(text) > most:
            before, after = most // 2, most - most // 2
        elif differs or len(text) <= before + after + 1:
            before, after = len(text), 0
        left = len(text) > before + after
        shown = text[:before] + "…" * left + text[len(text) - after :]
        result.append(Part(shown, differs))
    return result

"""Long texts next to each other, with the parts in which they differ."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from typing import NamedTuple

SHORT = 60  # characters of a text that is shown whole
AROUND = 24  # characters of what is equal, before and after a part that differs
MOST_COMPARED = 300  # words of a text; comparing two takes less than a second
_WORDS = re.compile(r"\w+|\s+|.", re.DOTALL)


class Part(NamedTuple):
    """Part of a text.

    Attributes:
        text: the part.
        differs: whether the part is not in all texts.
    """

    text: str
    differs: bool


@lru_cache(maxsize=64)  # a live page asks again whenever a run has a new row
def differing_parts(texts: tuple[str, ...]) -> list[list[Part]]:
    """Return the parts of each text: without those that differ, all texts are equal. Of the words between what they
    have in common at their beginnings and at their ends, the first `MOST_COMPARED` are compared; all after them differ.
    """
    words = [_WORDS.findall(text) for text in texts]
    begin = _num_equal(words)
    end = _num_equal([row[begin:][::-1] for row in words])
    middles = [row[begin : len(row) - end] for row in words]
    compared = [middle[:MOST_COMPARED] for middle in middles]
    common = compared[0] if compared else []
    for row in compared[1:]:
        blocks = SequenceMatcher(None, common, row, autojunk=False).get_matching_blocks()
        common = [word for block in blocks for word in common[block.a : block.a + block.size]]
    result = []
    for row, middle, first in zip(words, middles, compared, strict=True):
        parts = [(word, False) for word in row[:begin]]
        parts += zip(first, _others(first, common), strict=True)
        parts += [(word, True) for word in middle[MOST_COMPARED:]]
        result.append(_joined([*parts, *((word, False) for word in row[len(row) - end :])]))
    return result


def _num_equal(words: list[list[str]]) -> int:
    """Return how many words all texts begin with."""
    least = min(map(len, words), default=0)
    return next((i for i in range(least) if len({row[i] for row in words}) > 1), least)


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

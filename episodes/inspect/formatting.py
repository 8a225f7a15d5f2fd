"""Short texts for numbers, byte sizes, ids, endings and other values."""

from __future__ import annotations

import re
from math import isfinite
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

from episodes.facts.ending import Ending
from episodes.facts.short_id import short_id

_RANDOM_ID = re.compile(r"[0-9a-f]{32}(?![0-9a-f])")
MOST_CHARACTERS = 80  # of one value that a user gave
MOST_OF_ID = 200  # characters of an id on a page and in its address


def number(value: float | np.number, digits: int = 4) -> str:
    """Return a number as text: integers below 1e6 in full, other numbers rounded to `digits` digits (two fewer if
    they are very large or small).

    >>> number(12345.6), number(0.123456), number(float("nan")), number(7), number(-0.0000123)
    ('12350', '0.1235', 'NaN', '7', '-1.2e-05')
    """
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "∞" if value > 0 else "-∞"
    value = float(value)
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    if not 1e-3 <= abs(value) < 1e6:
        return f"{value:.{max(digits - 3, 0)}e}"
    text = f"{value:.{digits}g}"
    return str(int(float(text))) if "e" in text else text


def finite_or_text(value: float) -> float | str:
    """Return a number, or for NaN and infinities, which JSON lacks, a text."""
    return float(value) if isfinite(value) else number(value)


def size(nbytes: float) -> str:
    """Return a size in bytes as text with a unit, such as "1.5 MB".

    >>> size(512), size(3_216), size(84 * 84 * 1000)
    ('512 B', '3.2 kB', '7.1 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "B" or nbytes >= 100 else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} TB"


def clipped(value: object, max_length: int = MOST_CHARACTERS) -> str:
    """Return a value as text of at most `max_length` printable characters. If its `__str__` fails, the text names its
    type and the error.
    """
    try:
        text = value if isinstance(value, str) else str(value)
    except Exception as error:  # an error in a user's __str__ must not hide the other values
        text = f"<{type(value).__name__}: {type(error).__name__} in its str>"
    if len(text) <= max_length and text.isprintable():
        return text
    text = "".join(character if character.isprintable() else " " for character in text[: 2 * max_length])
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"


def page_id(value: object) -> str:
    """Return an episode or agent id as the text that HTML pages use, "" for None."""
    return "" if value is None else clipped(value, MOST_OF_ID)


def shortened(value: object) -> str:
    """Return an id as short text without control characters."""
    return short_id(clipped(value, 1000))


def brief_id(value: object) -> str:
    """Return an id as text for a page: of 32 random hexadecimal digits the first 8 and "…", of other ids all, if they
    are short. What follows the digits, such as an agent, stays.

    >>> brief_id("8faab31485715efb6625e5ef6c8dd26c_right"), brief_id("episode 7")
    ('8faab314…_right', 'episode 7')
    """
    return shortened(without_random_digits(clipped(value, MOST_OF_ID)))


def without_random_digits(text: str) -> str:
    """Return an id that begins with 32 random hexadecimal digits with the first 8 of them and "…", and other texts
    unchanged.

    >>> without_random_digits("8faab31485715efb6625e5ef6c8dd26c_right"), without_random_digits("run-7")
    ('8faab314…_right', 'run-7')
    """
    return f"{text[:8]}…{text[32:]}" if _RANDOM_ID.match(text) else text


def endings(ending: Ending, is_cut: bool = True) -> list[str]:
    """Return how an episode ended as a list of words, such as ["terminated"], ["ongoing"] or ["cut"].

    >>> endings(Ending.BOTH), endings(Ending.OPEN), endings(Ending.OPEN, is_cut=False)
    (['terminated', 'truncated'], ['cut'], ['ongoing'])
    """
    names = ["terminated"] * ending.is_terminated + ["truncated"] * ending.is_truncated
    return names or ["cut" if is_cut else "ongoing"]


def ended(ending: Ending, is_cut: bool = True) -> str:
    """Return how an episode ended as text, such as "terminated and truncated"."""
    return " and ".join(endings(ending, is_cut))


def ending_word(ending: Ending) -> str:
    """Return an ending as one word: "terminated" (also if truncated as well), "truncated" or "cut"."""
    return endings(ending)[0]


def counted(count: int, noun: str) -> str:
    """Return a count with its noun in singular or plural, such as "1 step" or "20 steps".

    >>> counted(1, "step"), counted(2000, "step")
    ('1 step', '2,000 steps')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def shape(lengths: tuple[int, ...]) -> str:
    """Return an array shape as text, such as "[4, 84, 84]".

    >>> shape((201, 4))
    '[201, 4]'
    """
    return f"[{', '.join(map(str, lengths))}]"

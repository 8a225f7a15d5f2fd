"""Shortening of long ids for reprs, plot titles and tables."""

from __future__ import annotations

MOST_CHARACTERS = 24


def short_id(id_: object, max_characters: int = MOST_CHARACTERS) -> str:
    """Shorten an id in the middle to a text of at most `max_characters` characters.

    >>> short_id("experiment-0007-env-03"), short_id(7), short_id("b1946ac92492d2347c6235b4d2611184", 9)
    ('experiment-0007-env-03', '7', 'b194…1184')
    """
    text = str(id_)
    if len(text) <= max_characters:
        return text
    half = (max_characters - 1) // 2
    return f"{text[: max_characters - 1 - half]}…{text[-half:] if half else ''}"

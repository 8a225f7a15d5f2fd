"""Output of all commands: texts in which no character controls the terminal."""

from __future__ import annotations

import re
import sys
from typing import Any

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters other than tabs and line ends, and characters that change the direction of text."""


def visible(text: Any) -> str:
    r"""Return the value as a text in which control characters are written as escapes.

    Texts of a data set, such as ids, may contain sequences that move the cursor, set the title or the clipboard of a
    terminal, or hide what follows. Tabs and line ends stay.

    >>> visible("\x1b[2Jdone\n")
    '\\x1b[2Jdone\n'
    """
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), str(text))


def say(text: Any, *, err: bool = False) -> None:
    """Print a value as one text without control characters, to stdout, or with `err` to stderr."""
    print(visible(text), file=sys.stderr if err else sys.stdout, flush=True)

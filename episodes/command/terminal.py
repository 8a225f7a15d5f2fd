"""Output of all commands: texts in which no character controls the terminal."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from shutil import get_terminal_size

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters other than tabs and line ends, and characters that change the direction of text."""


def visible(text: object) -> str:
    r"""Return the value as a text in which control characters are written as escapes.

    Texts of a data set, such as ids, may contain sequences that move the cursor, set the title or the clipboard of a
    terminal, or hide what follows. Tabs and line ends stay.

    >>> visible("\x1b[2Jdone\n")
    '\\x1b[2Jdone\n'
    """
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), str(text))


def say(text: object, *, err: bool = False) -> None:
    """Print a value as one text without control characters, to stdout, or with `err` to stderr."""
    print(visible(text), file=sys.stderr if err else sys.stdout, flush=True)


def say_wrapped(text: object, defect: str = "") -> None:
    """Print a text as `say` does, with line breaks between words if stdout is a terminal.

    Further lines of a line are indented by two spaces more than its first one. If the text begins with `defect`, this
    is red in terminals with colours.
    """
    if not sys.stdout.isatty():
        say(text)
        return
    lines = "\n".join(wrapped(str(text), get_terminal_size().columns))
    if defect and has_styles() and lines.startswith(defect):
        print(f"\x1b[31m{defect}\x1b[0m", end="")
        lines = lines.removeprefix(defect)
    say(lines)


def has_styles() -> bool:
    """Return True if stdout is a terminal with colours, and `NO_COLOR` is not set."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb" and not os.environ.get("NO_COLOR")


def wrapped(text: str, width: int) -> list[str]:
    r"""Return the lines of a text, broken between words where they are longer than `width` characters.

    Words that are longer, such as paths, stay whole.

    >>> wrapped("kind: a longer\n  do: this and that", 12)
    ['kind: a', '  longer', '  do: this', '    and that']
    """
    lines = []
    for line in visible(text).splitlines():
        indent = " " * (len(line) - len(line.lstrip(" ")) + 2)
        is_long = len(line) > width
        wrapper = textwrap.TextWrapper(width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        lines += wrapper.wrap(line) if is_long else [line]
    return lines

"""Output of all commands: texts in which no character controls the terminal."""

from __future__ import annotations

import os
import re
import sys
from shutil import get_terminal_size
from typing import TextIO

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


def say_wrapped(text: object, defect: str = "", *, err: bool = False) -> None:
    """Print a text as `say` does, with line breaks between words if the stream is a terminal.

    Further lines of a line are indented by two spaces more than its first one. If the text begins with `defect`, this
    is red in terminals with colours.
    """
    stream = sys.stderr if err else sys.stdout
    if not stream.isatty():
        say(text, err=err)
        return
    lines = "\n".join(wrapped(str(text), _width(stream)))
    if defect and has_styles() and lines.startswith(defect):
        print(f"\x1b[31m{defect}\x1b[0m", end="")
        lines = lines.removeprefix(defect)
    say(lines, err=err)


def _width(stream: TextIO) -> int:
    """Return the number of columns of a terminal: `COLUMNS` if it is set, or else what the terminal says."""
    try:
        return get_terminal_size((os.get_terminal_size(stream.fileno()).columns, 24)).columns
    except OSError:  # it does not say
        return get_terminal_size().columns


def has_styles() -> bool:
    """Return True if stdout is a terminal with colours, and `NO_COLOR` is not set."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb" and not os.environ.get("NO_COLOR")


def wrapped(text: str, width: int) -> list[str]:
    r"""Return the lines of a text, broken between words where they take more than `width` places.

    Words that are longer, such as paths, stay whole.

    >>> wrapped("kind: a longer\n  do: this and that", 12)
    ['kind: a', '  longer', '  do: this', '    and that']
    """
    lines = []
    for line in visible(text).splitlines():
        if cell_width(line) <= width:
            lines.append(line)
            continue
        own = line[: len(line) - len(line.lstrip(" "))]
        lines.append(own)
        for word in line.split():
            gap = " " * (not lines[-1].isspace() and lines[-1] != "")
            if gap and cell_width(lines[-1]) + 1 + cell_width(word) > width:
                lines.append(f"{own}  ")
                gap = ""
            lines[-1] += gap + word
    return lines


def cell_width(text: str) -> int:
    """Return the number of places that a text takes in a line of a terminal: two for a wide character."""
    from rich.cells import cell_len

    return len(text) if text.isascii() else cell_len(text)

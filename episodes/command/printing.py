"""Output of commands: tables, short texts for values, and JSON; and the options and arguments that they share."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

from episodes.command.terminal import say, visible

PIPED_WIDTH = 10_000
GAP = 2  # between the columns of a table
NARROWEST = 24  # width of the first column of a table with longer words

Directory = Annotated[str, typer.Argument(metavar="DIR", help="Path or URL of a data set, or data of another format.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def print_json(value: object) -> None:
    """Print a value as JSON. Values that JSON does not have become texts."""
    say(json.dumps(value, default=str).replace("\x7f", "\\u007f"))  # all other control characters are escaped


def print_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table of texts on the terminal, with the column titles `names` unless all are empty.

    If the table is wider than the terminal, cells are wrapped between words, and paths in the first column after a "/".
    If the words do not fit, several tables with the same first column are printed below each other.
    """
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    def cell(value: str) -> Text:
        return Text(visible(value))  # a text of a user is neither markup nor a control sequence

    console = Console()
    if not console.is_terminal:
        console.width = PIPED_WIDTH  # no line breaks within rows for scripts
    rows = [list(map(visible, row)) for row in rows]
    columns = list(zip(names, *rows, strict=True))
    for chosen in _groups(columns, console.width):
        shown = [columns[i] for i in chosen]
        widths = _widths(shown, console.width - GAP * (len(shown) - 1))
        paths = ["\n".join(_broken_path(path, widths[0])) for path in shown[0]]
        heads, *lines = zip(paths, *shown[1:], strict=True)
        titles = (Column(cell(head), width=width, overflow="fold") for head, width in zip(heads, widths, strict=True))
        table = Table(*titles, box=None, pad_edge=False, show_header=any(names))
        for line in lines:
            table.add_row(*map(Text, line))
        console.print(table)


def _groups(columns: Sequence[Sequence[str]], width: int) -> list[list[int]]:
    """Return the indices of the columns of tables that have room in `width` characters, each with the first column."""
    longest = _longest_words(columns)
    groups, first = [[0]], min(longest[0], NARROWEST)
    room = width - first
    for i in range(1, len(columns)):
        if len(groups[-1]) > 1 and room < GAP + longest[i]:
            groups.append([0])
            room = width - first
        groups[-1].append(i)
        room -= GAP + longest[i]
    return groups


def _longest_words(columns: Sequence[Sequence[str]]) -> list[int]:
    """Return the length of the longest word of each column, and of the longest part of a path in the first one."""
    words = [[part for cell in column for part in cell.split()] for column in columns]
    words[0] = [part for cell in columns[0] for part in _broken_path(cell, 1)]
    widest = [max(map(len, column)) for column in columns]
    return [min(max(map(len, parts), default=0), most) for parts, most in zip(words, widest, strict=True)]


def _widths(columns: Sequence[Sequence[str]], room: int) -> list[int]:
    """Return widths of table columns that fit into `room` characters together, if their longest words do. If these do
    not, the first column is narrower, and its words are broken.
    """
    widest = [max(map(len, column)) for column in columns]
    if sum(widest) <= room:
        return widest
    widths = _longest_words(columns)
    room -= sum(widths)
    widths[0] = max(widths[0] + min(room, 0), min(widths[0], NARROWEST))
    needy = sorted(range(len(widths)), key=lambda i: widest[i] - widths[i])
    for n, i in enumerate(needy):  # those that need least get it first, the others equal parts
        more = min(widest[i] - widths[i], max(room, 0) // (len(needy) - n))
        widths[i], room = widths[i] + more, room - more
    return widths


def _broken_path(path: str, width: int) -> list[str]:
    """Return the lines of a path, broken after a "/" where they are longer than `width` characters.

    >>> _broken_path("observations/force/left", 15)
    ['observations/', '  force/left']
    """
    lines = [""]
    for part in re.findall("[^/]*/?", path)[:-1]:
        if lines[-1].strip() and len(lines[-1]) + len(part) > width:
            lines.append("  ")
        lines[-1] += part
    return lines


def text(value: object) -> str:
    """Return a value as short text for a table cell, "" for None."""
    from episodes.inspect.formatting import clipped, number

    if isinstance(value, float):
        return number(value)
    if isinstance(value, dict):
        return clipped(", ".join(f"{key}: {item}" for key, item in value.items()))
    return "" if value is None else clipped(value)


def finite(value: object) -> Any:
    """Return the value with NaN and infinities replaced by None, because JSON has no such numbers."""
    if isinstance(value, list):
        return [finite(item) for item in value]
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""Output of commands: tables, short texts for values, and JSON; and the options and arguments that they share."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Annotated, Any, NamedTuple

import typer

from episodes.command.terminal import cell_width, has_styles, say, visible, wrapped

PIPED_WIDTH = 10_000
GAP = 2  # between the columns of a table
MOST_OF_LIST = 20  # characters of a list in brackets that is not wrapped
FEWEST_OF_FIRST = 24  # characters of the first column, if it needs them
_STYLES = {"terminated": "green", "truncated": "yellow", "terminated and truncated": "green", "cut": "dim"}
_WORD = re.compile(rf"\[[^\[\]]{{0,{MOST_OF_LIST - 2}}}\]|\S+ … \S+|\S+")
_NUMBER = re.compile(r"-?(∞|\d[\d,]*(\.\d+)?(e[+-]?\d+)?)|NaN|\u2013")

Directory = Annotated[str, typer.Argument(metavar="DIR", help="Path or URL of a data set, or data of another format.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def print_json(value: object) -> None:
    """Print a value as JSON. Values that JSON does not have become texts."""
    say(json.dumps(value, default=str).replace("\x7f", "\\u007f"))  # all other control characters are escaped


def print_table(names: Sequence[str], rows: Iterable[Sequence[str]], folded: int = 0, defects: str = "") -> None:
    """Print a table of texts on the terminal, with the column titles `names` unless all are empty.

    Columns of numbers are aligned at the right. If the table is wider than the terminal, cells are wrapped between
    words. If the words do not fit, several tables with the same first column are printed below each other. Words of the
    first column, such as ids and paths, are broken only if they take two thirds of the terminal. In terminals with
    colours, titles are bold, and endings and defects have colours.

    Args:
        folded: the number of last columns, such as notes, that are printed below their rows if the table is too wide.
        defects: title of the column of defects, which are red.
    """
    from rich.console import Console
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        console.width = PIPED_WIDTH  # no line breaks within rows for scripts
    titles = [*map(visible, names)]
    cells = [list(map(visible, row)) for row in rows]  # a text of a user is neither markup nor a control sequence
    if not titles:
        return
    kept = _num_kept(titles, cells, console.width, folded)
    is_styled = has_styles()
    for n, part in enumerate(laid_out(titles[:kept], [row[:kept] for row in cells], console.width)):
        lines = [part.titles] if any(part.titles) else []
        if n:
            console.print()
        for k, row in enumerate([*lines, *part.rows]):
            is_title = k < len(lines)
            for line in _lines(row, part):
                styles = [
                    "bold" if is_title else _style(*each, defects) for each in zip(line, part.titles, strict=False)
                ]
                styled = [Text(cell, style * is_styled) for cell, style in zip(line, styles, strict=True)]
                console.print(Text(" " * GAP).join(styled), soft_wrap=True)
            if n or is_title:
                continue
            notes = list(zip(titles, cells[k - len(lines)], strict=True))[kept:]
            for is_red in (False, True):
                note = "; ".join(cell for title, cell in notes if cell and (title == defects) == is_red)
                for line in wrapped(f"    {note}", console.width) if note else ():
                    console.print(Text(line, "red" * (is_red and is_styled)), soft_wrap=True)


def _style(cell: str, title: str, defects: str) -> str:
    """Return the style of a cell in a column with a title: that of an ending, or red in the column of defects."""
    return "red" if defects and title == defects else _STYLES.get(cell.strip(), "")


def _num_kept(titles: Sequence[str], rows: Sequence[Sequence[str]], width: int, folded: int) -> int:
    """Return how many of the first columns are columns, if the last ones may be printed below their rows."""
    widest = [max(map(cell_width, column)) for column in zip(titles, *rows, strict=True)]
    fewest = len(widest) - folded
    return next((num for num in range(len(widest), fewest, -1) if sum(widest[:num]) + GAP * (num - 1) <= width), fewest)


def _lines(row: Sequence[str], part: Part) -> Iterator[list[str]]:
    r"""Yield the lines of a row of a table: cells as wide as their columns, except for the last one that is not empty.

    >>> part = Part([], [], [2, 4, 3], [False, True, False])
    >>> list(_lines(["a", "1", "b\nc"], part)), list(_lines(["a", "", ""], part))
    ([['a ', '   1', 'b'], ['  ', '    ', 'c']], [['a']])
    """
    for line in zip_longest(*(cell.split("\n") for cell in row), fillvalue=""):
        num = max((k + 1 for k, cell in enumerate(line) if cell), default=1)
        cells = []
        for k, cell in enumerate(line[:num]):
            gap = " " * (part.widths[k] - cell_width(cell))
            cells.append(gap + cell if part.are_numeric[k] else cell + gap * (k + 1 < num))
        yield cells


class Part(NamedTuple):
    """Table of texts that are wrapped to the widths of their columns."""

    titles: list[str]
    rows: list[list[str]]
    widths: list[int]
    are_numeric: list[bool]


def laid_out(names: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[Part]:
    """Return the tables that have room in `width` characters, each with the first column.

    Tables after the first one leave out the rows without other cells.

    >>> [part] = laid_out(["id", "steps"], [["a", "10"], ["b", "9"]], 80)
    >>> part.rows, part.widths, part.are_numeric
    ([['a', '10'], ['b', '9']], [2, 5], [False, True])
    """
    columns = [list(column) for column in zip(names, *rows, strict=True)]
    most_of_first = max(width * 2 // 3, FEWEST_OF_FIRST)
    if max(_longest_words(columns[:1])) > most_of_first:
        columns[0] = [" ".join(_wrapped(cell, most_of_first)) for cell in columns[0]]
    parts = []
    for n, chosen in enumerate(_groups(columns, width)):
        shown = [columns[i] for i in chosen]
        kept = [0, *(k for k in range(1, len(rows) + 1) if not n or any(column[k] for column in shown[1:]))]
        shown = [[column[k] for k in kept] for column in shown]
        if len(kept) == 1 and n and not any(column[0] for column in shown[1:]):
            continue
        widths = _widths(shown, width - GAP * (len(shown) - 1))
        cells = [
            ["\n".join(_wrapped(cell, most)) for cell in column] for column, most in zip(shown, widths, strict=True)
        ]
        titles, *lines = map(list, zip(*cells, strict=True))
        filled = [[cell for cell in column[1:] if cell] for column in shown]
        are_numeric = [bool(column) and all(map(_NUMBER.fullmatch, column)) for column in filled]
        parts.append(Part(titles, lines, widths, are_numeric))
    return parts


def _groups(columns: Sequence[Sequence[str]], width: int) -> list[list[int]]:
    """Return the indices of the columns of tables that have room in `width` characters, each with the first column."""
    longest = _longest_words(columns)
    groups, room = [[0]], width - longest[0]
    for i in range(1, len(columns)):
        if len(groups[-1]) > 1 and room < GAP + longest[i]:
            groups.append([0])
            room = width - longest[0]
        groups[-1].append(i)
        room -= GAP + longest[i]
    return groups


def _longest_words(columns: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of the longest word of each column, at least 1."""
    return [max((cell_width(word) for cell in column for word in _WORD.findall(cell)), default=1) for column in columns]


def _widths(columns: Sequence[Sequence[str]], room: int) -> list[int]:
    """Return widths of table columns that fit into `room` characters together, if their longest words do.

    Otherwise the widest columns but the first one are narrower, and their words are broken.
    """
    widest = [max(1, *map(cell_width, column)) for column in columns]
    if sum(widest) <= room:
        return widest
    widths = _longest_words(columns)
    room -= sum(widths)
    for i in sorted(range(1, len(widths)), key=lambda i: -widths[i]):
        less = min(max(-room, 0), widths[i] - 1)
        widths[i], room = widths[i] - less, room + less
    needy = sorted(range(len(widths)), key=lambda i: widest[i] - widths[i])
    for n, i in enumerate(needy):  # those that need least get it first, the others equal parts
        more = min(max(widest[i] - widths[i], 0), max(room, 0) // (len(needy) - n))
        widths[i], room = widths[i] + more, room - more
    return widths


def _wrapped(cell: str, width: int) -> list[str]:
    """Return the lines of a cell, broken between words, and within words that are wider than `width`.

    >>> _wrapped("of [48, 64, 3] items", 12)
    ['of', '[48, 64, 3]', 'items']
    """
    if cell_width(cell) <= width and "\n" not in cell:
        return [cell]
    lines = [""]
    for word in _WORD.findall(cell):
        for part in _pieces(word, width):
            if not lines[-1]:
                lines[-1] = part
            elif cell_width(lines[-1]) + 1 + cell_width(part) <= width:
                lines[-1] += f" {part}"
            else:
                lines.append(part)
    return lines


def _pieces(word: str, width: int) -> Iterator[str]:
    """Yield the parts of a word that have room in lines of `width`, at least one character each.

    >>> list(_pieces("abcde", 2)), list(_pieces("日本語", 5))
    (['ab', 'cd', 'e'], ['日本', '語'])
    """
    begin = 0
    for k in range(1, len(word)):
        if cell_width(word[begin : k + 1]) > width:
            yield word[begin:k]
            begin = k
    yield word[begin:]


def text(value: object) -> str:
    """Return a value as short text for a table cell, "" for None."""
    from episodes.inspect.formatting import clipped, number

    if isinstance(value, float):
        return number(value)
    if isinstance(value, dict):
        return clipped(", ".join(f"{key}: {item}" for key, item in value.items()))
    return "" if value is None else clipped(value)


def alike(values: Sequence[object]) -> list[str]:
    """Return the values of a column as short texts, in which floats have the same decimals: as many as it takes to show
    the largest with 4 digits. They have digits of their own if a smaller one would have fewer than 2 digits so.

    >>> alike([225.94, 60.0, 104.25]), alike([0.5, 3e-05]), alike([3.0, float("nan"), None])
    (['225.9', '60.0', '104.2'], ['0.5', '3.0e-05'], ['3', 'NaN', ''])
    """
    from episodes.inspect.formatting import number

    numbers = [value for value in values if isinstance(value, float) and math.isfinite(value)]
    largest = max(map(abs, numbers), default=0.0)
    most = max(3 - math.floor(math.log10(largest)), 0) if largest else 0
    if largest >= 1e6 or 0 < largest < 1e-3 or any(_is_lost(value, most, number(value)) for value in numbers):
        return list(map(text, values))
    decimals = max((len(f"{value:.{most}f}".partition(".")[2].rstrip("0")) for value in numbers), default=0)
    return [
        f"{value + 0.0:.{decimals}f}" if isinstance(value, float) and math.isfinite(value) else text(value)
        for value in values
    ]


def _is_lost(value: float, decimals: int, shown: str) -> bool:
    """Return True if a number has fewer than 2 digits with so many decimals, and is not exactly `shown`."""
    return 0 < abs(value) < 10 ** (1 - decimals) and round(value, decimals) != float(shown)


def finite(value: object) -> Any:
    """Return the value with NaN and infinities replaced by None, because JSON has no such numbers."""
    if isinstance(value, list):
        return [finite(item) for item in value]
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value

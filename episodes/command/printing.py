"""Output of commands: tables, short texts for values, and JSON; and the options and arguments that they share."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

from episodes.command.terminal import say, visible

PIPED_WIDTH = 10_000

Directory = Annotated[str, typer.Argument(metavar="DIR", help="Path or URL of a data set, or data of another format.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def print_json(value: object) -> None:
    """Print a value as JSON. Values that JSON does not have become texts."""
    say(json.dumps(value, default=str).replace("\x7f", "\\u007f"))  # all other control characters are escaped


def print_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table of texts on the terminal, with the column titles `names` unless all are empty.

    If the table is wider than the terminal, paths in the first column break after each "/". Other cells are wrapped.
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
    widths = [max(map(len, column)) + 1 for column in zip(names, *rows, strict=True)]
    if sum(widths) > console.width:
        rows = [[row[0].replace("/", "/\n  "), *row[1:]] for row in rows]
    columns = (Column(cell(name), no_wrap=not i, overflow="fold") for i, name in enumerate(names))
    table = Table(*columns, box=None, pad_edge=False, show_header=any(names))
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


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

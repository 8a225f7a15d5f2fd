"""How commands print: tables, values in few words, and numbers that JSON has."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

PIPED_WIDTH = 10_000


def print_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Rows of words in columns; no head where all names are empty."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*names, box=None, pad_edge=False, show_header=any(names))
    for row in rows:
        table.add_row(*map(Text, row))  # what a user wrote is no markup
    console = Console()
    if not console.is_terminal:
        console.width = PIPED_WIDTH  # rows stay whole for what reads them
    console.print(table)


def text(value: Any) -> str:
    """A value in few words; nothing for None."""
    from episodes.inspect.formatting import clipped, number

    if isinstance(value, float):
        return number(value)
    if isinstance(value, dict):
        return clipped(", ".join(f"{key}: {one}" for key, one in value.items()))
    return "" if value is None else clipped(value)


def finite(value: Any) -> Any:
    """A value that JSON has: no NaN and no infinity."""
    if isinstance(value, list):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

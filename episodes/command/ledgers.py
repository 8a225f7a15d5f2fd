"""Command `episodes ledger diff`: compares the steps from which two training runs learned."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from episodes.command.opening import local
from episodes.command.printing import Json, print_json
from episodes.command.terminal import say

app = typer.Typer(no_args_is_help=True, help="Compare the rows that runs learned from.")

Run = Annotated[Path, typer.Argument(parser=local, help="A ledger, or the folder of a run with a ledger.")]


@app.command("diff")
def diff(a: Run, b: Run, json: Json = False) -> None:
    """Print the first update and batch row at which two training runs differ. The exit status is 1 if they differ."""
    from episodes.errors import InvalidArgument
    from episodes.storage.header import is_data_set
    from episodes.storage.ledger import difference
    from episodes.storage.ledger.ledger_reader import LedgerReader

    for path in (a, b):
        if is_data_set(path):
            raise InvalidArgument(f"{path} is a data set; give ledgers or folders of runs (train --ledger writes one)")
    ledgers = LedgerReader(a), LedgerReader(b)
    first = difference(*ledgers)
    if json:
        print_json(None if first is None else {**asdict(first), "cause": first.cause})
    else:
        say(f"the same in {len(ledgers[0])} updates" if first is None else f"{first}\n{first.bar()}")
    raise typer.Exit(first is not None)

"""`episodes ledger`: what runs have learned from, update by update."""

from __future__ import annotations

import json as json_text
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="What runs have learned from, update by update.")

Run = Annotated[Path, typer.Argument(help="A ledger, or the folder of a run that has one.")]


@app.command("diff")
def diff(a: Run, b: Run, json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Name the first update and row at which two runs differ; exit status 1 where they do."""
    from episodes.storage.ledger import LedgerReader, difference

    ledgers = LedgerReader(a), LedgerReader(b)
    found = difference(*ledgers)
    if json:
        typer.echo(json_text.dumps(None if found is None else asdict(found)))
    else:
        typer.echo(f"the same in {len(ledgers[0])} updates" if found is None else str(found))
    raise typer.Exit(found is not None)

"""`episodes check`: what is damaged, lost or left over in a data set."""

from __future__ import annotations

import json as json_text
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer


def check(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The data set.")],
    repair: Annotated[bool, typer.Option("--repair", help="Keep what is sound, put aside what is not.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Read all of a data set, and say what is damaged; exit status 1 where something is that was not repaired."""
    from episodes.storage import check as checked

    report = checked(directory, repair=repair)
    if json:
        typer.echo(json_text.dumps(asdict(report)))
    else:
        typer.echo(f"{report.episodes} episodes in {report.shards} shards, {len(report.problems)} problems")
        for line in (*report.problems, *report.notes, *report.repaired):
            typer.echo(line)
    raise typer.Exit(bool(report.problems) and not repair)

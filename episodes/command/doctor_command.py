"""`episodes doctor`: lies about endings and data, in an environment or a data set."""

from __future__ import annotations

import json as json_text
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer


def doctor(
    subject: Annotated[
        str, typer.Argument(metavar="ENV|DIR", help="A Gymnasium id, module:function, or a path of data.")
    ],
    from_: Annotated[str, typer.Option("--from", help="The format of other data, as convert has it.")] = "",
    steps: Annotated[int, typer.Option(min=1, help="How many are played or read, at most.")] = 4000,
    seed: Annotated[int, typer.Option(help="Of the environment and of the actions.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what is wrong with endings and data, and what to do; exit status 1 where something is."""
    from episodes.converters.formats import format_of, read
    from episodes.inspect.doctor import examine

    is_file = from_ or (Path(subject).exists() and format_of(subject) not in (None, "episodes"))
    found = examine(read(subject, from_ or None)[0] if is_file else subject, num_steps=steps, seed=seed)
    if json:
        typer.echo(json_text.dumps([asdict(finding) for finding in found], default=str))
    else:
        for line in map(str, found):
            typer.echo(line)
        typer.echo(f"{subject}: {len(found) or 'no'} finding{'s' * (len(found) != 1)}")
    raise typer.Exit(bool(found))

"""Command `episodes doctor`: finds errors in the endings and data of an environment or a data set."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from episodes.command.printing import Json, print_json
from episodes.command.terminal import say_wrapped


def doctor(
    subject: Annotated[
        str, typer.Argument(metavar="ENV|DIR", help="A Gymnasium id, module:function, or a path of data.")
    ],
    from_: Annotated[str, typer.Option("--from", help="The format of data of other libraries, as in convert.")] = "",
    steps: Annotated[int, typer.Option(min=1, help="Most steps to play, or to read in detail.")] = 4000,
    seed: Annotated[int, typer.Option(help="Seed of the environment and of the actions.")] = 0,
    json: Json = False,
) -> None:
    """Report errors in endings and data. The exit status is 1 if there are any, and 2 for wrong arguments."""
    from episodes.converters.formats import read, recognize
    from episodes.inspect.doctor.examine import examine

    is_file = from_ or (Path(subject).expanduser().exists() and recognize(subject).name != "episodes")
    findings = examine(read(subject, from_ or None)[0] if is_file else subject, num_steps=steps, seed=seed)
    if json:
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            say_wrapped(finding, finding.kind)
        say_wrapped(f"{subject}: {len(findings) or 'no'} finding{'s' * (len(findings) != 1)} in {findings.extent}")
    raise typer.Exit(bool(findings))

"""Command `episodes doctor`: finds errors in the endings and data of an environment or a data set."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from episodes.command.printing import Json, print_json
from episodes.command.terminal import say_wrapped

if TYPE_CHECKING:
    from episodes.inspect.doctor.finding import Findings


def doctor(
    subject: Annotated[
        str, typer.Argument(metavar="ENV|DIR", help="A Gymnasium id, module:function, or a path of data.")
    ],
    from_: Annotated[str, typer.Option("--from", help="The format of data of other libraries, as in convert.")] = "",
    steps: Annotated[int, typer.Option(min=1, help="Most steps to play, or the first ones to read in detail.")] = 4000,
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
        for kind, words in findings.by_kind().items():
            say_wrapped(words, kind)
        is_empty = not findings and not findings.num_steps
        found = "no episodes; add some, then look again" if is_empty else _counted(findings)
        say_wrapped(f"{subject}: {found}")
    raise typer.Exit(bool(findings))


def _counted(findings: Findings) -> str:
    """Return the number of findings, what was examined, and how to examine all."""
    rest = f"; --steps {findings.num_steps} checks all" if findings.num_checked < findings.num_steps else ""
    return f"{len(findings) or 'no'} finding{'s' * (len(findings) != 1)} in {findings.extent}{rest}"

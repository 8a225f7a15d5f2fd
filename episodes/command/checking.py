"""Command `episodes check`: finds damaged, missing and left-over files of a data set."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from episodes.command.opening import data_path_or_same
from episodes.command.printing import Json, print_json
from episodes.command.terminal import say


def check(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="The data set, or data of another format.")],
    repair: Annotated[
        bool, typer.Option("--repair", help="Keep readable episodes, and move damaged files aside.")
    ] = False,
    json: Json = False,
) -> None:
    """Read all files of a data set and report damage. The exit status is 1 for damage without `--repair`."""
    from episodes.storage import check as check_files

    if not repair:
        directory = data_path_or_same(directory)  # reads all of a foreign format
    report = check_files(directory, repair=repair)
    if json:
        print_json(asdict(report))
    else:
        say(f"{report.episodes} episodes in {report.shards} shards, {len(report.problems)} problems")
        for line in (*report.problems, *report.notes, *report.repaired):
            say(line)
    raise typer.Exit(bool(report.problems) and not repair)

"""Command `episodes card`: writes the README.md of a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from episodes.command.opening import local
from episodes.command.terminal import say


def card(
    directory: Annotated[Path, typer.Argument(metavar="DIR", parser=local, help="The data set.")],
    name: Annotated[str | None, typer.Option(help="The title; by default the name of DIR.")] = None,
    license: Annotated[str | None, typer.Option(help="License of the data, such as cc-by-4.0.")] = None,
    url: Annotated[
        str | None, typer.Option(help="Where it will be read from, such as hf://datasets/USER/NAME.")
    ] = None,
) -> None:
    """Write README.md: counts, spaces, a histogram of returns, how the data were made. Text of your own in it stays."""
    from episodes.inspect import write_card

    say(str(write_card(directory, name=name, license=license, url=url)))

"""`episodes keys`: keys for a receiver of episodes and for its senders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def keys(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where the folders of keys are made.")],
    sender: Annotated[str, typer.Option("--sender", help="A name; another one makes keys for one more.")] = "sender",
) -> None:
    """Make a folder of keys for a receiver, and one for a sender: copy each to where it is used."""
    from episodes.transport import make_keys

    for folder in make_keys(directory, sender=sender):
        typer.echo(str(folder))

"""Command `episodes keys`: creates the keys with which senders of episodes connect to a receiver."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def keys(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Parent of the new folders.")],
    sender: Annotated[str, typer.Option("--sender", help="Name of the sender; each name has its keys.")] = "sender",
) -> None:
    """Create a folder of keys for a receiver, and one for a sender. Copy each to its machine."""
    from episodes.transport import make_keys

    for folder in make_keys(directory, sender=sender):
        typer.echo(str(folder))

"""Command `episodes keys`: creates the keys with which senders of episodes authenticate to a receiver."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from episodes.command.opening import local
from episodes.command.terminal import say


def keys(
    directory: Annotated[Path, typer.Argument(metavar="DIR", parser=local, help="Parent of the new folders.")],
    sender: Annotated[str, typer.Option("--sender", help="Name of the sender; each name has its keys.")] = "sender",
) -> None:
    """Create two folders of keys, one for a receiver and one for a sender, to be copied to their machines."""
    from episodes.transport import make_keys

    for folder in make_keys(directory, sender=sender):
        say(str(folder))

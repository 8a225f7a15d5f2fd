"""The command line program `episodes` (`python -m episodes`): data sets, training and evaluation from a terminal."""

from __future__ import annotations

import io
import sys
import traceback

from episodes.command.terminal import say
from episodes.errors import install_advice

__all__: list[str] = []


def main() -> None:
    """Run the command line program. For wrong arguments, print one line to stderr and exit with status 2."""
    try:
        import typer  # noqa: F401
    except ImportError:
        say(f"episodes: the command needs typer; {install_advice('command')}", err=True)
        sys.exit(2)
    from episodes.command.app import app

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # letters that the terminal does not have become question marks
    try:
        app()
    except Exception:  # a defect, whose message may quote a data set
        say(traceback.format_exc(), err=True)
        sys.exit(1)

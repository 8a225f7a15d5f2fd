"""The `episodes` command, also `python -m episodes`: data sets checked, looked at and changed from a terminal."""

from __future__ import annotations

import io
import sys

from episodes.errors import EpisodeError

__all__ = ["main"]


def main() -> None:
    """Run the command line. What a user has done wrong is one line on stderr, and the exit status 1."""
    try:
        import typer  # noqa: F401
    except ImportError:
        sys.exit("episodes: the command needs typer; install the extra: pip install 'rl-episodes[command]'")
    from episodes.command.app import app

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a letter shows all the others
    try:
        app()
    except (EpisodeError, OSError) as error:
        sys.exit(f"episodes: {error}")

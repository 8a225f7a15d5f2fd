"""Commands that other packages add to `episodes` through entry points, such as `episodes train`.

A package declares a command in its pyproject.toml. The function receives the name of the command and its arguments, and
returns the exit status. It is imported when the command runs, and not for `episodes --help`:

    [project.entry-points."episodes.commands"]
    train = "episode_learners.__main__:main"
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from episodes import __version__
from episodes.command.terminal import say, say_wrapped
from episodes.errors import EpisodeError

GROUP = "episodes.commands"
USAGE_ERROR: Any = typer.BadParameter.__base__  # of click, which newer versions of typer contain
HELP = {
    "train": "Train a policy, or continue a run.",
    "evaluate": "Evaluate the policy of a run.",
    "play": "Record episodes of the policy of a run.",
    "export": "Write the policy of a run to an .onnx file.",
}


class Commands(TyperGroup):
    """Group of commands that includes those found in entry points.

    It prints an error as one line on stderr, in terminals with breaks between words, and the exit status is 2. Warnings
    are one line too.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        names = super().list_commands(ctx)
        return [*names, *sorted(_plugins().keys() - set(names))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is None and cmd_name in _plugins():
            return Plugin(_plugins()[cmd_name])
        return command

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with _errors_wrapped():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run a command. An error of this library or of the file system is printed in one line, with exit status 2.

        Raises:
            typer.Exit: after such an error.
        """
        with warnings.catch_warnings(), _errors_wrapped():
            warnings.showwarning = _print_warning
            return super().invoke(ctx)


@contextmanager
def _errors_wrapped() -> Iterator[None]:
    """Context manager that prints errors of the library, the file system and the command line without control
    characters, and with line breaks between words in terminals.

    Raises:
        typer.Exit: after such an error.
    """
    try:
        yield
    except (EpisodeError, OSError) as error:
        say_wrapped(f"episodes: {error}", err=True)
        raise typer.Exit(2) from error
    except USAGE_ERROR as error:  # the command line quotes an argument, such as the name of a folder
        written = io.StringIO()
        error.show(written)
        say_wrapped(written.getvalue().rstrip("\n"), err=True)
        raise typer.Exit(error.exit_code) from error


class Plugin(TyperCommand):
    """Command that passes all its arguments to the function of an entry point."""

    def __init__(self, entry: EntryPoint) -> None:
        self.entry = entry
        summary = HELP.get(entry.name, f"Command of {entry.value.partition(':')[0]}.")
        settings = {"ignore_unknown_options": True, "allow_extra_args": True}
        super().__init__(entry.name, help=summary, context_settings=settings, add_help_option=False)

    def invoke(self, ctx: Any) -> Any:
        raise typer.Exit(self.entry.load()([self.entry.name, *ctx.args]) or 0)


def _plugins() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def print_version(is_asked: bool) -> None:
    """Print the version of the package and exit, if `is_asked` is True. This is the callback of `--version`."""
    if is_asked:
        say(f"episodes {__version__}")
        raise typer.Exit(0)


def _print_warning(message: Warning | str, *_: object) -> None:
    say_wrapped(f"episodes: warning: {message}", err=True)

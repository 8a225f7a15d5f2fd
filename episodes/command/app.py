"""The command line application `episodes`. Commands import heavy modules only when they run."""

from __future__ import annotations

from typing import Annotated

import typer

from episodes.command import (
    capturing,
    card_command,
    checking,
    converting,
    diff_command,
    doctor_command,
    explain_command,
    inspect_commands,
    keys,
    ledgers,
    listing_command,
    plugins,
    rewrite_commands,
    runs_command,
    searching,
)

app = typer.Typer(
    cls=plugins.Commands,
    name="episodes",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: importing the pretty one takes as long as all else
)


@app.callback()
def _about(
    version: Annotated[
        bool, typer.Option("--version", callback=plugins.print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Check, inspect, change and convert data sets of episodes. Train and evaluate policies.

    The exit status is 0 if all is well, 1 if a check found something, and 2 if a command could not run.
    """


app.command("check")(checking.check)
app.command("doctor")(doctor_command.doctor)
app.command("compact")(rewrite_commands.compact)
app.command("seal")(rewrite_commands.seal)
app.command("merge")(rewrite_commands.merge)
app.command("copy")(rewrite_commands.copy)
app.command("card")(card_command.card)
app.command("upload")(rewrite_commands.upload)
app.command("convert")(converting.convert)
app.command("capture")(capturing.capture)
app.command("info")(inspect_commands.info)
app.command("ls")(listing_command.ls)
app.command("show")(inspect_commands.show)
app.command("record")(inspect_commands.record)
app.command("report")(inspect_commands.report)
app.command("watch")(inspect_commands.watch)
app.command("diff")(diff_command.diff)
app.command("explain")(explain_command.explain)
app.command("runs")(runs_command.runs)
app.command("sql")(searching.sql)
app.command("split")(searching.split)
app.command("keys")(keys.keys)
app.add_typer(ledgers.app, name="ledger")

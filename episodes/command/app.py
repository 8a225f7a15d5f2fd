"""The commands by name. Each subject is a module, whose functions import what they need when they run."""

from __future__ import annotations

import typer

from episodes.command import (
    checking,
    converting,
    doctor_command,
    inspect_commands,
    keys,
    ledgers,
    rewrite_commands,
    searching,
)

app = typer.Typer(name="episodes", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def _about() -> None:
    """Episodes on disk: check, look at, change and convert data sets."""


app.command("check")(checking.check)
app.command("doctor")(doctor_command.doctor)
app.command("compact")(rewrite_commands.compact)
app.command("seal")(rewrite_commands.seal)
app.command("merge")(rewrite_commands.merge)
app.command("copy")(rewrite_commands.copy)
app.command("upload")(rewrite_commands.upload)
app.command("convert")(converting.convert)
app.command("info")(inspect_commands.info)
app.command("ls")(inspect_commands.ls)
app.command("show")(inspect_commands.show)
app.command("record")(inspect_commands.record)
app.command("report")(inspect_commands.report)
app.command("watch")(inspect_commands.watch)
app.command("sql")(searching.sql)
app.command("split")(searching.split)
app.command("keys")(keys.keys)
app.add_typer(ledgers.app, name="ledger")

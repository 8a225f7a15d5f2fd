"""The commands by name. Each subject is a module, whose functions import what they need when they run."""

from __future__ import annotations

import typer

from episodes.command import changing, checking, converting, examining, keys, ledgers, looking, searching

app = typer.Typer(name="episodes", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def _about() -> None:
    """Episodes on disk: check, look at, change and convert data sets."""


app.command("check")(checking.check)
app.command("doctor")(examining.doctor)
app.command("compact")(changing.compact)
app.command("seal")(changing.seal)
app.command("merge")(changing.merge)
app.command("copy")(changing.copy)
app.command("upload")(changing.upload)
app.command("convert")(converting.convert)
app.command("info")(looking.info)
app.command("ls")(looking.ls)
app.command("show")(looking.show)
app.command("record")(looking.record)
app.command("report")(looking.report)
app.command("watch")(looking.watch)
app.command("sql")(searching.sql)
app.command("split")(searching.split)
app.command("keys")(keys.keys)
app.add_typer(ledgers.app, name="ledger")

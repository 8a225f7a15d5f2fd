"""Command `episodes explain`: prints the steps of a training update that contributed most to its loss."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from episodes.command.printing import Json, finite, print_json, print_table
from episodes.command.terminal import say


def explain(
    run: Annotated[Path, typer.Argument(help="The folder of a run of train --explain.")],
    update: Annotated[int, typer.Argument(help="Number of the update; by default the last one.")] = -1,
    module: Annotated[str | None, typer.Option(help="The module, if several learn.")] = None,
    by: Annotated[str, typer.Option(help="Sum up the steps by: episode, agent, time, turn or worker.")] = "",
    data: Annotated[Path | None, typer.Option(help="Data set with the episodes, to name the steps' rewards.")] = None,
    limit: Annotated[int, typer.Option(help="Most rows to print; 0 for all.", min=0)] = 20,
    html: Annotated[Path | None, typer.Option(help="Write a page to this file.")] = None,
    page: Annotated[str | None, typer.Option(help="Page of the episodes (report, watch), for links.")] = None,
    json: Json = False,
) -> None:
    """Print the steps that a training update learned from, sorted by their share of the loss."""
    from episodes.inspect.update_explanation import explain_update
    from episodes.inspect.update_measures import text_of

    explanation = explain_update(run, update, module=module, episodes=data)
    if html is not None:
        html.write_text(explanation.to_html(page), encoding="utf-8")
        say(f"{html}: {explanation!r}")
        return
    most = limit or len(explanation)
    if by:
        rows = explanation.by(by)[:most]
        if json:
            print_json(finite(rows))
        elif rows:
            print_table(list(rows[0]), [[text_of(name, value) for name, value in row.items()] for row in rows])
        return
    if json:
        columns = {name: finite(column[:most].tolist()) for name, column in explanation.columns.items()}
        print_json([dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)])
        return
    say(repr(explanation))
    print_table(*explanation.table(most))

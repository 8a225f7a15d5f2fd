"""`episodes sql | split`: episodes and steps found, and parts of a data set named."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import Annotated

import typer

from episodes.command.printing import finite, print_table, text
from episodes.errors import InvalidArgument

Directory = Annotated[str, typer.Argument(metavar="DIR", help="The data set; a URL, if it is elsewhere.")]


def sql(
    directory: Directory,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A SELECT over the tables steps and episodes.")],
    decode: Annotated[bool, typer.Option("--decode", help="Read compressed tracks too, all of them.")] = False,
    save: Annotated[
        Path | None, typer.Option(help="Write what was found to this file: EpisodeDataset.load_selection.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """What a query finds, by DuckDB."""
    from episodes.storage import EpisodeDataset

    found = EpisodeDataset(directory).sql(query, decode=decode)
    if save is not None:
        found.save(save)
    rows = found.table.to_pylist()
    if json:
        told = [{name: finite(value) for name, value in row.items()} for row in rows]
        typer.echo(json_text.dumps(told, default=str))
        return
    print_table(found.table.column_names, [[text(value) for value in row.values()] for row in rows])


def split(
    directory: Directory,
    shares: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME=SHARE]...", help="For example train=0.8 test=0.2.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Which episodes, their ids and this say.")] = 0,
) -> None:
    """Name parts of a data set, which are kept with it; without names, list those there are."""
    from episodes.storage import EpisodeDataset

    dataset = EpisodeDataset(directory)
    if shares:
        told = list(map(_share, shares))
        if len(told) > len(dict(told)):
            raise InvalidArgument(f"{' '.join(shares)}: a name is there twice")
        dataset.add_splits(dict(told), seed=seed)
    rows = [
        (name, f"{len(part)} episodes", f"{part.num_steps} steps")
        for name in dataset.splits
        for part in (dataset.split(name),)
    ]
    print_table(("", "", ""), rows)


def _share(told: str) -> tuple[str, float]:
    name, _, share = told.partition("=")
    try:
        return name, float(share)
    except ValueError:
        raise InvalidArgument(f"{told!r}: give NAME=SHARE, such as test=0.2") from None

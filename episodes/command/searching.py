"""Commands that query a data set by SQL (`episodes sql`) or split it (`episodes split`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from episodes.command.opening import data_path, local
from episodes.command.printing import Directory, Json, finite, print_json, print_table, text
from episodes.errors import InvalidArgument


def sql(
    directory: Directory,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A SELECT over the tables steps and episodes.")],
    decode: Annotated[bool, typer.Option("--decode", help="Read compressed tracks too.")] = False,
    save: Annotated[
        Path | None,
        typer.Option(parser=local, help="Write the result to this file, for EpisodeDataset.load_selection."),
    ] = None,
    json: Json = False,
) -> None:
    """Run an SQL query on a data set with DuckDB, and print the result."""
    from episodes.storage import EpisodeDataset

    result = EpisodeDataset(data_path(directory)).sql(query, decode=decode)
    if save is not None:
        result.save(save)
    rows = result.table.to_pylist()
    if json:
        print_json(finite(rows))
        return
    print_table(result.table.column_names, [[text(value) for value in row.values()] for row in rows])


def split(
    directory: Directory,
    shares: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME=SHARE]...", help="For example train=0.8 test=0.2.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed that assigns ids to splits.")] = 0,
) -> None:
    """Divide a data set into named splits, such as train and test. Without names, list the existing splits."""
    from episodes.storage import EpisodeDataset

    dataset = EpisodeDataset(directory)
    if shares:
        pairs = list(map(_share, shares))
        if len(pairs) > len(dict(pairs)):
            raise InvalidArgument(f"{' '.join(shares)}: a name occurs twice")
        dataset.add_splits(dict(pairs), seed=seed)
    rows = [
        (name, f"{len(part)} episodes", f"{part.num_steps} steps")
        for name in dataset.splits
        for part in (dataset.split(name),)
    ]
    print_table(("", "", ""), rows)


def _share(pair: str) -> tuple[str, float]:
    """Return name and share from a text such as "test=0.2". Raise `InvalidArgument` if the share is not a number."""
    name, _, share = pair.partition("=")
    try:
        return name, float(share)
    except ValueError:
        raise InvalidArgument(f"{pair!r}: give NAME=SHARE, such as test=0.2") from None

"""Commands that rewrite or copy data sets: `episodes compact`, `seal`, `merge`, `copy` and `upload`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from episodes.command.opening import data_path, local
from episodes.command.terminal import say

Directory = Annotated[Path, typer.Argument(metavar="DIR", parser=local, help="The data set.")]


def compact(directory: Directory) -> None:
    """Merge many small shard files of a data set into few. Other processes may read and write meanwhile."""
    from episodes import storage

    say(f"{storage.compact(directory)} shards joined")


def seal(
    directory: Directory,
    force: Annotated[bool, typer.Option("--force", help="Also if their writers may still run.")] = False,
) -> None:
    """Complete the shard files that writers left unfinished when they were killed."""
    from episodes import storage

    say(f"{storage.seal(directory, force=force)} shards finished")


def merge(
    target: Annotated[
        Path,
        typer.Argument(metavar="TARGET", parser=local, help="The data set to add to, created if it does not exist."),
    ],
    sources: Annotated[
        list[str], typer.Argument(metavar="SOURCE...", help="Data to read, of any format; it is not changed.")
    ],
    prefix: Annotated[
        list[str] | None,
        typer.Option(help="Text in front of all copied ids: one for all sources, or one for each."),
    ] = None,
) -> None:
    """Append the episodes of several data sets to the data set `target`."""
    from episodes import storage

    one_for_all = prefix[0] if prefix and len(prefix) == 1 else prefix
    say(f"{storage.merge(target, *map(data_path, sources), prefix=one_for_all or None)} shards copied")


def copy(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A path of any format, or a URL such as s3://bucket/data.")
    ],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A new directory or URL.")],
    where: Annotated[str | None, typer.Option(help="For example 'return > 100 and not truncated'.")] = None,
) -> None:
    """Copy those episodes that satisfy the condition `where` to a new data set."""
    from episodes import storage

    say(f"{storage.copy(data_path(source), target, where)} episodes copied")


def upload(
    source: Directory,
    target: Annotated[str, typer.Argument(metavar="URL", help="Such as s3://bucket/data.")],
) -> None:
    """Upload those shard files that the remote data set lacks. An interrupted upload can be repeated."""
    from episodes import storage

    say(f"{storage.upload(source, target)} shards sent")

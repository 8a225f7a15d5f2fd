"""`episodes compact | seal | merge | copy`: data sets made anew."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The data set.")]


def compact(directory: Directory) -> None:
    """Join many small shards and record batches into few. Writers and readers may be at work."""
    from episodes import storage

    typer.echo(f"{storage.compact(directory)} shards joined")


def seal(
    directory: Directory,
    force: Annotated[bool, typer.Option("--force", help="Though their writers may be at work.")] = False,
) -> None:
    """Finish the shards that killed writers left."""
    from episodes import storage

    typer.echo(f"{storage.seal(directory, force=force)} shards finished")


def merge(
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="The data set that they go to; made if need be.")],
    sources: Annotated[list[Path], typer.Argument(metavar="SOURCE...", help="Those that stay as they are.")],
) -> None:
    """Put the episodes of other data sets into one."""
    from episodes import storage

    typer.echo(f"{storage.merge(target, *sources)} shards copied")


def copy(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A directory, or a URL such as s3://bucket/data.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Where there is nothing yet; likewise.")],
    where: Annotated[str | None, typer.Option(help="For example 'return > 100 and not truncated'.")] = None,
) -> None:
    """Write the episodes for which a condition holds to a new data set."""
    from episodes import storage

    typer.echo(f"{storage.copy(source, target, where)} episodes copied")


def upload(
    source: Directory,
    target: Annotated[str, typer.Argument(metavar="URL", help="Such as s3://bucket/data.")],
) -> None:
    """Send what a data set elsewhere has not; one that was killed is just run again."""
    from episodes import storage

    typer.echo(f"{storage.upload(source, target)} shards sent")

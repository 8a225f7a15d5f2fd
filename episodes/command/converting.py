"""Command `episodes convert`: converts data sets between formats such as Minari, LeRobot and Parquet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

import typer

from episodes.command.printing import Json, print_json
from episodes.command.progress import counted
from episodes.command.terminal import say, say_wrapped
from episodes.command.track_tables import TrackRow, print_tracks
from episodes.errors import InvalidArgument


def convert(
    source: Annotated[str, typer.Argument(metavar="IN", help="A path; with --from minari, also an id.")],
    target: Annotated[str, typer.Argument(metavar="OUT", help="A new path; with --to minari, an id.")],
    to: Annotated[str, typer.Option("--to", help="episodes, lerobot, minari, parquet or rllib.")] = "episodes",
    from_: Annotated[str, typer.Option("--from", help="The format of IN; detected by default.")] = "",
    prefix: Annotated[str | None, typer.Option(help="First part of the episodes' ids: PREFIX/ID.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Write nothing if information would be lost.")] = False,
    fps: Annotated[int | None, typer.Option(help="lerobot: steps per second; 30 by default.")] = None,
    task: Annotated[str | None, typer.Option(help="lerobot: the task as text.")] = None,
    videos: Annotated[bool | None, typer.Option("--videos/--no-videos", help="lerobot: images as videos.")] = None,
    lossless: Annotated[bool | None, typer.Option("--lossless", help="lerobot: videos without loss.")] = None,
    episode: Annotated[str | None, typer.Option(help="Tables: the column with the episode of each row.")] = None,
    t: Annotated[str | None, typer.Option("--t", help="Tables: the column of times.")] = None,
    observation: Annotated[str | None, typer.Option(help='Tables: columns, such as "x,y" or "obs_*".')] = None,
    action: Annotated[str | None, typer.Option(help="Tables: columns of actions.")] = None,
    reward: Annotated[str | None, typer.Option(help="Tables: the column of rewards.")] = None,
    terminated: Annotated[str | None, typer.Option(help="Tables: the column of terminations.")] = None,
    truncated: Annotated[str | None, typer.Option(help="Tables: the column of truncations.")] = None,
    next_observation: Annotated[str | None, typer.Option(help="Tables: columns of next observations.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing, and show the first episode.")] = False,
    json: Json = False,
) -> None:
    """Convert a data set to another format, and report what information was lost.

    IN is not changed, and OUT appears once it is complete. Run a killed conversion again. Columns of tables (CSV, lines
    of JSON, Parquet) that are not named are recognized by usual names, and the mapping is printed.
    """
    from episodes import converters
    from episodes.converters.formats import count_episodes, recognize
    from episodes.converters.tables import columns_of_file

    of_lerobot = {"fps": fps, "task": task, "videos": videos, "lossless": lossless}
    options = {name: value for name, value in of_lerobot.items() if value is not None}
    if options and to != "lerobot":
        raise InvalidArgument(f"--{next(iter(options))}: --to {to} has no such option")
    named = {"episode": episode, "t": t, "observation": observation, "action": action, "reward": reward}
    named |= {"terminated": terminated, "truncated": truncated, "next_observation": next_observation}
    columns = {name: value for name, value in named.items() if value is not None}
    episodes, lost = converters.read(source, from_ or None, prefix=prefix, **columns)
    if recognize(source, from_ or None, *columns).name == "table":
        say_wrapped(columns_of_file(source, **columns), err=True)
    if dry_run:
        _show_first(episodes)
        say(lost)
        return
    with counted(episodes, lambda: count_episodes(source, from_ or None, *columns)) as given:
        report = converters.write(given, target, to, strict=strict, **options)
    report.join(lost)
    if json:
        losses = [asdict(loss) for loss in report]
        print_json({"episodes": given.num, "steps": given.steps, "losses": losses})
        return
    say(f"{target}: {given.num} episodes, {given.steps} steps")
    say(report)


def _show_first(episodes: Iterator[Any]) -> None:
    """Print the first episode, and shapes, dtypes and ranges of its arrays."""
    from episodes.command.inspect_commands import in_a_line
    from episodes.inspect.series import of_tracks

    first = next(episodes, None)
    if first is None:
        say("no episodes")
        return
    say(in_a_line(first))
    print_tracks([TrackRow(one.label, str(one.shape), one) for one in of_tracks(first.to_numpy().tracks)])

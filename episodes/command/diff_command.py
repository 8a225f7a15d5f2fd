"""Command `episodes diff`: prints the first difference between two episodes, data sets or training runs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from episodes.command.opening import data_path_or_same
from episodes.command.printing import Json, print_json
from episodes.command.terminal import say
from episodes.errors import InvalidArgument

SHOWN = 5  # differing episodes that are printed

Source = Annotated[Path, typer.Argument(help="Data as in convert, or the folder of a run.")]


def diff(
    a: Source,
    b: Source,
    episode: Annotated[
        list[str] | None,
        typer.Option("--episode", help="Compare this episode (id or index) of both; give two for one of each."),
    ] = None,
    tolerance: Annotated[float, typer.Option(min=0.0, help="Largest difference of equal numbers.")] = 0.0,
    json: Json = False,
) -> None:
    """Compare two data sets, two episodes or two training runs step by step. The exit status is 1 if they differ.

    Data sets pair episodes with the same id, or else with the same index. Runs compare their ledgers, or else the
    episodes that `episodes play` has recorded.
    """
    from episodes.storage.ledger import difference
    from episodes.storage.ledger.ledger_reader import LedgerReader

    sources = [_source(path) for path in (a, b)]
    if any(isinstance(source, LedgerReader) for source in sources):
        if not all(isinstance(source, LedgerReader) for source in sources):
            raise InvalidArgument(f"{a} and {b}: one has a ledger, the other one is a data set; give two of a kind")
        first = difference(*sources)
        if json:
            print_json(None if first is None else asdict(first))
        else:
            say(str(first or "no difference"))
        raise typer.Exit(first is not None)
    _compare(sources, episode or [], tolerance, json)


def _source(path: Path) -> Any:
    """Open a path as a data set, or as the ledger (log of learned steps) or recorded episodes of a training run.

    Raises:
        InvalidArgument: the path is none of these.
    """
    from episodes.storage import EpisodeDataset
    from episodes.storage.header import NAME
    from episodes.storage.ledger.ledger_reader import LedgerReader

    path = Path(data_path_or_same(path))
    if (path / NAME).exists():
        return EpisodeDataset(path)
    try:
        return LedgerReader(path)
    except (OSError, ValueError) as error:
        if (path / "episodes" / NAME).exists():
            return EpisodeDataset(path / "episodes")
        raise InvalidArgument(
            f"{path}: neither a data set nor a run with a ledger (episodes train --ledger) or recorded episodes "
            "(episodes play)"
        ) from error


def _compare(sources: list[Any], chosen: list[str], tolerance: float, json: bool) -> None:
    """Print the differences between two data sets, or between one episode of each, and exit with status 1 if they
    differ.

    Args:
        chosen: id or index of the episode to compare, one text for both data sets or one for each. Empty to compare
            all.

    Raises:
        InvalidArgument: `chosen` has more than two items.
        typer.Exit: always, with the exit status.
    """
    from episodes.command.inspect_commands import index_of_episode
    from episodes.inspect.comparison import compare_data_sets, compare_episodes

    if len(chosen) > 2:
        raise InvalidArgument(f"--episode is given {len(chosen)} times; give one, or one for A and one for B")
    if chosen:
        pair = [data[index_of_episode(data, text)] for data, text in zip(sources, (chosen * 2)[:2], strict=True)]
        found = compare_episodes(*pair, tolerance=tolerance)
        num, differences = 1, [found] if found else []
    else:
        num, differences = compare_data_sets(*sources, tolerance=tolerance)
    if json:
        print_json({"episodes": num, "differences": list(map(_as_dict, differences))})
    else:
        say(f"{num - len(differences)} of {num} episodes are equal")
        for difference in differences[:SHOWN]:
            say(str(difference))
        if len(differences) > SHOWN:
            say(f"and {len(differences) - SHOWN} more")
    raise typer.Exit(bool(differences))


def _as_dict(difference: Any) -> dict[str, Any]:
    """Return a difference between two episodes as JSON values."""
    ids = {name: getattr(getattr(difference, name), "id_", None) for name in ("a", "b")}
    return {**ids, "facts": difference.facts, "tracks": list(map(asdict, difference.tracks))}

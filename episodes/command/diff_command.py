"""Command `episodes diff`: prints the first difference between two episodes, data sets or training runs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from episodes.command.opening import data_path_or_same
from episodes.command.printing import Json, alike, finite, print_json, print_table
from episodes.command.terminal import say_wrapped
from episodes.errors import InvalidArgument

if TYPE_CHECKING:
    from episodes.inspect.comparison import EpisodeDifference
    from episodes.storage import EpisodeDataset

SHOWN = 5  # differing episodes that are printed
MOST_NAMES = 2  # of a line on several episodes

Source = Annotated[str, typer.Argument(help="Data as in convert, or the folder of a run.")]


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

    Data sets pair episodes with the same id, or else with the same index. For runs, it prints which had the better
    test and the settings that differ, and then the first difference of their ledgers, or else of the episodes that
    `episodes play` has recorded, if both have them.
    """
    from episodes.inspect.comparison import checked_tolerance
    from episodes.storage.runs import is_run

    checked_tolerance(tolerance)
    places = [data_path_or_same(given) for given in (a, b)]
    first, second = map(Path, places)
    if is_run(first) and is_run(second) and not episode:
        _compare_runs(first, second, tolerance, json)
    result = _compare(list(map(_source, places)), [a, b], episode or [], tolerance, in_full=json)
    if json:
        print_json(result.facts)
    else:
        result.print()
    raise typer.Exit(result.differs)


class _Result(NamedTuple):
    """Result of a comparison: whether anything differs, the lines and the tables to print, and the same as JSON values.

    `tracks` are rows on all episodes: (track, episodes, steps, values, largest difference, its episode and step).
    `rows` are (episode, track, first step, item of A, item of B, number of steps, size).
    """

    differs: bool
    lines: list[str]
    facts: Any
    rows: list[list[str]] = []
    tracks: list[list[str]] = []
    more: str = ""

    def print(self) -> None:
        """Print the lines, such as that the tracks are not the same, and then the tables."""
        for line in self.lines:
            say_wrapped(line)
        if self.tracks:
            print_table(("track", "episodes", "steps", "values", "largest |A-B|", "in episode", "at step"), self.tracks)
            say_wrapped(f"\n{self.more}" if self.more else "")
        if self.rows:
            names = ("episode", "differs in", "first at", "A", "B", "steps that differ", "size")
            print_table(names, self.rows, folded=1)


def _compare_runs(a: Path, b: Path, tolerance: float, json: bool) -> None:
    """Print a comparison of two training runs, and exit with status 1 if settings, results, ledgers or recorded
    episodes differ.

    Raises:
        typer.Exit: always, with the exit status.
    """
    from episodes.command.runs_command import comparison, print_comparison
    from episodes.storage.runs import StoredRun

    runs = StoredRun.read(a), StoredRun.read(b)
    parts = _common_parts(a, b)
    steps = _compare(list(parts), [str(a), str(b)], [], tolerance, in_full=json) if parts else None
    facts = comparison(*runs)
    if json:
        print_json({**facts, "steps": steps.facts if steps else None})
    else:
        print_comparison(*runs)
        if steps:
            steps.print()
        else:
            say_wrapped("steps were not compared: the runs do not both have a ledger or episodes")
    raise typer.Exit(bool(facts["differs"] or (steps and steps.differs)))


def _common_parts(a: Path, b: Path) -> tuple[Any, Any] | None:
    """Return the ledgers of two runs, or else their recorded episodes. Return None if they do not both have them."""
    from episodes.storage import EpisodeDataset
    from episodes.storage.header import is_data_set
    from episodes.storage.ledger.ledger_reader import LedgerReader

    if all((path / "ledger").is_dir() for path in (a, b)):
        return LedgerReader(a), LedgerReader(b)
    if all(is_data_set(path / "episodes") for path in (a, b)):
        return EpisodeDataset(a / "episodes"), EpisodeDataset(b / "episodes")
    return None


def _source(place: str) -> Any:
    """Open a path or URL as a data set, or as the ledger (log of learned steps) or recorded episodes of a training run.

    Raises:
        InvalidArgument: the path is none of these.
    """
    from episodes.storage import EpisodeDataset
    from episodes.storage.header import is_data_set
    from episodes.storage.ledger.ledger_reader import LedgerReader
    from episodes.storage.remote.remote_directory import is_remote

    path = Path(place)
    if is_remote(place) or is_data_set(path):
        return EpisodeDataset(place)
    try:
        return LedgerReader(path)
    except (OSError, ValueError) as error:
        if is_data_set(path / "episodes"):
            return EpisodeDataset(path / "episodes")
        raise InvalidArgument(
            f"{path}: neither a data set nor a run with a ledger (episodes train --ledger) or recorded episodes "
            "(episodes play); give two data sets, or two folders of runs"
        ) from error


def _compare(
    sources: list[Any], paths: list[str], chosen: list[str], tolerance: float, in_full: bool = False
) -> _Result:
    """Return the differences between two ledgers, two data sets, or one episode of each data set.

    Args:
        sources: the ledgers or data sets.
        paths: where they are, for errors.
        chosen: id or index of the episode to compare, one text for both data sets or one for each. Empty to compare
            all.
        tolerance: largest difference of equal numbers.
        in_full: compare all episodes even if the data sets have nothing in common.

    Raises:
        InvalidArgument: `chosen` has more than two items, or there are one ledger and one data set.
    """
    from episodes.command.choosing import position_of_episode
    from episodes.inspect.comparison import compare_data_sets, compare_episodes, paired
    from episodes.inspect.formatting import counted
    from episodes.storage.ledger import difference
    from episodes.storage.ledger.ledger_reader import LedgerReader

    are_ledgers = [isinstance(source, LedgerReader) for source in sources]
    if any(are_ledgers):
        if not all(are_ledgers):
            a, b = paths
            raise InvalidArgument(f"{a} and {b}: one has a ledger, the other one is a data set; give two of a kind")
        if tolerance:
            raise InvalidArgument(f"--tolerance {tolerance}: rows of ledgers are compared exactly; leave it out")
        first = difference(*sources)
        return _Result(first is not None, [str(first or "no difference")], None if first is None else asdict(first))
    if len(chosen) > 2:
        raise InvalidArgument(f"--episode is given {len(chosen)} times; give one, or one for A and one for B")
    pairing = []
    if chosen:
        pair = [data[position_of_episode(data, text)] for data, text in zip(sources, (chosen * 2)[:2], strict=True)]
        found = compare_episodes(*pair, tolerance=tolerance)
        num, differences = 1, [found] if found else []
    else:
        sizes, (_, is_by_id) = list(map(len, sources)), paired(*sources)
        unlike = [] if is_by_id or in_full else _unlike(*sources)
        if unlike:
            return _Result(
                True, [f"A has {counted(sizes[0], 'episode')}, B has {sizes[1]:,}; no id is in both", *unlike], None
            )
        num, differences = compare_data_sets(*sources, tolerance=tolerance)
        if not is_by_id or sizes[0] != sizes[1]:
            how = "id" if is_by_id else "position, because no id is in both"
            pairing = [f"A has {counted(sizes[0], 'episode')}, B has {sizes[1]:,}; paired by {how}"]
    empty = [place for place, data in zip(paths, sources, strict=True) if not len(data)]
    pairing = [f"{place}: no episodes; give a data set with some" for place in dict.fromkeys(empty)] or pairing
    lines = [*pairing, f"{num - len(differences):,} of {num:,} episodes are equal", *_lines(differences)]
    in_tracks = [each for each in differences if each.tracks]
    more = f"the first {SHOWN} of {len(in_tracks):,} episodes whose tracks differ; --json has all of them:"
    return _Result(
        bool(differences),
        lines,
        {"episodes": num, "differences": list(map(_as_dict, differences))},
        [row for each in in_tracks[:SHOWN] for row in _rows(each)],
        _by_track(in_tracks) if len(in_tracks) > 1 else [],
        more if len(in_tracks) > SHOWN else "",
    )


def _unlike(a: EpisodeDataset, b: EpisodeDataset) -> list[str]:
    """Return lines that tell that no observation and no action of two data sets can be compared, [] if one can."""
    lines = []
    for part in ("observations", "actions"):
        shapes = [
            {
                path: (tuple(field.shape), field.dtype)
                for path, field in data.stored_header.tracks.items()
                if path.split("/")[0] == part
            }
            for data in (a, b)
        ]
        if not all(shapes) or any(shapes[0][path][0] == shapes[1][path][0] for path in shapes[0].keys() & shapes[1]):
            return []
        lines.append(f"{part}: {' in A, '.join(map(_tracks_text, shapes))} in B")
    return [
        *lines,
        "the data sets have nothing in common, so no steps were compared; two --episode compare one of each",
    ]


def _tracks_text(shapes: dict[str, tuple[tuple[int, ...], Any]]) -> str:
    """Return the tracks of one part of the data, with their shapes and dtypes, as short text."""
    import numpy as np

    from episodes.inspect.formatting import clipped
    from episodes.tracks.ragged import LENGTH

    texts = []
    for path, (shape, dtype) in shapes.items():
        lengths = ", ".join("ragged" if length == LENGTH else str(length) for length in shape)
        texts.append(f"{path.partition('/')[2]} [{lengths}] {np.dtype(dtype)}".strip())
    rest = f", and {len(texts) - MOST_NAMES} more" if len(texts) > MOST_NAMES else ""
    return clipped(", ".join(texts[:MOST_NAMES])) + rest


def _by_track(differences: list[EpisodeDifference]) -> list[list[str]]:
    """Return a row for each track that differs: numbers of episodes, steps and values, the largest difference."""
    found: dict[str, list[tuple[EpisodeDifference, Any]]] = {}
    for difference in differences:
        for track in difference.tracks:
            found.setdefault(track.track, []).append((difference, track))
    rows, sizes = [], []
    for name, each in found.items():
        at, largest = max(each, key=lambda pair: -1.0 if pair[1].largest is None else pair[1].largest)
        counts = (len(each), sum(track.num_steps for _, track in each), sum(track.num_values for _, track in each))
        is_known = largest.largest is not None
        rows.append([name, *(f"{count:,}" for count in counts), _names(at), str(largest.largest_step)])
        rows[-1][-2:] = rows[-1][-2:] if is_known else ["", ""]
        sizes.append(largest.largest)
    return [[*row[:4], size, *row[4:]] for row, size in zip(rows, alike(sizes), strict=True)]


def _rows(difference: EpisodeDifference) -> list[list[str]]:
    """Return the rows of a table on the tracks that differ between two episodes."""
    rows = [
        ["", each.track, str(each.step), each.a, each.b, f"{each.num_steps:,}", each.size_text]
        for each in difference.tracks
    ]
    if rows:
        rows[0][0] = _names(difference)
    return rows


def _lines(differences: list[EpisodeDifference]) -> list[str]:
    """Return a line for each thing that differs besides the items of tracks, with the episodes."""
    episodes: dict[str, list[EpisodeDifference]] = {}
    for difference in differences:
        is_alone = difference.a is None or difference.b is None
        for fact in [f"only in {'B' if difference.a is None else 'A'}"] if is_alone else difference.facts:
            episodes.setdefault(fact, []).append(difference)
    lines = []
    for fact, found in episodes.items():
        is_few = len(found) <= MOST_NAMES
        names = ", ".join(map(_names, found)) if is_few else f"{len(found):,} episodes, such as {_names(found[0])}"
        lines.append(f"{names}: {fact}")
    return lines


def _names(difference: EpisodeDifference) -> str:
    """Return the short ids of two episodes that differ."""
    from episodes.inspect.formatting import shortened

    return " and ".join(map(shortened, difference.ids))


def _as_dict(difference: EpisodeDifference) -> dict[str, Any]:
    """Return a difference between two episodes as JSON values."""
    ids = {name: getattr(getattr(difference, name), "id_", None) for name in ("a", "b")}
    return {**ids, "facts": difference.facts, "tracks": finite(list(map(asdict, difference.tracks)))}

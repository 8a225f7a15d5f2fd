"""Tables of `episodes info` and `show`: the numbers of tracks, and the returns and lengths of a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from episodes.command.printing import alike, finite, print_table
from episodes.command.terminal import say_wrapped

if TYPE_CHECKING:
    import numpy as np

    from episodes.inspect.series import Series
    from episodes.storage import EpisodeDataset, GameDataset

MOST_PARTS = 8  # numbers of an item that have a row each
MOST_OF_NOTES = 400  # characters
MOST_OF_TEXT = 40  # characters of the first text of a track
NO_MEAN = "\u2013"
MEASURES = ("min", "mean", "max", "std")


class TrackRow(NamedTuple):
    """Track in a table: name, shape as text, items, and notes on numbers that are wrong."""

    name: str
    shape: str
    series: Series
    defects: str = ""


def print_tracks(tracks: Sequence[TrackRow]) -> None:
    """Print a table of the shape, dtype, minimum, mean and maximum of each track, with its space, defects and notes.

    The components of items of at most 8 numbers have rows of their own, and the row of the track no mean. Of larger
    items, the mean is that of all numbers. Choices of more than two values, such as token ids, have none. A line below
    tells what a dash in place of a mean means. Ragged items have rows of their lengths, or of what is known of each
    item. Of texts, the number of different ones and the first one are noted.
    """
    from episodes.inspect.formatting import clipped

    rows, reasons = [], {}
    for name, shape, series, defects in tracks:
        notes = [note for note in series.remarks if note != series.ragged_remark]
        notes += _texts_of(series)
        details = [series.space_text, defects, clipped(", ".join(notes), MOST_OF_NOTES)]
        names, numbers = _numbers_of(series)
        columns = list(map(alike, zip(*numbers, strict=True))) if numbers else []
        own = [list(row) for row in zip(*columns, strict=True)]
        for row, (low, mean, _) in zip(own, numbers, strict=True):
            if low is not None and mean is None:
                row[1] = NO_MEAN
                reasons[series.is_id] = "choices have none" if series.is_id else "each component has its own, below"
        for k, (part, row) in enumerate(zip(names, own, strict=True)):
            rows.append(
                [f"  {part}", "", "", *row, "", "", ""] if k else [clipped(name), shape, series.dtype, *row, *details]
            )
    heads = ["track", "shape", "dtype", *MEASURES[:3], "space", "defects", "notes"]
    num = 6
    kept = [k for k in range(len(heads)) if k < num or any(row[k] for row in rows)]
    print_table(
        [heads[k] for k in kept], [[row[k] for k in kept] for row in rows], folded=len(kept) - num, defects="defects"
    )
    if reasons:
        say_wrapped(f"{NO_MEAN} as mean: {'; '.join(reasons[is_id] for is_id in sorted(reasons))}")


def _texts_of(series: Series) -> list[str]:
    """Return the number of different texts of a track with texts, and the first one, as a note."""
    import numpy as np

    from episodes.inspect.formatting import clipped, counted

    if series.ragged is not None or series.array.dtype.kind not in "US" or not series.array.size:
        return []
    texts = series.array if series.present is None else series.array[series.present]
    if not texts.size:
        return []
    num = counted(len(np.unique(texts)), "different text").replace("1 different text", "1 text")
    return [f"{num}, first '{clipped(str(texts.ravel()[0]), MOST_OF_TEXT)}'"]


def _numbers_of(series: Series) -> tuple[list[str], list[list[float | None]]]:
    """Return the names of the rows of a track, the first of which is that of the track, and minimum, mean and maximum
    of each. None: the track has no such number.
    """
    if not series.is_numeric:
        return [""], [[None] * 3]
    low, mean, high = map(float, series.range)
    if series.ragged is not None and len(series.part_names) == 1:
        return ["", "length"], [[None] * 3, [low, mean, high]]
    if series.has_common_mean or len(series.part_names) > MOST_PARTS:
        return [""], [[low, None if series.is_id else mean, high]]
    names = [f"{name} of each" if series.ragged is not None else name for name in series.component_names]
    parts = [[low, None if series.is_id else mean, high] for low, mean, high in series.ranges.T.tolist()]
    return ["", *names], [[low, None, high], *parts]


def measured(dataset: EpisodeDataset | GameDataset) -> dict[str, np.ndarray]:
    """Return returns and lengths of the episodes in a data set, of the complete ones if chunks make these others, and
    of the games if there are any. Each is an array [n] by its name.
    """
    import numpy as np

    from episodes.storage import GameDataset

    table = dataset.metadata
    if isinstance(dataset, GameDataset):
        found = {"return of a game": table["return"], "env steps of a game": table["length"]}
        kinds = [kind.metadata for kind in dataset.kinds]
        for name in ("return", "length"):
            found[f"{name} of an agent's episode"] = np.concatenate([each[name] for each in kinds] or [np.zeros(0)])
        return found
    games = _numbers_of_games(table["multi_agent_episode_id"].tolist())
    of_episode = " of an agent's episode" if len(games) else ""
    found = {f"return{of_episode}": table["return"], f"length{of_episode}": table["length"]}
    if len(games):
        found = {"return of a game": np.bincount(games[games >= 0], table["return"][games >= 0]), **found}
    is_whole = table["is_complete"] & (table["terminated"] | table["truncated"])
    whole = table["episode_return"][is_whole]
    if len(whole) and not np.array_equal(whole, table["return"], equal_nan=True):
        found["return of a complete episode"] = whole
    return found


def _numbers_of_games(ids: Sequence[object]) -> np.ndarray:
    """Return the number of the game of each episode, -1 for none, int64 [n]; empty if no episode is of a game."""
    import numpy as np

    numbers = {id_: n for n, id_ in enumerate(dict.fromkeys(id_ for id_ in ids if id_ is not None))}
    return np.array([-1 if id_ is None else numbers[id_] for id_ in ids] if numbers else [], np.int64)


def summarized(arrays: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """Return minimum, mean, maximum and standard deviation of the finite numbers of each array, and counts of all and
    of the finite numbers. They are None without finite numbers.
    """
    import numpy as np

    from episodes.inspect.series import mean_of
    from episodes.storage.search.statistics import without_rounding

    facts = {}
    for name, values in arrays.items():
        numbers = np.asarray(values, np.float64)
        numbers = numbers[np.isfinite(numbers)]
        with np.errstate(over="ignore", invalid="ignore"):
            found = [None] * 4
            if len(numbers):
                low, high = numbers.min(), numbers.max()
                found = [low, mean_of(numbers), high, without_rounding(numbers.std(), low, high)]
        measures = [None if each is None else finite(float(each)) for each in found]
        facts[name] = dict(zip(MEASURES, measures, strict=True)) | {"count": len(values), "finite": len(numbers)}
    return facts


def print_measures(facts: Mapping[str, Mapping[str, Any]]) -> None:
    """Print a table of the result of `summarized`."""
    notes = []
    for each in facts.values():
        odd = each["count"] - each["finite"]
        notes.append(f"{odd:,} of {each['count']:,} are not finite and left out" if odd else "")
    columns = [list(facts), *(alike([each[measure] for each in facts.values()]) for measure in MEASURES)]
    has_notes = any(notes)
    columns += [notes] * has_notes
    print_table(
        ["", *MEASURES, *["notes"] * has_notes], list(zip(*columns, strict=True)), folded=has_notes, defects="notes"
    )

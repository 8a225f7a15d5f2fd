"""The page of a data set: all episodes in one file, which asks for nothing outside of itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from markupsafe import Markup

from episodes.facts.ending import Ending
from episodes.inspect.formatting import clipped, counted, ended, number
from episodes.inspect.frames import viewable
from episodes.inspect.html import templates
from episodes.inspect.png import data_uri, png
from episodes.inspect.series import Series, of_tracks
from episodes.storage import EpisodeDataset

MOST_BYTES = 24_000_000  # of the episodes that a page carries; the others are only listed
MOST_CELLS = 2000  # of a line
FEWEST_CELLS = 100
MOST_NUMBERS = 200_000  # of all lines of an episode
MOST_LANES = 1000  # of an episode
MOST_FRAMES = 400
MOST_OF_ID = 200  # characters
FRAME_SIDE = 160  # pixels
BYTES_OF_FRAMES = 3_000_000  # of one episode

Progress = Callable[[int], None]


def write_report(dataset: EpisodeDataset, file: str | Path, progress: Progress | None = None) -> Path:
    """Write the page of a data set; gives its path.

    Args:
        progress: called with the number of episodes that are in the page so far.
    """
    carried: list[str] = []
    room = MOST_BYTES
    for n, episode in enumerate(dataset):
        text = as_script(episode_data(episode))
        room -= len(text)
        if room < 0 and n:
            break
        carried.append(text)
        if progress is not None:
            progress(n + 1)
    file = Path(file)
    file.write_text(page(dataset, carried), encoding="utf-8")
    return file


def page(dataset: EpisodeDataset, carried: list[str] | None) -> str:
    """The page as HTML.

    Args:
        carried: the first episodes as JSON; None for a page that asks the server that gave it.
    """
    data = as_script(overview(dataset))
    left = 0 if carried is None else len(dataset) - len(carried)
    note = (
        f"{counted(left, 'episode')} more than this page carries: they are listed, without their tracks" if left else ""
    )
    return (
        templates()
        .get_template("page.html")
        .render(
            title=f"Episodes of {clipped(PurePath(dataset.path).name or dataset.path, 60)}",
            is_live=carried is None,
            note=note,
            data=Markup(data),
            episodes=Markup(f"[{','.join(carried or [])}]"),
            style=_file("page.css"),
            script=_file("page.js"),
        )
    )


def _file(name: str) -> Markup:
    source = templates().loader.get_source(templates(), name)[0]  # type: ignore[union-attr]
    return Markup(source)


def as_script(value: Any) -> str:
    """JSON that may stand inside of a script element, whatever a user's text is."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def index_of(dataset: EpisodeDataset, id_: str, t_started: int, agent: str, nth: int) -> int | None:
    """Return the position of an episode in the data set as it is now, or None if it is not in it any more.

    Args:
        id_, agent: the texts of the row in `overview`.
        nth: 0 for the first episode with this id, start and agent, 1 for the second.
    """
    table = dataset.metadata
    starts = np.flatnonzero(table["t_started"] == t_started)
    ids, agents = table["id"], table["agent_id"]
    equal = [i for i in starts.tolist() if clipped(ids[i], MOST_OF_ID) == id_ and _agent(agents[i]) == agent]
    return equal[nth] if nth < len(equal) else None


def _agent(agent: Any) -> str:
    return "" if agent is None else clipped(agent, MOST_OF_ID)


def overview(dataset: EpisodeDataset) -> dict[str, Any]:
    """What is known of all episodes: a row each, and words on the whole."""
    table = dataset.metadata
    rows = [
        [
            clipped(id_, MOST_OF_ID),
            int(length),
            _number(value),
            ended(Ending.of(*flags)),
            int(t),
            agent,
        ]
        for id_, length, value, *flags, t, agent in zip(
            table["id"].tolist(),
            table["length"].tolist(),
            table["return"].tolist(),
            table["terminated"].tolist(),
            table["truncated"].tolist(),
            table["t_started"].tolist(),
            map(_agent, table["agent_id"].tolist()),
            strict=True,
        )
    ]
    spec = dataset.env_spec
    return {
        "path": clipped(dataset.path, 200),
        "environment": clipped(getattr(spec, "id", spec) or "", 80),
        "rows": rows,
    }


def _number(value: float) -> float | str:
    """Return a number as JSON has it, whole or in six digits. NaN and infinities are texts."""
    if value.is_integer() and abs(value) < 2**53:
        return int(value)
    return float(f"{value:.6g}") if np.isfinite(value) else number(value)


# --- one episode ------------------------------------------------------------------------------------------------------


def episode_data(episode: Any) -> dict[str, Any]:
    """Return an episode as the page draws it: lanes of numbers by step, and the frames of all cameras.

    Rewards and actions come first. There are at most `MOST_LANES` lanes, and `left` counts the numbers without one.
    """
    tracks = episode.tracks
    lanes: list[dict[str, Any]] = []
    left = 0
    series = list(of_tracks(tracks))
    cameras = [one for one in series if one.is_image]
    numeric = [one for one in series if one.is_numeric and not one.is_image]
    total = sum(one.numbers.shape[1] for one in numeric)
    points = max(MOST_NUMBERS // max(total, 1), FEWEST_CELLS)
    for one in numeric:
        count = min(one.numbers.shape[1], MOST_LANES - len(lanes))
        left += one.numbers.shape[1] - count
        lanes += _lanes(one, tracks.lookback, range(count), min(points, MOST_CELLS))
    return {
        "lookback": tracks.lookback,
        "started": episode.t_started,
        "length": len(episode),
        "ending": ended(episode.ending),
        "lanes": lanes,
        "left": left,
        "cameras": [_frames(one, tracks.lookback, BYTES_OF_FRAMES // len(cameras)) for one in cameras],
    }


def _lanes(series: Series, lookback: int, columns: range, max_cells: int) -> list[dict[str, Any]]:
    """Return a lane for each of the numbers `columns` of an item.

    A lane has `values` if each item is in it. Otherwise it has `low`, `high` and `last` of cells of `every` items. The
    entry `odd` has texts on cells with missing or non-finite numbers, `at` the steps of items of a growing episode.
    """
    cells = series.cells(max_cells, columns)
    low, _, high = (values[list(columns)].astype(np.float64).tolist() for values in series.ranges)
    lanes = []
    for k in columns:
        label = series.label if series.numbers.shape[1] == 1 else f"{series.label}[{k}]"
        lane = {"label": clipped(label, 60), "hue": series.hue, "more": series.more, "every": cells.every}
        lane |= {"range": [_number(low[k]), _number(high[k])], "items": cells.total}
        fields = {"values": cells.low} if cells.is_exact else {"low": cells.low, "high": cells.high, "last": cells.last}
        lane |= {name: _numbers(values[:, k]) for name, values in fields.items()}
        odd = [counts[:, k] for counts in (cells.num_missing, cells.num_nan, cells.num_above, cells.num_below)]
        places = np.flatnonzero(np.sum(odd, 0)).tolist()
        lane["odd"] = [[place, _words([int(count[place]) for count in odd], cells.is_exact)] for place in places]
        if not series.is_exact:
            lane["at"] = (series.items[cells.starts()] - lookback).tolist()
        lanes.append(lane)
    return lanes


def _numbers(values: np.ndarray) -> list[float | None]:
    """Return numbers [k] as JSON has them; None for NaN."""
    return [None if value != value else _number(value) for value in values.tolist()]  # type: ignore[misc]


def _words(counts: list[int], is_exact: bool) -> str:
    """Return the counts of missing, NaN, infinite and minus infinite numbers of a cell as text."""
    names = ("missing", "NaN", "∞", "-∞")
    return ", ".join(name if is_exact else f"{n} {name}" for n, name in zip(counts, names, strict=True) if n)


def _frames(series: Series, lookback: int, most_bytes: int) -> dict[str, Any]:
    """Return the frames of a camera from step `first` on: one of each `every`, in a size that fits `most_bytes`."""
    every = max(1, -(-series.total // MOST_FRAMES))
    small = max(1, -(-max(series.array.shape[1:3]) // FRAME_SIDE)) if series.array.shape[-1] != 1 else 1
    images = viewable(series.array[::every])[:, ::small, ::small]
    size = len(png(images[len(images) // 2])) * 4 / 3
    thinner = max(1, int(np.ceil(size * len(images) / most_bytes)))
    images, every = images[::thinner], every * thinner
    uris = [data_uri(png(image)) for image in images]
    return {"label": clipped(series.label, 60), "first": -lookback, "every": every, "images": uris}

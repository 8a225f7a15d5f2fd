"""The page of a data set: all episodes in one file, which asks for nothing outside of itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from markupsafe import Markup

from episodes.facts.ending import Ending
from episodes.inspect.frames import viewable
from episodes.inspect.html import templates
from episodes.inspect.png import data_uri, png
from episodes.inspect.series import Series, of_tracks
from episodes.inspect.words import clipped, counted, ended
from episodes.storage import EpisodeDataset

MOST_BYTES = 24_000_000  # of the episodes that a page carries; the others are only listed
MOST_POINTS = 2000  # of a line
MOST_LANES = 24  # of an episode
MOST_FRAMES = 400
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


def overview(dataset: EpisodeDataset) -> dict[str, Any]:
    """What is known of all episodes: a row each, and words on the whole."""
    table = dataset.metadata
    rows = [
        [
            clipped(id_, 40),
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
            ["" if agent is None else clipped(agent, 40) for agent in table["agent_id"].tolist()],
            strict=True,
        )
    ]
    spec = dataset.env_spec
    return {
        "path": clipped(dataset.path, 200),
        "environment": clipped(getattr(spec, "id", spec) or "", 80),
        "rows": rows,
    }


def _number(value: float) -> float | None:
    """A number as JSON has it, whole or in six digits; None for one that is not finite."""
    if value.is_integer() and abs(value) < 2**53:
        return int(value)
    return float(f"{value:.6g}") if np.isfinite(value) else None


# --- one episode ------------------------------------------------------------------------------------------------------


def episode_data(episode: Any) -> dict[str, Any]:
    """An episode as the page draws it: lanes of numbers by step, and frames."""
    tracks = episode.tracks
    lanes: list[dict[str, Any]] = []
    frames: dict[str, Any] | None = None
    for series in of_tracks(tracks):
        if series.is_image and frames is None:
            frames = _frames(series, tracks.lookback)
        elif series.is_numeric and not series.is_image:
            lanes += _lanes(series, tracks.lookback, MOST_LANES - len(lanes))
    return {
        "lookback": tracks.lookback,
        "started": episode.t_started,
        "length": len(episode),
        "ending": ended(episode.ending),
        "lanes": lanes,
        "frames": frames,
    }


def _lanes(series: Series, lookback: int, most: int) -> list[dict[str, Any]]:
    """A lane for each number of an item, at most so many; `at` says of which steps the numbers are."""
    every = max(1, -(-len(series.array) // MOST_POINTS))
    rows = series.array[::every].reshape(len(series.array[::every]), -1)
    places = (np.arange(series.total) if series.places is None else series.places)[::every] - lookback
    lanes = []
    for k in range(min(rows.shape[1], max(most, 0))):
        numbers = [_number(value) for value in rows[:, k].astype(np.float64).tolist()]
        label = series.label if rows.shape[1] == 1 else f"{series.label}[{k}]"
        lane = {"label": clipped(label, 60), "hue": series.hue, "more": series.more, "values": numbers}
        lane |= {"every": every} if series.places is None else {"at": places.tolist()}
        lanes.append(lane)
    return lanes


def _frames(series: Series, lookback: int) -> dict[str, Any]:
    """Frames of the steps from `first` on, one of each `every`, as many and as large as there is room for."""
    every = max(1, -(-series.total // MOST_FRAMES))
    small = max(1, -(-max(series.array.shape[1:3]) // FRAME_SIDE)) if series.array.shape[-1] != 1 else 1
    images = viewable(series.array[::every])[:, ::small, ::small]
    size = len(png(images[len(images) // 2])) * 4 / 3
    thinner = max(1, int(np.ceil(size * len(images) / BYTES_OF_FRAMES)))
    images, every = images[::thinner], every * thinner
    return {"first": -lookback, "every": every, "images": [data_uri(png(image)) for image in images]}

"""HTML page of a data set: a single file with all episodes, which works offline."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from episodes.errors import ChunkMismatch, EpisodeError
from episodes.inspect.conversation import Decode, is_conversation, page_conversation
from episodes.inspect.doctor.finding import Findings
from episodes.inspect.doctor.scan import outside_bounds
from episodes.inspect.formatting import MOST_OF_ID, clipped, counted, ended, finite_or_text, page_id
from episodes.inspect.frames import viewable
from episodes.inspect.html import schema, template_file, templates
from episodes.inspect.page_messages import compressed_text, encode
from episodes.inspect.png import data_uri, is_png, png
from episodes.inspect.series import Series, of_tracks
from episodes.multi_agent import MultiAgentEpisode
from episodes.storage import EpisodeDataset
from episodes.storage.files import local_path
from episodes.storage.games import GameDataset, open_dataset
from episodes.storage.remote.remote_directory import is_remote
from episodes.tracks import nested

if TYPE_CHECKING:
    from episodes.inspect.learned_tracks import LearnedTracks
    from episodes.single_agent.episode import SingleAgentEpisode
    from episodes.tracks.tracks import Tracks

MOST_BYTES = 24_000_000  # of the episodes in a file; of further ones the file has the row of the table only
BYTES_OF_BLOCK = 200_000  # of episodes that are compressed together, before compression
MOST_CELLS = 2000  # of a line
FEWEST_CELLS = 100
MOST_NUMBERS = 200_000  # of all lines of an episode
MOST_LANES = 1000  # of an episode
MOST_FRAMES = 400
MOST_MARKS = 1000  # of numbers of a track outside their space
MOST_OF_TEXT = 4000  # characters of one text
BYTES_OF_TEXTS = 400_000  # of one episode
FRAME_SIDE = 160  # pixels
BYTES_OF_FRAMES = 3_000_000  # of one episode
SCRIPTS = ("decode.js", "dom.js", "condition.js", "table.js", "conversation.js", "episode.js", "page.js")
STYLES = ("page.css", "style.css")
SHARED = ("label", "hue", "more", "note", "band")  # parts of a lane that are stored once for many episodes
HEAT = 2  # kind of the lane of a series whose colours are centred at 0; 1 for whole numbers, 0 for lines
LEFT_OUT = {"shard", "writer", "episode"}  # columns of the metadata that say nothing about an episode

Progress = Callable[[int], None]


def write_report(
    dataset: EpisodeDataset | GameDataset,
    file: str | Path,
    progress: Progress | None = None,
    findings: Findings | None = None,
    decode: Decode | None = None,
) -> Path:
    """Write a single HTML file that shows all episodes of a data set, and return its path.

    Args:
        findings: what the doctor found in the data set, for the page to list.
        progress: called with the number of episodes that are in the page so far.
        decode: function from a list of token ids to text, for conversations of language agents.
    """
    dataset = of_games(dataset)
    blocks: list[str] = []
    starts, waiting, room, size = [0], list[dict[str, Any]](), MOST_BYTES, 0

    def write_block() -> None:
        """Encode the collected episodes as one block of the page."""
        nonlocal waiting, room, size
        blocks.append(compressed_text(encode(_with_shared_lanes(waiting))))
        room -= len(blocks[-1])
        starts.append(starts[-1] + len(waiting))
        waiting, size = [], 0

    for n, episode in enumerate(dataset):
        waiting.append(episode_data(episode, decode=decode))
        size += _size(waiting[-1])
        if size >= BYTES_OF_BLOCK:
            write_block()
        if progress is not None:
            progress(n + 1)
        if room < 0:
            break
    if waiting:
        write_block()
    carried = starts.pop()
    table = overview(dataset) | {"starts": starts or [0]}
    if findings is not None:
        table["findings"] = findings_data(findings)
    table["place"] = np.where(np.arange(len(dataset)) < carried, np.arange(len(dataset)), -1)
    file = local_path(file)
    file.write_text(_page(dataset, compressed_text(encode(table)), blocks, len(dataset) - carried), encoding="utf-8")
    return file


def live_page(dataset: EpisodeDataset | GameDataset, run: str | None = None) -> str:
    """Return the HTML page of a data set without its episodes, which the page requests from a `PageServer`. `run` is
    the name of the training run that the episodes belong to.
    """
    return _page(dataset, None, [], 0, run)


def _page(
    dataset: EpisodeDataset | GameDataset, table: str | None, blocks: list[str], left: int, run: str | None = None
) -> str:
    """Return the HTML page of a data set.

    Args:
        table: HTML of the table of episodes, or None for a live page, which loads it.
        blocks: HTML elements with the data of episodes.
        left: number of episodes whose time series are not in the page.
        run: name of the training run of the episodes, for the title and a link.
    """
    name = clipped(PurePath(dataset.path).name or dataset.path, 60)
    note = f"the tracks of {counted(left, 'episode')} are not in this file, only their rows" if left else ""
    return (
        templates()
        .get_template("page.html")
        .render(
            title=f"Episodes of {name}" if run is None else f"Run {clipped(run, 60)}: {name}",
            run=run,
            is_live=table is None,
            note=note,
            table=None if table is None else Markup(table),
            schema=Markup(schema(dataset)) if len(dataset) else "",
            blocks=list(map(Markup, blocks)),
            style=Markup("\n").join(map(template_file, STYLES)),
            script=Markup("\n").join(map(template_file, SCRIPTS)),
        )
    )


def _with_shared_lanes(episodes: list[dict[str, Any]]) -> dict[str, Any]:
    """Combine several episodes' page data, and store the names and colours of their curves only once."""
    kinds: dict[tuple[Any, ...], int] = {}
    short = []
    for episode in episodes:
        lanes = []
        for lane in episode["lanes"]:
            kind = kinds.setdefault(tuple(lane[name] for name in SHARED), len(kinds))
            is_plain = lane["every"] == 1 and not lane["begin"] and not lane["odd"] and not {"at", "marks"} & set(lane)
            lane_rest = {name: part for name, part in lane.items() if name not in SHARED}
            lanes.append([kind, lane["values"]] if is_plain else [kind, lane_rest])
        short.append(episode | {"lanes": lanes})
    return {"kinds": list(map(list, kinds)), "episodes": short}


def _size(data: dict[str, Any]) -> int:
    """Return the approximate size in bytes of the page data of an episode."""
    lanes = sum(part.nbytes for lane in data["lanes"] for part in lane.values() if isinstance(part, np.ndarray))
    images = sum(len(image) for camera in data["cameras"] for image in camera["images"])
    talks = sum(len(talk["ids"]) * (8 + 5 * len(talk["values"])) for talk in data["conversation"])
    return lanes + images + talks + sum(len(text or "") for track in data["texts"] for text in track["texts"]) + 500


# --- the table --------------------------------------------------------------------------------------------------------


def overview(
    dataset: EpisodeDataset | GameDataset, begin: int = 0, measured: Mapping[str, np.ndarray] | None = None
) -> dict[str, Any]:
    """Return the rows of a data set's metadata table from row `begin` on, as data for the page.

    Columns of whole episodes are left out if an id belongs to several episodes. Then "missing" says so in words.

    Args:
        measured: further columns by name [n].
    """
    table = dataset.metadata
    columns = {}
    missing = []
    for name in table:
        try:
            values = np.asarray(table[name])
        except ChunkMismatch:  # of whole episodes, if an id is of several: `episodes check` reports it
            missing.append(name)
            continue
        if name not in LEFT_OUT and not _is_empty(name, values):
            columns[name] = _column(values[begin:])
    columns |= {name: {"values": values[begin:]} for name, values in (measured or {}).items()}
    columns["repetition"] = {"values": repetitions(table)[begin:]}
    spec = dataset.env_spec
    environment = clipped(getattr(spec, "id", spec) or "", 80)
    path = clipped(dataset.path, 200)
    words = f"no {', '.join(missing)}, since an id belongs to several episodes" if missing else ""
    head = {"path": path, "environment": environment, "missing": words}
    return head | {"num": len(dataset), "begin": begin, "columns": columns}


def _is_empty(name: str, values: np.ndarray) -> bool:
    """Return True if the metadata column `name` is optional and has no value in any row."""
    if name in ("agent_id", "module_id", "multi_agent_episode_id", "acting_pipeline"):
        return all(value is None for value in values)
    is_optional = name.startswith("policy_version") or name == "seed"
    return is_optional and bool(len(values)) and bool((values == -1).all())


def _column(values: np.ndarray) -> dict[str, Any]:
    """Convert a metadata column to data for the page: numbers, flags, or distinct texts with a code per row."""
    if values.dtype == bool:
        return {"flags": values}
    if values.dtype.kind in "iuf":
        return {"values": values}
    places: dict[Any, int] = {None: 0}
    codes = [places.setdefault(value, len(places)) for value in _texts_of(values)]
    return {"texts": list(places)[1:], "codes": np.array(codes, np.int64)}


def _texts_of(values: np.ndarray) -> list[str | None]:
    """Convert ids and other values of a metadata column to texts for the page."""
    items = values.tolist()
    if all(type(value) is str and len(value) <= MOST_OF_ID for value in items) and "".join(items).isprintable():
        return items
    return [None if value is None else page_id(value) for value in items]


def _agents_of(table: Mapping[str, np.ndarray]) -> list[str | None]:
    """Return the agent of each row of the metadata table, as texts. A row of a game has none."""
    return _texts_of(np.asarray(table["agent_id"])) if "agent_id" in table else [None] * len(table["id"])


def repetitions(table: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return for each row of the metadata table how many earlier rows have its id, start and agent, int64 [n]."""
    ids = _texts_of(np.asarray(table["id"]))
    keys = list(zip(ids, table["t_started"].tolist(), _agents_of(table), strict=True))
    if len(set(keys)) == len(keys):
        return np.zeros(len(keys), np.int64)
    counts: Counter[Any] = Counter()
    result = np.zeros(len(keys), np.int64)
    for i, key in enumerate(keys):
        result[i], counts[key] = counts[key], counts[key] + 1
    return result


def open_for_page(path: Path) -> EpisodeDataset | GameDataset:
    """Open a data set as a page shows it: as games if each episode belongs to a complete game, else as episodes."""
    return of_games(open_dataset(path))


def of_games(dataset: EpisodeDataset | GameDataset) -> EpisodeDataset | GameDataset:
    """Return the games of a data set in which each episode belongs to a complete game, else the data set itself."""
    if (
        isinstance(dataset, GameDataset)
        or is_remote(dataset.path)
        or not len(dataset)
        or any(id_ is None for id_ in dataset.metadata["multi_agent_episode_id"])
    ):
        return dataset
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            games = GameDataset(dataset.path)
    except EpisodeError:  # episodes of agents without the record of their game
        return dataset
    num_rows = sum(int(count) for count in games.metadata["num_agents"])
    return games if num_rows == len(dataset) else dataset


def index_of(dataset: EpisodeDataset | GameDataset, id_: str, t_started: int, agent: str, nth: int) -> int | None:
    """Return the index of the episode with this id, start and agent in a data set, or None if no episode matches.

    `nth` distinguishes episodes for which all three are equal.

    Args:
        id_, agent: the texts of the row in `overview`.
        nth: 0 for the first episode with this id, start and agent, 1 for the second.
    """
    table = dataset.metadata
    starts = np.flatnonzero(table["t_started"] == t_started)
    ids, agents = table["id"], _agents_of(table)
    equal = [i for i in starts.tolist() if page_id(ids[i]) == id_ and page_id(agents[i]) == agent]
    return equal[nth] if 0 <= nth < len(equal) else None


def findings_data(findings: Findings) -> dict[str, Any]:
    """Convert the problems found by the doctor to data for the page."""
    rows = [
        {
            "kind": finding.kind,
            "evidence": clipped(finding.evidence, 300),
            "harm": finding.harm,
            "advice": finding.advice,
            "times": finding.times,
            "id": None if finding.episode is None else page_id(finding.episode),
            "step": finding.step,
        }
        for finding in findings
    ]
    return {"extent": findings.extent, "rows": rows}


# --- one episode ------------------------------------------------------------------------------------------------------


def episode_data(
    episode: SingleAgentEpisode | MultiAgentEpisode,
    window: tuple[int, int] | None = None,
    *,
    decode: Decode | None = None,
    learned: LearnedTracks | None = None,
) -> dict[str, Any]:
    """Convert an episode, also of several agents, to data for the page: curves, texts and camera images.

    Rewards and actions come first. There are at most `MOST_LANES` curves (`lanes`). The entry `left` is the number of
    components of items that have no curve.

    Args:
        window: the first and the last step of the lanes; all by default.
        decode: function from a list of token ids to text, for the turns of a conversation.
        learned: what the updates of a run measured, whose tracks and numbers of updates (`updates`) are added.

    Raises:
        InvalidArgument: `decode` raises an error, or returns no str.
    """
    if isinstance(episode, MultiAgentEpisode):
        return _game_data(episode, window, decode, learned)
    updates = [] if learned is None else learned.updates_of(episode)
    if learned is not None:
        episode = learned.of(episode)
    tracks = episode.tracks
    lanes: list[dict[str, Any]] = []
    series = list(of_tracks(tracks))
    cameras = [each for each in series if each.is_image]
    texts = [each for each in series if each.array.dtype.kind == "U" and each.array.ndim == 1 and len(each.array)]
    numeric = [each for each in series if each.is_numeric and not each.is_image]
    total = sum(each.sampled_values.shape[1] for each in numeric)
    max_cells = min(max(MOST_NUMBERS // max(total, 1), FEWEST_CELLS), MOST_CELLS)
    marks = _marks(episode)
    for each in numeric:
        count = min(each.sampled_values.shape[1], MOST_LANES - len(lanes))
        lanes += _lanes(each, tracks.lookback, count, max_cells, window, marks.get(nested.unescape(each.label), {}))
    return {
        "lookback": tracks.lookback,
        "started": episode.t_started,
        "length": len(episode),
        "return": finite_or_text(episode.get_return()),
        "ending": ended(episode.ending),
        "lanes": lanes,
        "left": total - len(lanes),
        "updates": [list(update) for update in updates],
        "extent": None if learned is None else list(learned.extent or ()),
        "conversation": [page_conversation(episode, decode)] if is_conversation(episode) else [],
        "texts": [_texts(each, BYTES_OF_TEXTS // len(texts)) for each in texts],
        "cameras": [_frames(each, tracks.lookback, BYTES_OF_FRAMES // len(cameras)) for each in cameras]
        + _pictures(tracks),
    }


def _game_data(
    game: MultiAgentEpisode,
    window: tuple[int, int] | None,
    decode: Decode | None,
    learned: LearnedTracks | None,
) -> dict[str, Any]:
    """Convert an episode of several agents to data for the page: the lanes of all agents over the env steps.

    The entry `turns` has the env steps at which each agent observed and acted. Steps count from the begin of the chunk.
    """
    begin, lines = game.env_t_started, list(game.agents.timelines.items())
    data: dict[str, Any] = {name: [] for name in ("lanes", "texts", "cameras", "turns", "updates", "conversation")}
    data |= {"lookback": game.lookback, "started": begin, "length": len(game), "left": 0}
    data |= {"return": finite_or_text(game.get_return())}
    data |= {"extent": None if learned is None else list(learned.extent or ())}
    data |= {"ending": ended(game.ending, game.agents.passed_on is not None)}
    for agent, line in lines:
        episode, name = line.episode, page_id(agent)
        observed, acted = (np.asarray(times, np.int64) - begin for times in (line.observation_times, line.action_times))
        lookback, times_of = episode.tracks.lookback, (acted, observed)
        own = None  # the window in steps of the agent
        if window is not None:
            first, last = np.searchsorted(observed, window).tolist()
            own = first - lookback - 1, last - lookback + 1
        part = episode_data(episode, own, decode=decode, learned=learned)
        for lane in part["lanes"]:
            times, num = times_of[lane["more"]], len(lane.get("values", lane.get("low")))
            starts = lane.pop("at", None)
            items = lane["begin"] + np.arange(num) * lane["every"] if starts is None else starts + lookback
            if "marks" in lane:
                lane["marks"] = [(int(times[step + lookback]), text) for step, text in lane["marks"]]
            data["lanes"].append(
                lane | {"label": f"{name}/{lane['label']}", "agent": name, "at": times[items], "until": len(game) + 1}
            )
        for texts in part["texts"]:
            row: list[str | None] = [None] * (game.lookback + len(game) + 1)
            for at, text in zip(times_of[texts["more"]].tolist(), texts["texts"], strict=False):
                row[at + game.lookback] = text
            data["texts"].append(texts | {"label": f"{name}/{texts['label']}", "texts": row})
        for camera in part["cameras"]:
            is_sparse = "at" in camera
            at = (
                observed[camera["at"] + lookback]
                if is_sparse
                else observed[:: camera["every"]][: len(camera["images"])]
            )
            data["cameras"].append(camera | {"label": f"{name}/{camera['label']}", "at": at})
        ending = "pending" if line.phase == "waits" else ended(episode.ending, game.agents.passed_on is not None)
        turn = {"agent": name, "id": page_id(episode.id_), "observed": observed, "acted": acted, "ending": ending}
        turn |= {"return": part["return"], "first": episode.t_started - lookback, "lookback": lookback}
        data["turns"].append(turn)
        data["left"] += part["left"]
        data["updates"] += [[*update, name] for update in part["updates"]]
        data["conversation"] += [talk | {"name": name} for talk in part["conversation"]]
    return data


def _lanes(
    series: Series,
    lookback: int,
    count: int,
    max_cells: int,
    window: tuple[int, int] | None,
    marks: dict[int, list[tuple[int, str]]],
) -> list[dict[str, Any]]:
    """Return curves of the first `count` components of a time series as data for the page, annotated with `marks`.

    A lane has `values` if each item is in it. Otherwise it has `low` and `high` of cells of `every` items, the
    first of which is item `begin`. The entry `odd` has texts on cells with missing or non-finite numbers, and `at` the
    steps of the cells if not all items were read.
    """
    low, _, high = series.ranges.astype(np.float64)  # of the whole track, also for a window
    begin, part = 0, series
    if window is not None and series.is_exact:
        begin = min(max(window[0] + lookback - 1, 0), series.total - 1)
        stop = max(window[1] + lookback + 1, begin + 1)
        present = None if series.present is None else series.present[begin:stop]
        part = replace(series, array=series.array[begin:stop], present=present, total=len(series.array[begin:stop]))
    cells = part.cells(max_cells, slice(count))
    lanes = []
    for k in range(count):
        lane: dict[str, Any] = {"label": _label(series) + series.part_names[k], "hue": series.hue, "more": series.more}
        lane |= {
            "note": clipped(", ".join(series.standing_remarks)),
            "band": HEAT if series.is_centred else int(series.is_band),
        }
        lane |= {"every": cells.every, "begin": begin, "items": series.total}
        if begin or not cells.is_exact:
            lane["range"] = np.array([low[k], high[k]])
        fields = {"values": cells.low} if cells.is_exact else {"low": cells.low, "high": cells.high}
        lane |= {name: np.ascontiguousarray(values[:, k]) for name, values in fields.items()}
        counts = [counts[:, k] for counts in (cells.num_missing, cells.num_nan, cells.num_above, cells.num_below)]
        places = np.flatnonzero(np.sum(counts, 0)).tolist()
        lane["odd"] = {place: _words([int(count[place]) for count in counts], cells.is_exact) for place in places}
        if series.is_band and not cells.is_exact:
            lane["shares"] = _shares(part, cells.every)
        if not series.is_exact:
            lane["at"] = series.items[cells.starts()] - lookback
        if k in marks:
            lane["marks"] = marks[k]
        lanes.append(lane)
    return lanes


def _shares(series: Series, every: int) -> dict[str, np.ndarray]:
    """Return how often each whole number occurs in each cell of `every` items, int64 [k] by number."""
    numbers, starts = series.finite[:, 0], np.arange(0, len(series.sampled_values), every)
    return {
        str(int(n)): np.add.reduceat(numbers == n, starts, dtype=np.int64)
        for n in np.unique(numbers).tolist()
        if n == n
    }


def _label(series: Series) -> str:
    return clipped(nested.unescape(series.label), MOST_OF_ID)


def _marks(episode: SingleAgentEpisode) -> dict[str, dict[int, list[tuple[int, str]]]]:
    """Find numbers outside their space, and return their steps and a text for each, by array path and component."""
    result: dict[str, dict[int, list[tuple[int, str]]]] = {}
    tracks = {"observations": (episode.get_observations, episode.observation_space)} if episode.is_reset else {}
    if len(episode):
        tracks["actions"] = (episode.get_actions, episode.action_space)
    for name, (get, space) in tracks.items():
        for place in islice(outside_bounds(get(), space, name) if space is not None else (), MOST_MARKS):
            column = int(np.ravel_multi_index(place.indices, place.shape)) if place.indices else 0
            result.setdefault(place.path, {}).setdefault(column, []).append((place.step, place.bounds))
    return result


def _words(counts: list[int], is_exact: bool) -> str:
    """Describe how many numbers of a cell (run of items) are missing, NaN or infinite, given their counts."""
    names = ("missing", "NaN", "∞", "-∞")
    return ", ".join(name if is_exact else f"{n} {name}" for n, name in zip(counts, names, strict=True) if n)


def _texts(series: Series, most_bytes: int) -> dict[str, Any]:
    """Return label, colour and texts of a time series as a dict for the page.

    Long texts are shortened. A text is None if it is missing, or if earlier texts have `most_bytes` characters.
    """
    texts: list[str | None] = []
    for i, text in enumerate(series.array.tolist()):
        is_there = most_bytes > 0 and (series.present is None or bool(series.present[i]))
        left = len(text) - MOST_OF_TEXT
        texts.append((text if left <= 0 else f"{text[:MOST_OF_TEXT]} … {left:,} more characters") if is_there else None)
        most_bytes -= min(len(text), MOST_OF_TEXT)
    return {"label": _label(series), "hue": series.hue, "more": series.more, "texts": texts}


def _pictures(tracks: Tracks) -> list[dict[str, Any]]:
    """Return the PNG files in the infos of an episode as cameras, with the steps `at` which they are."""
    cameras = []
    for path, column in tracks.infos.finalize().data.whole().columns.items():
        rows = np.flatnonzero(column.present)
        if not len(rows) or not is_png(column.list(rows[:1])[0]):
            continue
        rows = rows[:: -(-len(rows) // MOST_FRAMES)]
        files = column.list(rows)
        thinner = -(-sum(map(len, files)) * 4 // (3 * BYTES_OF_FRAMES))
        shown = [(row - tracks.lookback, file) for row, file in zip(rows.tolist(), files, strict=True) if is_png(file)]
        at, files = zip(*shown[:: max(thinner, 1)], strict=True)
        label = clipped(nested.unescape(f"infos/{path}"), MOST_OF_ID)
        camera: dict[str, Any] = {"label": label, "first": -tracks.lookback, "every": 1}
        cameras.append(camera | {"at": np.array(at, np.int64), "images": [data_uri(file) for file in files]})
    return cameras


def _frames(series: Series, lookback: int, most_bytes: int) -> dict[str, Any]:
    """Return every n-th image of a camera as a data URI. The smallest n is chosen that fits into `most_bytes`."""
    every = max(1, -(-series.total // MOST_FRAMES))
    small = max(1, -(-max(series.array.shape[1:3]) // FRAME_SIDE)) if series.array.shape[-1] != 1 else 1
    images = viewable(series.array[::every])[:, ::small, ::small]
    size = len(png(images[len(images) // 2])) * 4 / 3
    thinner = max(1, int(np.ceil(size * len(images) / most_bytes)))
    images, every = images[::thinner], every * thinner
    uris = [data_uri(png(image)) for image in images]
    return {"label": _label(series), "first": -lookback, "every": every, "images": uris}

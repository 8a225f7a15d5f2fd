"""Content of notebook views: functions that build a `Card` for each kind of object, later rendered as HTML."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from episodes.batch import Batch
from episodes.batch import leaves as batch_leaves
from episodes.batch.train_batch import TrainBatch
from episodes.columns import Columns
from episodes.errors import EpisodeError
from episodes.facts.ending import Ending
from episodes.inspect import charts, formatting, sparklines
from episodes.inspect.lineage import BatchLinks, row_steps
from episodes.inspect.schema import place_in_episode, place_in_pack, read_schema, with_spaces
from episodes.inspect.series import Series, of_tracks
from episodes.inspect.sparklines import Axis
from episodes.inspect.timeline_bar import rail
from episodes.tracks import nested
from episodes.tracks.ragged import Ragged

if TYPE_CHECKING:
    from episodes.multi_agent.episode import MultiAgentEpisode
    from episodes.multi_agent.timeline import Timeline
    from episodes.pack.pack import EpisodePack
    from episodes.replay.buffer import EpisodeReplayBuffer
    from episodes.replay.multi_agent_buffer import MultiAgentEpisodeReplayBuffer
    from episodes.single_agent.episode import SingleAgentEpisode
    from episodes.storage.dataset import EpisodeDataset
    from episodes.storage.games import GameDataset

BYTES_OF_LINES = 9_000  # of all lines of a card together
BYTES_OF_FRAMES = 15_000  # of all strips of frames
BYTES_OF_POINT = 6
MOST_ROWS = 24  # with a picture; two or more further rows are only named
MOST_PARTS = 8  # numbers of an item in the table of a row
FIRST_PARTS = 6  # of an item with more of them
MOST_CARDS_WITH_TABLES = 2  # of one view
MOST_AGENTS = 12  # with a timeline
MOST_AGENT_CARDS = 8
MOST_EPISODES = 12  # that a table lists
MOST_BESIDE = 10  # episodes of a pack that are drawn side by side
MOST_ORIGINS = 12  # rows of a batch whose episodes are listed
MOST_OF_FACT = 1000  # characters of a fact that is opened
MOST_STORED_NUMBERS = 1 << 24  # of a column of a replay buffer that is read in full
MOST_STEPS = 200  # that are read of a larger column
MOST_MODULES = 4
MOST_OF_ID = 60  # characters in a table
HISTOGRAMS = "histograms from min to max"
MOST_TEXTS = 8  # of a track that a table lists
MOST_OF_TEXT = 400  # characters


@dataclass(frozen=True)
class Row:
    """Row of a notebook view that shows one array: name, shape, statistics and a small picture."""

    label: str
    hue: str
    meta: str
    stats: Sequence[tuple[str, str, str, str]]  # name, min, mean and max of each line of the picture
    note: str  # what the picture shows
    picture: Markup
    table: Table | None = None
    owner: str = ""  # the agent whose track it is
    defects: str = ""  # how many numbers are not finite or outside of their space, and where the first ones are


@dataclass(frozen=True)
class Fact:
    """Name and value of a fact in a notebook view."""

    name: str
    value: str
    whole: str = ""  # the value in full, if `value` is clipped

    @classmethod
    def of(cls, name: str, value: object) -> Fact:
        """Return a fact whose long value is clipped, and can be opened."""
        short, whole = formatting.clipped(value), formatting.clipped(value, MOST_OF_FACT)
        return cls(name, short, "" if short == whole else whole)


@dataclass(frozen=True)
class Table:
    """Table of texts in a notebook view, with column titles."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    is_words: bool = False  # and no numbers: cells begin at the left
    has_names: bool = False  # in the second column, which begins at the left


@dataclass(frozen=True)
class Card:
    """Content of the notebook view of one object: headline, metadata, arrays, and cards of the object's parts."""

    kind: str
    name: str
    headline: Sequence[str]
    endings: Sequence[str] = ()  # "terminated", ..., as pills
    facts: Sequence[Fact] = ()
    span: str = ""  # of time, beside the rail
    rail: Markup | None = None
    caption: str = ""  # of the pictures of the rows, if there is no rail
    extent: str = ""  # of what the statistics of the rows are, if not of all items
    rows: Sequence[Row] = ()
    chart: Markup | None = None
    table: Table | None = None
    parts: Sequence[Card] = ()
    notes: Sequence[str] = ()
    is_open: bool = True


# --- rows -------------------------------------------------------------------------------------------------------------


Where = Callable[[Series, int], str]  # place of an item of a series, as text


def rows_of(
    series: Sequence[Series], axis: Axis | None, share: int = 1, where: Where | None = None
) -> tuple[list[Row], list[str]]:
    """Return a table row of a notebook view for each of the first arrays in `series`, and remarks on arrays left out
    for lack of space.

    Args:
        axis: time axis of the pictures. None if the items have no common order in time, such as the rows of a batch.
        share: number of cards of this kind in one view.
        where: function that names the place of an item. By default, it is the index of the item.
    """
    most = max(MOST_ROWS // share, 4)
    shown = series if len(series) == most + 1 else series[:most]
    lanes = sum(
        2 * sparklines.MOST_LANES
        if track_series.num_steps
        else min(track_series.sampled_values.shape[1], sparklines.MOST_LANES)
        for track_series in shown
        if track_series.is_numeric and not track_series.is_image and not track_series.is_band
    )
    points = BYTES_OF_LINES // (BYTES_OF_POINT * max(lanes, 1) * share)
    points = min(max(points, sparklines.FEWEST_POINTS), sparklines.MOST_POINTS)
    room = BYTES_OF_FRAMES // (
        share * max(sum(track_series.is_image and track_series.is_numeric for track_series in shown), 1)
    )
    has_tables = share <= MOST_CARDS_WITH_TABLES
    rows = [_row(track_series, axis, points, room, has_tables, where or _item) for track_series in shown]
    return rows, _left_out([track_series.label for track_series in series[len(shown) :]])


def _item(series: Series, index: int) -> str:
    """Return the place of an item as text, without further knowledge."""
    return f"item {index:,}"


def _left_out(names: Sequence[str], noun: str = "") -> list[str]:
    """Return a list with a note that names what a card leaves out, or an empty list if it leaves nothing out."""
    noun = noun if len(names) > 1 else noun.removesuffix("s")
    return [formatting.clipped(f"and {len(names)} more{noun}: {', '.join(names[:20])}", 300)] if names else []


def _first_and_last(num: int, most: int) -> list[int]:
    """Return the indices of `num` rows, or of the first and the last ones if there are more than `most`."""
    half = most // 2
    return [*range(num)] if num <= most else [*range(half), *range(num - half, num)]


def _with_gap(rows: Sequence[Sequence[str]], chosen: Sequence[int]) -> list[Sequence[str]]:
    """Return the rows with one more wherever the indices `chosen` of the rows leave rows out, which says how many."""
    result: list[Sequence[str]] = []
    for row, index, before in zip(rows, chosen, [-1, *chosen], strict=False):
        if index > before + 1:
            result.append(("⋮", f"{index - before - 1:,} more", *[""] * (len(row) - 2)))
        result.append(row)
    return result


def _note_on_rows(num: int, most: int, noun: str) -> str:
    """Return a note on the rows that `_first_and_last` leaves out, or "" if it leaves none out."""
    return "" if num <= most else f"{formatting.counted(num, noun)}; the first and the last {most // 2} are listed"


def _row(series: Series, axis: Axis | None, points: int, room: int, has_table: bool, where: Where) -> Row:
    """Return the table row of a series: name, dtype and shape, range, remarks and a small picture.

    Args:
        points: most points of one line of the picture.
        room: most bytes of a strip of frames.
        has_table: whether a numeric series gets a table of its components. Text always gets one.
        where: function that names the place of an item.
    """
    meta = " · ".join(filter(None, (f"{series.shape_text} {series.dtype}", series.space_text)))
    if series.nbytes is not None:
        meta += f" · {formatting.size(series.nbytes)}"
    label = formatting.clipped(nested.unescape(series.label))
    remarks = series.remarks
    if not series.is_numeric:
        first, texts = _texts(series)
        return Row(label, series.hue, meta, (), formatting.clipped(", ".join(remarks)), first, texts)
    if note := sparklines.rows_note(series, axis):
        remarks.append(note)
    picture = sparklines.picture(series, axis, points, room, lambda item: where(series, item))
    table = _parts(series, axis is not None) if has_table else None
    defects = series.defects_text(lambda item: where(series, item))
    return Row(label, series.hue, meta, _stats(series), ", ".join(remarks), picture, table, defects=defects)


def _stats(series: Series) -> list[tuple[str, str, str, str]]:
    """Return name, min, mean and max of each line of a series' picture, as texts.

    A picture of many components has one entry for all of them, without a mean.
    """
    if series.num_steps or series.has_common_mean or len(series.part_names) > sparklines.MOST_LANES:
        low, mean, high = map(formatting.number, series.range)
        return [("", low, mean if series.has_common_mean else "", high)]
    lows, means, highs = (list(map(formatting.number, row)) for row in series.ranges.tolist())
    return list(zip(series.component_names, lows, means, highs, strict=True))


def _texts(series: Series) -> tuple[Markup, Table | None]:
    """Return the beginning of the first text in an array of texts, and a table of its first and last texts."""
    if series.array.dtype.kind not in "US" or series.array.ndim != 1 or not len(series.array):
        return Markup(""), None
    has_text = np.flatnonzero(series.array != "" if series.present is None else series.present)
    if not len(has_text):
        return Markup(""), None
    chosen = has_text[_first_and_last(len(has_text), MOST_TEXTS)]
    rows = [(str(i), formatting.clipped(series.array[i], MOST_OF_TEXT)) for i in chosen.tolist()]
    rows = _with_gap(rows, [has_text.tolist().index(i) for i in chosen.tolist()])
    table = Table(("item", "text"), rows, _note_on_rows(len(has_text), MOST_TEXTS, "text"), is_words=True)
    return Markup("<span>{}</span>").format(formatting.clipped(series.array[has_text[0]], 160)), table


def _parts(series: Series, is_in_time: bool = True) -> Table | None:
    """Return a table of statistics of each component of an array's items: min, mean and max, of items in time the first
    and the last, and of others the standard deviation.

    None is returned for images, flags and other small whole numbers, and arrays without items. Of infos, first and
    last are those that have the key.
    """
    if series.num_steps and len(series.array):
        steps = series.array.reshape(-1, *series.array.shape[2:])
        steps = replace(series, array=steps, total=len(steps), num_steps=0)
        return _parts(steps, is_in_time) if series.places is None else None
    count = series.sampled_values.shape[1]
    items = series.array if series.present is None else series.array[series.present]
    if series.is_image or series.is_band or len(items) == 0:
        return None
    most = count if count <= MOST_PARTS else FIRST_PARTS
    low, mean, high = series.ranges[:, :most]
    if is_in_time:
        columns, more = ("", "min", "mean", "max", "first", "last"), items[[0, -1]].reshape(2, -1)[:, :most]
        cells = np.stack([low, mean, high, *more], 1).tolist()
    else:
        columns, cells = ("", "min", "mean", "std", "max"), np.stack([low, mean, _std(series, most), high], 1).tolist()
    rows = [(name, *map(formatting.number, row)) for name, row in zip(series.component_names, cells, strict=False)]
    note = f"and {count - most} more numbers of each item" if count > most else ""
    return Table(columns, rows, note)


def _std(series: Series, most: int) -> np.ndarray:
    """Return the standard deviation of the finite values of the first `most` numbers of an item, float64 [most]."""
    numbers = series.finite[:, :most]
    with np.errstate(over="ignore", invalid="ignore"):
        if not any(series.counts):
            return numbers.std(0, dtype=np.float64)
        found = ~np.isnan(numbers)
        squares = np.where(found, np.square(numbers - series.ranges[1, :most], dtype=np.float64), 0).sum(0)
        return np.where(found.any(0), np.sqrt(squares / np.maximum(found.sum(0), 1)), np.nan)


def known(**facts: object) -> list[Fact]:
    """Return a fact for each of those keyword arguments that are not None."""
    return [Fact.of(name.replace("_", " "), value) for name, value in facts.items() if value is not None]


def _excerpt(items: Mapping[Any, Any]) -> str | None:
    """Return the first items of a dict that a user gave as short text, or None if it is empty."""
    first = [f"{formatting.clipped(key, 20)}: {formatting.clipped(value, 40)}" for key, value in [*items.items()][:8]]
    return ", ".join(first) or None


def _without(table: Table, **defaults: str) -> Table:
    """Return the table without those columns whose cells are all equal to the text given for the column."""
    kept = [
        i
        for i, name in enumerate(table.columns)
        if (default := defaults.get(name.replace(" ", "_"))) is None
        or any(row[i] != default for row in table.rows if row[0] != "⋮")
    ]
    rows = [[row[i] for i in kept] for row in table.rows]
    return replace(table, columns=[table.columns[i] for i in kept], rows=rows)


# --- episodes ---------------------------------------------------------------------------------------------------------


def episode_card(
    episode: SingleAgentEpisode,
    share: int = 1,
    is_open: bool = True,
    kind: str | None = None,
    line: Timeline | None = None,
) -> Card:
    """Return the notebook card of a `SingleAgentEpisode`: timeline, arrays and metadata.

    Args:
        share: number of cards of this kind in one view, which share the space.
        is_open: whether the table of arrays is shown at once.
        kind: title of the card, by default the name of the class.
        line: timeline of the agent in a multi-agent episode.
    """
    tracks, facts = episode.tracks, episode.facts
    lookback = tracks.lookback
    axis = Axis(max(tracks.observations.total - 1, 0), lookback)
    begin = facts.t_started - lookback
    series = with_spaces(of_tracks(tracks), facts.observation_space, facts.action_space)

    rows, notes = rows_of(list(series), axis, share, place_in_episode(episode, line))
    headline = [formatting.counted(len(episode), "step"), f"return {formatting.number(episode.get_return())}"]
    if facts.t_started:
        headline.insert(1, f"from t={facts.t_started}")
    return Card(
        kind or type(episode).__name__,
        formatting.without_random_digits(formatting.clipped(facts.id_)),
        headline,
        formatting.endings(facts.ending, tracks.is_finished),
        known(
            lookback=lookback or None,
            agent=facts.agent_id,
            module=facts.module_id,
            of_episode=facts.multi_agent_episode_id,
            policy_versions=facts.policy_versions and facts.policy_versions.bounds,
            observation_space=facts.observation_space,
            action_space=facts.action_space,
            custom_data=_excerpt(episode.custom_data),
            state=None if tracks.is_finished else "growing (lists)",
        ),
        f"t = {facts.t_started} … {facts.t_started + len(episode)}",
        rail(axis, begin, facts.ending) + _env_steps(line) if tracks.observations.total else None,
        rows=rows,
        notes=notes,
        is_open=is_open,
    )


def multi_agent_card(episode: MultiAgentEpisode) -> Card:
    """Return the notebook card of a `MultiAgentEpisode`: timelines, and a card for the episode of each agent."""
    agents, facts = episode.agents, episode.facts
    lines = list(agents.timelines.items())
    shown = lines[:MOST_AGENTS]
    opened = lines[: len(lines) if len(lines) == MOST_AGENT_CARDS + 1 else MOST_AGENT_CARDS]
    apart: dict[Any, float] = {}  # rewards before an agent's first observation or after its end
    for _, agent, reward in agents.rewards_apart:
        apart[agent] = apart.get(agent, 0.0) + float(reward)
    parts = [_agent_card(agent, line, len(opened), apart.get(agent, 0.0)) for agent, line in opened]
    waiting = [formatting.clipped(agent, 30) for agent, line in lines if line.phase == "waits"]
    pending = [f"{formatting.counted(len(waiting), 'action')} ({', '.join(waiting)})"] * bool(waiting)
    pending += [f"reward {_of_agent(line.reward, agent)}" for agent, line in lines if _has_reward(line)]
    returns = episode.get_returns()
    results = {agent: f"return {formatting.number(returns[agent])}" for agent, _ in shown}
    return Card(
        type(episode).__name__,
        formatting.without_random_digits(formatting.clipped(facts.id_)),
        [
            formatting.counted(len(episode), "env step"),
            formatting.counted(len(lines), "agent"),
            f"return {formatting.number(episode.get_return())}",
        ],
        formatting.endings(facts.ending, agents.passed_on is not None),
        known(
            t_started=facts.t_started or None,
            lookback=episode.lookback or None,
            state=None if all(line.episode.tracks.is_finished for _, line in lines) else "growing (lists)",
            pending=", ".join(pending) or None,
            rewards_of_no_step=", ".join(_of_agent(value, agent) for agent, value in apart.items() if value) or None,
        ),
        chart=charts.timelines(shown, facts.t_started - episode.lookback, episode.env_t, results),
        parts=parts,
        notes=_left_out([formatting.clipped(agent, 30) for agent, _ in lines[len(opened) :]], " agents"),
    )


def _of_agent(reward: Any, agent: object) -> str:
    """Return a reward with the agent that got it, as text."""
    return f"{formatting.number(float(reward))} ({formatting.clipped(agent, 30)})"


def _has_reward(line: Timeline) -> bool:
    """Return whether an agent has a pending reward other than 0."""
    return line.reward is not None and float(line.reward) != 0


def _agent_card(agent: object, line: Timeline, share: int, apart: float) -> Card:
    """Return the card of one agent's episode in a game, which names what the episode does not have: pending items.

    Args:
        share: number of agents of the game with a card.
        apart: the sum of rewards before the agent's first observation or after its end.
    """
    card = episode_card(line.episode, share, False, formatting.clipped(agent, 40), line)
    headline = [*card.headline]
    if line.phase == "waits":
        headline[0] += " and a pending action"
    if _has_reward(line):
        headline[-1] += f" and a pending reward of {formatting.number(float(line.reward))}"
    if apart:
        headline[-1] += f" and a reward of no step of {formatting.number(apart)}"
    return replace(card, headline=headline)


def _env_steps(line: Timeline | None) -> Markup:
    """Return an axis with the env steps of up to three evenly spaced observations of an agent, empty if it has none."""
    if line is None or not len(line.observation_times):
        return Markup("")
    num = len(line.observation_times)
    count = next(count for count in (3, 2, 1) if count == 1 or (num - 1) % (count - 1) == 0)
    times = [int(line.observation_times[i]) for i in np.linspace(0, num - 1, count).round().astype(int).tolist()]
    labels = "</span><span>".join(f"{time:,}" for time in times)
    return Markup(f'<div class="ep-ends"><span>env step {labels}</span></div>')


# --- many episodes ----------------------------------------------------------------------------------------------------


def pack_card(pack: EpisodePack) -> Card:
    """Return the notebook card of an `EpisodePack`: chart and table of its episodes, and its arrays."""
    sizes = pack.lookbacks + pack.lengths
    is_long = len(pack) > MOST_BESIDE
    axis = None if is_long else Axis(max(int(pack.observation_offsets[-1]), 1), 0, np.cumsum(sizes + 1)[:-1])
    series = with_spaces(of_tracks(pack.columns), pack.observation_space, pack.action_space)
    rows, notes = rows_of(list(series), axis, where=place_in_pack(pack, [f"episode {i}" for i in range(len(pack))]))
    return Card(
        type(pack).__name__,
        "",
        [
            formatting.counted(len(pack), "episode"),
            formatting.counted(pack.num_steps, "step"),
            formatting.size(pack.nbytes),
        ],
        facts=known(observation_space=pack.observation_space, action_space=pack.action_space),
        caption=HISTOGRAMS if is_long else "the episodes side by side" if len(pack) > 1 else "",
        rows=rows,
        chart=charts.returns(pack.returns(), pack.terminated, pack.truncated),
        table=episodes_table(pack.ids, pack.lengths, pack.returns(), pack.terminated, pack.truncated, pack.t_started),
        notes=notes,
    )


def dataset_card(dataset: EpisodeDataset) -> Card:
    """Return the notebook card of an `EpisodeDataset`: its tracks, and a chart and a table of its episodes.

    The metadata and a few episodes are read.
    """
    rows, notes, extent = schema_rows(dataset)
    table = dataset.metadata
    returns, terminated, truncated = table["return"], table["terminated"], table["truncated"]
    spec = dataset.env_spec
    unread = sum(dataset.unread.values())
    return Card(
        type(dataset).__name__,
        formatting.clipped(dataset.path),
        [
            formatting.counted(len(dataset), "episode"),
            formatting.counted(dataset.num_steps, "step"),
            *_averages(returns, table["length"]),
            formatting.size(dataset.nbytes),
        ],
        facts=known(
            environment=getattr(spec, "id", spec),
            metadata=_excerpt(dataset.user_metadata),
            observation_space=dataset.observation_space,
            action_space=dataset.action_space,
            recovered=f"{dataset.recovered} episodes of files that no writer has finished"
            if dataset.recovered
            else None,
            unread=f"{unread} bytes" if unread else None,
        ),
        chart=_episodes_chart(returns, table["length"], terminated, truncated),
        table=episodes_table(table["id"], table["length"], returns, terminated, truncated, table["t_started"]),
        caption=HISTOGRAMS,
        extent=extent,
        rows=rows,
        notes=notes,
    )


def games_card(dataset: GameDataset, most: int = 1) -> Card:
    """Return the notebook card of a `GameDataset`: chart and table of its games, and the first `most` games."""
    table = dataset.metadata
    tracks = schema_card(dataset)
    spec = dataset.env_spec
    ended = table["return"], table["terminated"], table["truncated"]
    kinds = {f"kind {n}": _kind(kind) for n, kind in enumerate(dataset.kinds)}
    if len(kinds) == 1:
        kinds = {"agents": kinds["kind 0"]}
    parts = [replace(multi_agent_card(dataset[n]), is_open=n == 0) for n in range(min(len(dataset), most))]
    return Card(
        type(dataset).__name__,
        formatting.clipped(dataset.path),
        [
            formatting.counted(len(dataset), "game"),
            formatting.counted(int(table["length"].sum()), "env step"),
            *_averages(table["return"], table["length"]),
            *([] if len(kinds) < 2 else [formatting.counted(len(kinds), "kind")]),
            formatting.size(sum(kind.nbytes for kind in dataset.kinds)),
        ],
        facts=known(
            environment=getattr(spec, "id", spec),
            metadata=_excerpt(dataset.user_metadata),
            incomplete=f"{dataset.incomplete} games without all of their agents" if dataset.incomplete else None,
            **kinds,
        ),
        chart=_episodes_chart(ended[0], table["length"], *ended[1:], noun="game"),
        table=episodes_table(table["id"], table["length"], *ended, table["t_started"], table["agents"], most=most),
        caption=tracks.caption,
        extent=tracks.extent,
        parts=[*tracks.parts, *parts],
        rows=tracks.rows,
        notes=tracks.notes,
    )


def _averages(returns: np.ndarray, lengths: np.ndarray) -> list[str]:
    """Return the mean return and the mean length of episodes as texts, with the lowest and the highest."""
    texts = []
    for name, values in (("return", returns), ("length", lengths)):
        finite = np.asarray(values, np.float64)
        finite = finite[np.isfinite(finite)]
        if len(finite):
            with np.errstate(over="ignore"):
                low, mean, high = map(formatting.number, (finite.min(), finite.mean(), finite.max()))
            texts.append(f"mean {name} {mean}" + (f" ({low} … {high})" if low != high else ""))
    return texts


def _episodes_chart(
    returns: np.ndarray, lengths: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, noun: str = "episode"
) -> Markup:
    """Return the chart of the returns of episodes, and that of their lengths if it shows more than the returns."""
    above = charts.returns(returns, terminated, truncated, noun) or Markup("")
    return above + charts.lengths(lengths, returns, terminated, truncated, noun)


def _kind(kind: EpisodeDataset) -> str:
    """Return agents, size and spaces of the data set of one kind of agents."""
    agents = formatting.clipped(", ".join(map(str, dict.fromkeys(kind.metadata["agent_id"].tolist()))), 80)
    spaces = [formatting.clipped(each) for each in (kind.observation_space, kind.action_space) if each is not None]
    return f"{agents}: {', '.join(filter(None, (formatting.counted(kind.num_steps, 'step'), ' → '.join(spaces))))}"


def schema_rows(dataset: EpisodeDataset | GameDataset) -> tuple[list[Row], list[str], str]:
    """Return a row for each track of a data set, with its shape, dtype, space, range and histogram, remarks, and of how
    many episodes the ranges are.
    """
    schema = read_schema(dataset)
    places = {id(track.series): track.place for track in schema.tracks}
    rows, notes = rows_of([track.series for track in schema.tracks], None, where=lambda s, i: places[id(s)](i))
    rows = [
        replace(
            row,
            label=formatting.clipped(track.path),
            owner=formatting.clipped(track.owner),
            meta=" · ".join(filter(None, (f"{track.item_shape} {track.series.dtype}", track.space))),
        )
        for row, track in zip(rows, schema.tracks, strict=False)
    ]
    return rows, notes, schema.extent


def schema_card(dataset: EpisodeDataset | GameDataset) -> Card:
    """Return a card with the tracks of a data set. Of games with several agents, each agent has a part."""
    rows, notes, extent = schema_rows(dataset)
    common = Card("tracks", "", (), rows=rows, notes=notes, caption=HISTOGRAMS, extent=extent)
    by_agent: dict[str, list[Row]] = {}
    for row in rows:
        by_agent.setdefault(row.owner, []).append(row)
    if len(by_agent) > 1:
        parts = [
            replace(common, kind="tracks of", name=agent, rows=own, notes=(), is_open=number == 0)
            for number, (agent, own) in enumerate(by_agent.items())
        ]
        common = replace(common, rows=(), parts=[_with_count(part) for part in parts], caption="")
    return common if common.parts else _with_count(common)


def _with_count(card: Card) -> Card:
    return replace(card, headline=[formatting.counted(len(card.rows), "track")])


def episodes_table(
    ids: Sequence[object] | np.ndarray,
    lengths: np.ndarray,
    returns: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    started: np.ndarray,
    agents: Sequence[Iterable[object]] | np.ndarray | None = None,
    most: int = 0,
) -> Table:
    """Return a table of the first and last episodes and of those with the highest and lowest return, with id, length,
    return, ending and start; of games also agents.

    At least `most` rows are shown.
    """
    extremes = best_and_worst(returns)
    chosen = sorted({*_first_and_last(len(lengths), max(most, MOST_EPISODES)), *extremes})
    rows = [
        (
            str(i),
            _id(ids[i]),
            str(lengths[i]),
            formatting.number(returns[i]),
            _ending(Ending.of(terminated[i], truncated[i])),
            str(started[i]),
            *(() if agents is None else (formatting.clipped(", ".join(map(str, agents[i])), 60),)),
            extremes.get(i, ""),
        )
        for i in chosen
    ]
    rows = _with_gap(rows, chosen)
    note = _note_on_rows(len(lengths), max(most, MOST_EPISODES), "episode" if agents is None else "game")
    if note and extremes:
        note = f"{note.removesuffix(' are listed')}, the best and the worst are listed"
    columns = ("", "id", "length", "return", "ending", "from t", *(() if agents is None else ("agents",)), "of all")
    return _without(Table(columns, rows, note, has_names=True), from_t="0", of_all="")


def best_and_worst(returns: np.ndarray) -> dict[int, str]:
    """Return the indices of the first episodes with the highest and the lowest finite return, with "best" and "worst".

    The result is empty if there are no two different returns.
    """
    values = np.asarray(returns, np.float64)
    places = np.flatnonzero(np.isfinite(values))
    if not len(places) or (values[places] == values[places[0]]).all():
        return {}
    best, worst = places[values[places].argmax()], places[values[places].argmin()]
    return {int(best): "best", int(worst): "worst"}


def _ending(ending: Ending) -> str:
    """Return an ending for a table, in its colour."""
    kind = formatting.ending_word(ending)
    return Markup('<span class="ep-{}">{}</span>').format(kind, formatting.ended(ending))


def _id(value: object) -> str:
    """Return an id for a table. Of 32 random digits the first 8 are shown, and all of them in the tooltip."""
    text = formatting.clipped(value, MOST_OF_ID)
    short = formatting.without_random_digits(text)
    return text if short == text else Markup('<span title="{}">{}</span>').format(text, short)


# --- columns ----------------------------------------------------------------------------------------------------------

_COLUMN_HUES = {
    "obs": "observations",
    "new_obs": "observations",
    "actions": "actions",
    "rewards": "rewards",
    "infos": "infos",
    "loss_mask": "infos",
    "terminateds": "infos",
    "truncateds": "infos",
}


def batch_card(batch: Mapping[str, Any] | Batch, kind: str = "Batch", links: BatchLinks | None = None) -> Card:
    """Return the notebook card of a `Batch` or another mapping of columns, with a row for each array.

    With `links`, the listed batch rows link to their steps on the HTML page of the data set.

    The first and the last rows of the batch are listed with their episodes and steps, if they are known.
    """
    leaves = {
        path: leaf
        for path, leaf in nested.flatten(batch.to_dict() if isinstance(batch, Batch) else dict(batch)).items()
        if path
    }
    lengths = {leaf.shape[0] if leaf.ndim else 1 for leaf in leaves.values()}
    many = formatting.counted(lengths.pop(), "row") if len(lengths) == 1 else "no common length"
    num_steps = _sequence_length(leaves)
    series = [_column(path, leaf) for path, leaf in leaves.items()]
    series = [_with_steps(time_series, num_steps) for time_series in series]
    alike = {each.note for each in series}  # a note that all columns have is a fact of the batch
    if len(alike) == 1:
        series = [replace(each, note="") for each in series]
    rows, notes = rows_of(series, None, where=lambda _, index: f"row {index:,}")
    nbytes = sum(time_series.nbytes or 0 for time_series in series)
    headline = [many, formatting.counted(len(series), "column"), formatting.size(nbytes)]
    with_gradient = [path for path, leaf in leaves.items() if getattr(leaf, "requires_grad", False)]
    return Card(
        kind,
        "",
        headline,
        facts=known(
            columns=alike.pop() if len(alike) == 1 and alike != {""} else None,
            requires_grad=", ".join(with_gradient) or None,
        ),
        caption=HISTOGRAMS if not num_steps else "",
        rows=rows,
        table=_origins(batch, links, series),
        notes=notes,
    )


def _origins(batch: object, links: BatchLinks | None, series: Sequence[Series]) -> Table | None:
    """Return a table of the episodes and steps from which evenly spaced batch rows came, with their actions and rewards
    if these are single numbers, or None if the episodes are unknown.
    """
    try:
        origin = batch.origin if isinstance(batch, (Batch, TrainBatch)) else None
        if origin is None or not origin.numbers.ndim:
            return None
        spaced = np.linspace(0, len(origin) - 1, min(len(origin), MOST_ORIGINS))
        chosen = [] if not len(origin) else np.unique(spaced.astype(np.intp)).tolist()
        steps = row_steps(origin[np.array(chosen, np.intp)])
        num_episodes = len({id_ for id_ in origin.ids.ravel().tolist() if id_ is not None})
    except EpisodeError:
        return None
    rows = []
    shown = [each for each in series if each.label in ("actions", "rewards") and each.array.shape == (len(origin),)]
    shown = [each for each in shown if each.is_numeric]
    for row, step in zip(chosen, steps, strict=True):
        if step is not None:
            id_ = _id(step.id_)
            name = id_ if links is None else Markup('<a href="{}">{}</a>').format(links.link(step), id_)
            agent = "" if step.agent_id is None else formatting.clipped(step.agent_id, 20)
            numbers = (formatting.number(each.array[row].item()) for each in shown)
            rows.append((str(row), name, step.times, *numbers, agent))
    note = f"{len(chosen)} of {len(origin):,} rows, " if len(chosen) < len(origin) else ""
    note += f"which are of {formatting.counted(num_episodes, 'episode')}" if note else ""
    columns = ("row", "episode", "t", *(each.label.removesuffix("s") for each in shown), "agent")
    return _without(Table(columns, rows, note, has_names=True), agent="") if rows else None


def _with_steps(series: Series, num_steps: int) -> Series:
    """Return the array marked as sequences if its shape is [B, `num_steps`, ...]. Other arrays are unchanged."""
    is_state = series.label.split("/")[0] in (Columns.STATE_IN, Columns.STATE_OUT)
    return series if is_state or series.shape[1:2] != (num_steps,) else replace(series, num_steps=num_steps)


def _sequence_length(leaves: Mapping[str, Any]) -> int:
    """Return the length T of the sequences in a batch [B, T, ...], or 0 for a batch of single steps [B, ...]."""
    for name in (Columns.LOSS_MASK, Columns.REWARDS, Columns.TERMINATEDS, Columns.ADVANTAGES, Columns.ACTION_LOGP):
        if name in leaves and leaves[name].ndim == 2:
            return leaves[name].shape[1]
    return 0


def _column(path: str, leaf: Any) -> Series:
    """Return a batch column with its statistics for display. Tensors on a GPU have none, to avoid a copy."""
    hue = _COLUMN_HUES.get(path.split("/")[0], "extra")
    if batch_leaves.torch_of(leaf) is None:
        array = np.atleast_1d(leaf)
        return Series(path, hue, array, len(array), None, 1, array.nbytes)
    shape, nbytes = tuple(leaf.shape) or (1,), leaf.numel() * leaf.element_size()
    if leaf.device.type == "cpu" and not leaf.is_sparse:
        array = batch_leaves.as_numpy(leaf.float() if str(leaf.dtype).endswith("bfloat16") else leaf)
        return Series(path, hue, array.reshape(shape), shape[0], None, 1, nbytes, f"tensor on {leaf.device}")
    empty = np.empty((0, *shape[1:]), batch_leaves.numpy_dtype(leaf))
    return Series(path, hue, empty, shape[0], None, 1, nbytes, f"tensor on {leaf.device}, whose numbers are not read")


def replay_card(buffer: EpisodeReplayBuffer, name: object = "") -> Card:
    """Return the notebook card of an `EpisodeReplayBuffer`: fill level, returns of the stored episodes, and a histogram
    of each column.
    """
    rows: Sequence[Row] = ()
    notes: list[str] = []
    stored: dict[str, str] = {}
    chart = charts.filled(len(buffer), buffer.capacity)
    if len(buffer):
        first = buffer.num_added - len(buffer)
        rows, notes = rows_of(_stored_steps(buffer), None, where=lambda _, index: f"added step {first + index:,}")
        returns, stored = _stored_returns(buffer)
        chart += returns
    ratio = f", {formatting.number(buffer.num_sampled / max(buffer.num_added, 1))} for each added step"
    return Card(
        type(buffer).__name__,
        formatting.clipped(name),
        [
            formatting.counted(buffer.num_episodes, "episode"),
            formatting.size(buffer.nbytes),
        ],
        facts=known(
            ever_added=formatting.counted(buffer.num_added, "step"),
            ever_sampled=formatting.counted(buffer.num_sampled, "step") + (ratio if buffer.num_added else ""),
            **stored,
            alpha=getattr(buffer, "alpha", None),
            beta=getattr(buffer, "beta", None),
        ),
        caption=HISTOGRAMS,
        rows=rows,
        chart=chart,
        notes=notes,
    )


def _stored_returns(buffer: EpisodeReplayBuffer) -> tuple[Markup, dict[str, str]]:
    """Return a chart of the stored episodes from the oldest to the newest (the sums of their stored rewards, and their
    endings), and facts about the oldest stored step and the best and the worst stored episode.

    The chart, the best and the worst are left out for a buffer that is too large to be read in full.
    """
    ring = buffer.flush_ring()
    oldest = ring.tail % buffer.capacity
    t, id_ = int(ring.links.t[oldest]), _short_id(ring.table.id_of(int(ring.links.entry[oldest])))
    words = f"added {formatting.counted(len(ring), 'step')} ago, t={t} of episode {id_}"
    facts = {"oldest_stored_step": words + (", whose earlier steps are not stored" if t else "")}
    if len(ring) > MOST_STORED_NUMBERS:
        return Markup(""), facts
    slots = (ring.tail + np.arange(len(ring))) % buffer.capacity
    entries, firsts, owners = np.unique(ring.links.entry[slots], return_index=True, return_inverse=True)
    with np.errstate(invalid="ignore", over="ignore"):
        sums = np.bincount(owners, np.asarray(ring.columns["rewards"](slots), np.float64))
    order = np.argsort(firsts)
    last = ring.table.last.take(entries[order])
    flags = (np.asarray(ring.columns[key](last), bool) for key in ("terminateds", "truncateds"))
    for place, word in best_and_worst(sums[order]).items():
        id_ = _short_id(ring.table.id_of(int(entries[order][place])))
        facts[f"{word}_stored_episode"] = f"{id_}, return {formatting.number(sums[order][place])}"
    return charts.returns(sums[order], *flags, noun="stored episode") or Markup(""), facts


def _short_id(id_: str) -> str:
    """Return an id for a fact, of 32 random digits the first 8."""
    return formatting.without_random_digits(formatting.clipped(id_, MOST_OF_ID))


def _stored_steps(buffer: EpisodeReplayBuffer) -> list[Series]:
    """Return columns of a replay buffer's steps for display: all steps, or evenly spaced ones of a large buffer."""
    ring, total = buffer.flush_ring(), len(buffer)

    def column(key: str, places: np.ndarray) -> dict[str, np.ndarray]:
        """Return the arrays of one column of the steps at `places`, by path. A ragged array is represented by its
        lengths.
        """
        slots = (ring.tail + places) % buffer.capacity
        items = ring.observations.take(ring.links.row[slots]) if key == "obs" else ring.columns[key](slots)
        columns = nested.flatten({key: items})
        return {path: leaf.lengths if type(leaf) is Ragged else leaf for path, leaf in columns.items()}

    series = []
    for key in ("obs", "actions", "rewards", "terminateds", "truncateds"):
        numbers = sum(leaf.size for leaf in column(key, np.zeros(1, np.int64)).values())
        is_whole = numbers * total <= MOST_STORED_NUMBERS
        places = np.arange(total) if is_whole else np.unique(np.linspace(0, total - 1, MOST_STEPS).astype(np.int64))
        for path, leaf in column(key, places).items():
            nbytes = leaf.nbytes * total // len(places)
            series.append(Series(path, _COLUMN_HUES[key], leaf, total, None if is_whole else places, 1, nbytes))
    return [*series, *_priorities(buffer)]


def _priorities(buffer: EpisodeReplayBuffer) -> Iterator[Series]:
    """Yield the priorities by which a prioritized buffer samples its steps, for display."""
    read = getattr(buffer, "priorities", None)
    if read is None or len(buffer) > MOST_STORED_NUMBERS:
        return
    ring = buffer.flush_ring()
    slots = (ring.tail + np.arange(len(ring))) % buffer.capacity
    shares = read(ring.slot_numbers(slots))
    yield Series("priority", "extra", shares, len(shares), None, 1, shares.nbytes, "to the power of alpha")


def multi_agent_replay_card(buffer: MultiAgentEpisodeReplayBuffer) -> Card:
    """Return the notebook card of a multi-agent replay buffer: fill level, and a card for each module."""
    modules = list(buffer.modules.items())
    return Card(
        type(buffer).__name__,
        "",
        [formatting.counted(len(modules), "module"), formatting.size(buffer.nbytes)],
        chart=charts.filled(len(buffer), buffer.capacity, "env step"),
        parts=[replay_card(part, module_id) for module_id, part in modules[:MOST_MODULES]],
    )

"""Matplotlib plots of episodes and of their returns. Each function plots into `ax` and returns it.

matplotlib (extra `plot`) is imported when something is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.errors import InvalidArgument, WrongType, needing, rejected_type
from episodes.inspect.colours import DEFECT, ENDINGS, colour
from episodes.inspect.downsampling import downsample, stacked_items
from episodes.inspect.formatting import clipped, counted, ending_word, number, shortened
from episodes.inspect.series import Series, of_track, of_tracks
from episodes.multi_agent import MultiAgentEpisode
from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike

    from episodes.multi_agent.timeline import Timeline
    from episodes.storage.dataset import EpisodeDataset
    from episodes.storage.games import GameDataset

__all__ = ["plot_episode", "plot_episodes", "plot_returns"]

DARK, GREY = "#374151", "#9ca3af"
MOST_LANES = 12
ROWS_OF_BAND = 24  # of a band whose cells have several items
MOST_FRAMES = 9
MOST_CELLS = 2000  # of a line; a cell is the lowest and the highest of its items
MARKS = {"terminated": "s", "truncated": "|", "cut": ">"}
COMPARED = ("#2563eb", "#d97706", "#16a34a", "#9333ea", "#dc2626", "#0891b2", "#db2777", "#65a30d")


def new_axes(ax: Axes | None, width: float, height: float) -> Axes:
    """Return `ax` if given, else the axes of a new figure of `width` x `height` inches."""
    if ax is not None:
        return ax
    with needing("plot", "a plot needs matplotlib"):
        from matplotlib import pyplot
    return pyplot.subplots(figsize=(width, height), layout="constrained")[1]


def styled(ax: Axes, title: str, x: str, y: str = "") -> Axes:
    """Set the title, labels and grid of the axes in the common style, and return the axes."""
    ax.set_title(title, fontsize=10, loc="left", color=DARK)
    ax.set_xlabel(x, fontsize=9, color=DARK)
    ax.set_ylabel(y, fontsize=9, color=DARK)
    ax.grid(axis="x", color="#eeeeee", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color("#cccccc")
    ax.tick_params(labelsize=8, colors=DARK, length=2)
    return ax


def _check_single_agent(episode: object) -> None:
    """Raise `WrongType` unless `episode` is a `SingleAgentEpisode`."""
    if not isinstance(episode, SingleAgentEpisode):
        kind = rejected_type(episode, SingleAgentEpisode)
        raise WrongType(f"{kind}: give a SingleAgentEpisode; plot_episode takes multi-agent ones too")


# --- one episode ------------------------------------------------------------------------------------------------------


def plot_episode(
    episode: SingleAgentEpisode | MultiAgentEpisode,
    ax: Axes | None = None,
    *,
    title: str | None = None,
    tracks: Sequence[str] | None = None,
) -> Axes:
    """Plot the rewards, actions, observations and ending of an episode over its env steps, and return the axes.

    Of a `SingleAgentEpisode`, the numbers of its tracks are drawn below each other, each on its own scale. Of a
    `MultiAgentEpisode`, each agent has a row with its observations and actions, its pending action and its ending.
    The lookback is shaded, a ring marks the reset observation, and a line in the colour of the ending marks the last
    observation. Images are strips of frames. A line through more than 2,000 items shows the lowest and the highest of
    each group of neighbouring items.

    Args:
        ax: axes to plot into. None for new ones.
        title: title of the plot. None for one made of the episode's id and return.
        tracks: the paths to draw, such as `["rewards", "observations/speed"]`. By default the rewards, the actions and
            then the other tracks but infos, at most 12 lines; a note below the title counts the lines left out.

    Raises:
        MissingExtra: matplotlib is not installed.
        WrongType: `episode` is no episode.
        InvalidArgument: the episode has no such track.
    """
    if isinstance(episode, MultiAgentEpisode):
        return _plot_agents(episode, ax, title)
    _check_single_agent(episode)
    lanes, num_left = _lanes(episode, tracks)
    ax = new_axes(ax, 8, 0.8 + 0.42 * max(len(lanes), 1))
    begin, lookback = episode.t_started, episode.tracks.lookback
    span = max(episode.tracks.observations.total - 1, 1)
    for i, (_, series, column) in enumerate(lanes):
        if column is None:
            _draw_frames(ax, series, len(lanes) - 1 - i, begin - lookback, span, len(lanes))
        else:
            _draw_lane(ax, series, column, len(lanes) - 1 - i, begin - lookback)
    ax.set_yticks(range(len(lanes) - 1, -1, -1), [clipped(label, 24) for label, _, _ in lanes])
    ax.set_ylim(-0.6, max(len(lanes), 1) - 0.4)
    if lookback:
        ax.axvspan(begin - lookback, begin, color="#888888", alpha=0.12, linewidth=0)
    top = max(len(lanes), 1) - 0.4
    if begin - lookback <= 0 and episode.tracks.observations.total:
        ax.plot([0], [top], "o", color=colour("observations"), fillstyle="none", clip_on=False, markersize=6)
    ending = ending_word(episode.ending)
    ax.axvline(begin + len(episode), color=ENDINGS[ending], linewidth=1.4, linestyle="-" if ending != "cut" else ":")
    ax.set_xlim(begin - lookback - 0.04 * span, begin - lookback + 1.04 * span)
    text = f"{shortened(episode.id_)}: {counted(len(episode), 'step')}, return {number(episode.get_return())}, {ending}"
    left = f"\n{num_left} more lines: tracks=[...] selects" if num_left else ""
    return styled(ax, (text if title is None else title) + left, "env step")


def _lanes(
    episode: SingleAgentEpisode, paths: Sequence[str] | None
) -> tuple[list[tuple[str, Series, int | None]], int]:
    """Return the curves to plot as (label, series, component or None for images), and how many are left out.

    Args:
        paths: paths of the time series. None for all but infos, of which only the most varied are plotted.

    Raises:
        InvalidArgument: there is no time series with such a path.
    """
    every = [series for series in of_tracks(episode.tracks) if series.hue != "infos" or paths is not None]
    if paths is not None:
        by_path = {series.label: series for series in every}
        for path in paths:
            if path not in by_path:
                raise InvalidArgument(f"tracks: no track {path!r}; the episode has {', '.join(by_path)}")
        every = [by_path[path] for path in paths]
    lanes: list[tuple[str, Series, int | None]] = []
    for series in every:
        names = series.part_names if series.is_numeric and not series.is_image else []
        if series.is_image:
            lanes.append((series.label, series, None))
        else:
            lanes += [(f"{series.label}{name}", series, k) for k, name in enumerate(names)]
    if paths is not None:
        return lanes, 0
    by_component = sorted(range(len(lanes)), key=lambda i: lanes[i][2] or 0)  # first components of all series first
    return [lanes[i] for i in sorted(by_component[:MOST_LANES])], max(len(lanes) - MOST_LANES, 0)


def _draw_lane(ax: Axes, series: Series, column: int, level: int, begin: int) -> None:
    """Draw one component of a time series at the height `level`, as a line or a band of colours."""
    low, _, high = (float(value) for value in series.ranges[:, column])
    cells = series.cells(MOST_CELLS, [column])
    if series.is_band:
        edges = np.append(series.items[cells.starts()], series.items[-1] + 1) + begin - 0.5 * series.more
        rows = stacked_items(series.finite[:, column], cells.every, 1 if cells.is_exact else ROWS_OF_BAND)[::-1]
        shades = (rows - low) / max(high - low, 1)
        levels = np.linspace(level - 0.25, level + 0.25, len(rows) + 1)
        image = ax.pcolormesh(edges, levels, 0.2 + 0.8 * shades, vmin=0, vmax=1)
        image.set_cmap(_ramp(series.hue))
    else:
        at, numbers = cells.line(0)
        with np.errstate(over="ignore", invalid="ignore"):
            heights = (numbers - low) / (high - low) if high > low else np.where(np.isnan(numbers), np.nan, 0.5)
        xs = series.items[at] + begin + (0.0 if series.more else 0.5)
        ax.plot(
            xs, level - 0.4 + 0.8 * heights, color=colour(series.hue), linewidth=1, marker="." if len(xs) < 3 else ""
        )
        unusual = (cells.num_nan + cells.num_above + cells.num_below)[:, 0] > 0
        xs = series.items[cells.starts()[unusual]] + begin + (0.0 if series.more else 0.5)
        ax.plot(xs, np.full(len(xs), level - 0.4), "|", color=DEFECT, markersize=4, label="_not finite")
    span = number(low) if not low < high else f"{number(low)} … {number(high)}"
    ax.annotate(
        span, (1, level), (4, 0), ("axes fraction", "data"), "offset points", fontsize=7, color=GREY, va="center"
    )


def _ramp(hue: str) -> Any:
    """Return a colormap from white to the colour of a kind of track."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list(hue, ["#ffffff", colour(hue)])


def _draw_frames(ax: Axes, series: Series, level: int, begin: int, span: int, num_lanes: int) -> None:
    """Draw up to nine images of a series, spread evenly over time, within the row at the height `level`.

    Args:
        begin: env step of the series' first item.
        span: number of env steps of the plot.
        num_lanes: number of rows of the plot.
    """
    from episodes.inspect.frames import viewable

    box = ax.get_window_extent()
    tall, wide = viewable(series.at(np.zeros(1, np.intp))).shape[1:3]
    width = 0.8 * box.height / (num_lanes + 0.2) * wide / tall * span / max(box.width, 1)  # in env steps
    count = min(MOST_FRAMES, series.total, max(int(span / (1.1 * width)), 1))
    places = np.unique(np.linspace(0, series.total - 1, count).astype(np.intp))
    width = min(width, span / max(len(places), 1))
    for place, image in zip(places, viewable(series.at(places)), strict=True):
        shown = image[..., 0] if image.shape[-1] == 1 else image
        middle = begin + min(max(int(place), width / 2), span - width / 2)  # the first and the last one are inside too
        sides = (middle - width / 2, middle + width / 2, level - 0.4, level + 0.4)
        ax.imshow(shown, extent=sides, aspect="auto", cmap="gray", vmin=0, vmax=255, interpolation="nearest")


# --- many episodes ----------------------------------------------------------------------------------------------------


def plot_returns(
    episodes: EpisodePack | EpisodeDataset | GameDataset | Iterable[SingleAgentEpisode | MultiAgentEpisode],
    ax: Axes | None = None,
    *,
    window: int = 50,
    goal: float | None = None,
    title: str = "returns",
) -> Axes:
    """Plot the return of each episode at the step of its end, with running means and marks at best and worst.

    Args:
        episodes: a pack, a data set, or an iterable of episodes. Cut chunks are left out.
        ax: axes to plot into. None for new ones.
        window: number of episodes of the running mean.
        goal: a return that is drawn as a line.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    ids, returns, lengths, has_ended = _facts_of(episodes)
    ids = [shortened(id_) for id_, is_whole in zip(ids, has_ended, strict=True) if is_whole]
    steps = np.cumsum(lengths)[has_ended]
    return draw_returns(returns[has_ended], steps, ax, window=window, goal=goal, title=title, ids=ids)


def _facts_of(
    episodes: EpisodePack | EpisodeDataset | GameDataset | Iterable[SingleAgentEpisode | MultiAgentEpisode],
) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
    """Return ids, returns and lengths of a pack, a data set or other episodes, and whether each has ended."""
    if isinstance(episodes, EpisodePack):
        return episodes.ids, episodes.returns(), episodes.lengths, episodes.terminated | episodes.truncated
    table = getattr(episodes, "metadata", None)
    if table is not None:
        return table["id"], table["return"], table["length"], table["terminated"] | table["truncated"]
    episodes = list(episodes)
    returns = np.array([episode.get_return() for episode in episodes], np.float64)
    lengths = np.array([len(episode) for episode in episodes], np.int64)
    has_ended = np.array([episode.is_done for episode in episodes], bool)
    return [episode.id_ for episode in episodes], returns, lengths, has_ended


def draw_returns(
    returns: ArrayLike,
    steps: ArrayLike,
    ax: Axes | None = None,
    *,
    window: int = 50,
    goal: float | None = None,
    title: str = "returns",
    ids: Sequence[str] = (),
) -> Axes:
    """Plot the returns [n] of episodes at `steps` [n], the total number of env steps when each ended.

    Args:
        ax: axes to plot into. None for new ones.
        window: number of episodes of the running mean.
        goal: a return that is drawn as a line.
        ids: ids of the episodes, for the labels of the best and the worst.

    Raises:
        InvalidArgument: `window` is less than 1.
    """
    if window < 1:
        raise InvalidArgument(f"window={window}: give a number of episodes of at least 1")
    returns, steps = np.asarray(returns, np.float64), np.asarray(steps)
    ax = new_axes(ax, 8, 3.2)
    ax.scatter(steps, returns, s=10, color="#a9c4e4", linewidths=0, label="episode")
    if len(returns):
        ax.plot(
            steps, running_mean(returns, window), color=colour("observations"), linewidth=2, label=f"mean of {window}"
        )
    finite = np.flatnonzero(np.isfinite(returns))
    if len(finite):
        best, worst = (int(finite[pick(returns[finite])]) for pick in (np.argmax, np.argmin))
        for i, word, place in ((best, "best", 5), (worst, "worst", -11)):
            ax.plot([steps[i]], [returns[i]], "o", color=DARK, fillstyle="none", markersize=6)
            text = f"{word} {number(returns[i])}{f' ({ids[i]})' if ids else ''}"
            side = "right" if steps[i] > steps[-1] / 2 else "left"
            ax.annotate(
                text, (steps[i], returns[i]), (0, place), textcoords="offset points", fontsize=7, color=DARK, ha=side
            )
    if goal is not None:
        ax.axhline(goal, color=colour("rewards"), linewidth=1.2, linestyle=(0, (4, 3)), label=f"goal {number(goal)}")
    ax.legend(frameon=False, fontsize=8, loc="lower right", labelcolor=DARK)
    ax.margins(y=0.12)
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    ax.xaxis.set_major_formatter("{x:,.0f}")
    return styled(ax, title, "env steps", "return")


def running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Return the mean of the last `window` values at each index, [n]. NaN and infinities are ignored.

    >>> running_mean(np.array([1.0, 3.0, 5.0, 7.0]), 2).tolist()
    [1.0, 2.0, 4.0, 6.0]
    >>> running_mean(np.array([1.0, np.nan, 5.0, 7.0]), 2).tolist()
    [1.0, 1.0, 5.0, 6.0]
    """
    is_finite = np.isfinite(values)
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(ends - window, 0)
    with np.errstate(over="ignore", invalid="ignore"):
        sums, counts = (
            np.concatenate([[0.0], np.cumsum(numbers, dtype=np.float64)])
            for numbers in (np.where(is_finite, values, 0), is_finite)
        )
        return (sums[ends] - sums[begins]) / (counts[ends] - counts[begins])


def plot_episodes(episodes: Sequence[Any], ax: Axes | None = None, *, track: str = "rewards", index: int = 0) -> Axes:
    """Plot one number per step of several episodes in one figure, by default the cumulated rewards.

    Args:
        track: "rewards", or the path of a track such as `observations` or `vf_preds`.
        index: which number of an item.

    Raises:
        MissingExtra: matplotlib is not installed.
        InvalidArgument: an episode has no such track, or its items have no such number.
        WrongType: an episode is no `SingleAgentEpisode`.
    """
    ax = new_axes(ax, 8, 3.2)
    for i, episode in enumerate(episodes):
        _check_single_agent(episode)
        shade = COMPARED[i % len(COMPARED)]
        items, numbers = _numbers(episode, track, index)
        ending = ending_word(episode.ending)
        ax.plot(items, numbers, color=shade, linewidth=1.2, label=f"{shortened(episode.id_)}, {ending}")
        ax.plot(items[-1:], numbers[-1:], MARKS[ending], color=shade, markersize=6)
    if len(episodes):
        ax.legend(frameon=False, fontsize=8, labelcolor=DARK)
    label = "rewards so far" if track == "rewards" else f"{track}[{index}]"
    return styled(ax, f"{len(episodes)} episodes", "env step", label)


def _numbers(episode: SingleAgentEpisode, track: str, index: int) -> tuple[np.ndarray, np.ndarray]:
    """Return env steps [n] and values [n] of component `index` of a time series, without the lookback.

    Rewards are summed up from the start. Long series are downsampled.

    Raises:
        InvalidArgument: there is no such numeric time series or component.
    """
    tracks = episode.tracks
    by_path = {series.label: series for one in tracks.all() for series in of_track(one) if one.field.holds != "infos"}
    series = by_path.get(track)
    if series is not None and not series.total:
        return np.empty(0), np.empty(0)
    if series is None or not series.is_numeric or not 0 <= index < series.sampled_values.shape[1]:
        raise InvalidArgument(f"episode {episode.id_}: no numbers {track!r}[{index}]; there are {', '.join(by_path)}")
    if track == "rewards":
        with np.errstate(over="ignore", invalid="ignore"):
            values = np.nancumsum(np.asarray(episode.get_rewards(), np.float64))
        items = np.arange(1, len(values) + 1)
    else:
        items = series.items - tracks.lookback
        values, items = series.finite[items >= 0, index], items[items >= 0]
    at, numbers = downsample(values[:, None], MOST_CELLS).line(0)
    return items[at] + episode.t_started, numbers


# --- several agents ---------------------------------------------------------------------------------------------------


def _plot_agents(episode: MultiAgentEpisode, ax: Axes | None, title: str | None) -> Axes:
    """Plot a timeline for each agent of a multi-agent episode, stacked vertically, and return the axes."""
    timelines = list(episode.agents.timelines.items())
    ax = new_axes(ax, 8, 0.9 + 0.36 * max(len(timelines), 1))
    begin, end = episode.env_t_started, episode.env_t
    levels = range(len(timelines) - 1, -1, -1)
    for level, (_, timeline) in zip(levels, timelines, strict=True):
        _draw_agent(ax, timeline, level, end, level == len(timelines) - 1)
    ax.set_yticks(levels, [clipped(agent, 24) for agent, _ in timelines])
    ax.set_ylim(-1.1, max(len(timelines), 1) - 0.3)  # with room for the legend
    if episode.lookback:
        ax.axvspan(begin - episode.lookback, begin, color="#888888", alpha=0.12, linewidth=0)
    if timelines:
        ax.legend(frameon=False, fontsize=8, ncols=2, loc="lower right", borderpad=0)
    counts = f"{counted(len(episode), 'env step')}, {counted(len(timelines), 'agent')}"
    text = f"{shortened(episode.id_)}: {counts}, {ending_word(episode.ending)}"
    return styled(ax, text if title is None else title, "env step")


def _draw_agent(ax: Axes, line: Timeline, level: int, now: int, is_first: bool) -> None:
    """Draw the timeline of one agent: markers at its observations and actions, a pending action, and how it ended.

    Args:
        line: timeline of the agent.
        level: y coordinate.
        now: the episode's newest env step.
        is_first: whether this agent's markers get labels for the legend.
    """
    observed, acted = np.asarray(line.observation_times), np.asarray(line.action_times)
    above, below = level + 0.1, level - 0.14
    hues = {name: colour(name) for name in ("observations", "actions", "rewards")}
    labels = ("observes", "acts") if is_first else ("_", "_")
    ax.hlines(level, observed.min(initial=now), observed.max(initial=0), color="#d1d5db", linewidth=1, zorder=1)
    ax.plot(observed, np.full(len(observed), above), "o", color=hues["observations"], markersize=3, label=labels[0])
    ax.plot(acted, np.full(len(acted), below), "|", color=hues["actions"], markersize=7, label=labels[1])
    if line.phase == "waits":
        ax.hlines(below, acted[-1], now, color=hues["rewards"], linestyle=":", linewidth=1.6, label="_")
        style = {"textcoords": "offset points", "fontsize": 7, "color": hues["rewards"], "va": "center"}
        ax.annotate("pending", (now, below), (4, 0), **style)
    if line.episode.ending.is_done:
        stops = ending_word(line.episode.ending)
        ax.plot(observed[-1:], [above], "s", color=ENDINGS[stops], markersize=6, zorder=3)

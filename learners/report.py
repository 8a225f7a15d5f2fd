"""What is left after a run: a table of episodes, a picture, and the episodes in a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.errors import MissingExtra
from episodes.nested import leaves
from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_run", "episode_table", "save_episodes"]

_BLUE, _ORANGE, _GREY, _LIGHT = "#2a6fbb", "#e07b39", "#555555", "#b8cfe8"
_LINES = (_BLUE, _ORANGE, "#3a9d76", "#a65fa3", "#8a6d3b", "#5ab4c5", "#c94f5b", "#7a7a7a")


def episode_table(episodes: Sequence[SingleAgentEpisode]) -> str:
    """A line of text for each episode: id, length, return, ending.

    >>> print(episode_table([SingleAgentEpisode.from_arrays([0, 1, 2], [0, 0], [1.0, 0.5], id_="a", terminated=True)]))
    episode  length      return  ending
    a             2         1.5  terminated
    """
    width = max([len(episode.id_) for episode in episodes] + [len("episode")])
    rows = [f"{'episode':<{width}}  {'length':>6}  {'return':>10}  ending"]
    rows += [
        f"{episode.id_:<{width}}  {len(episode):>6}  {episode.get_return():>10.6g}  {ending_of(episode)}"
        for episode in episodes
    ]
    return "\n".join(rows)


def ending_of(episode: SingleAgentEpisode) -> str:
    """How an episode stops, in one word."""
    return "terminated" if episode.is_terminated else "truncated" if episode.is_truncated else "cut"


def save_episodes(path: Path, episodes: Sequence[SingleAgentEpisode]) -> None:
    """Write the episodes' tracks, one array each, and what says where an episode begins, as a compressed .npz file.

    Episode i has the rows `offsets[i]` to `offsets[i + 1]` of step tracks, and `offsets[i] + i` to
    `offsets[i + 1] + i + 1` of observations. Infos stay out. No pickle is in the file.
    """
    pack = EpisodePack.from_episodes(episodes)
    names = ("offsets", "lengths", "lookbacks", "ids", "t_started", "terminated", "truncated")
    columns = {name: getattr(pack, name) for name in names}
    columns["ids"] = columns["ids"].astype(np.str_)
    np.savez_compressed(path, allow_pickle=False, **columns, **pack.tracks)


def draw_run(
    returns: Sequence[float],
    lengths: Sequence[int],
    episode: SingleAgentEpisode,
    *,
    title: str,
    goal: float | None = None,
    window: int = 50,
) -> Figure:
    """The returns of all whole episodes with their running mean, beside one episode's observations and actions.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("draw_run needs matplotlib; install the extra: pip install 'rl-episodes[plot]'") from error
    figure = Figure(figsize=(12, 4.8), dpi=120, layout="constrained")
    figure.suptitle(title, fontsize=12, fontweight="bold", color=_GREY)
    axes = figure.subplot_mosaic([["returns", "observations"], ["returns", "actions"]], height_ratios=[4, 1])
    _draw_returns(axes["returns"], np.asarray(returns), np.cumsum(lengths), goal, window)
    _draw_observations(axes["observations"], episode)
    _draw_actions(axes["actions"], episode)
    axes["observations"].sharex(axes["actions"])
    axes["observations"].tick_params(labelbottom=False)
    return figure


def _draw_returns(axes: Axes, returns: np.ndarray, steps: np.ndarray, goal: float | None, window: int) -> None:
    """Returns [n] at the number of steps [n] after which each episode ended."""
    axes.scatter(steps, returns, s=10, color=_LIGHT, linewidths=0, label="episode")
    axes.plot(steps, running_mean(returns, window), color=_BLUE, linewidth=2, label=f"mean of the last {window}")
    if goal is not None:
        axes.axhline(goal, color=_ORANGE, linewidth=1.2, linestyle=(0, (4, 3)), label=f"goal: {goal:g}")
    _label(axes, "returns of whole episodes", "environment steps")
    axes.legend(frameon=False, fontsize=9, loc="best")


def _draw_observations(axes: Axes, episode: SingleAgentEpisode) -> None:
    rows = _flat_rows(episode.get_observations())
    for k in range(min(rows.shape[1], len(_LINES))):
        axes.plot(rows[:, k], color=_LINES[k], linewidth=1.2, label=f"obs[{k}]")
    more = f", the first {len(_LINES)} of {rows.shape[1]} numbers" if rows.shape[1] > len(_LINES) else ""
    words = f"{len(episode)} steps, return {episode.get_return():g}, {ending_of(episode)}"
    _label(axes, f"the best of the last episodes: {words}{more}", None)
    axes.legend(frameon=False, fontsize=9, ncols=4, loc="best")


def _draw_actions(axes: Axes, episode: SingleAgentEpisode) -> None:
    rows = _flat_rows(episode.get_actions())
    for k in range(min(rows.shape[1], len(_LINES))):
        axes.step(np.arange(len(rows)), rows[:, k], where="post", color=_LINES[k], linewidth=0.8)
    _label(axes, None, "step")
    axes.set_ylabel("actions", fontsize=9, color=_GREY)
    axes.margins(x=0.01, y=0.25)


def _label(axes: Axes, title: str | None, x_label: str | None) -> None:
    if title is not None:
        axes.set_title(title, fontsize=10, loc="left", color=_GREY)
    if x_label is not None:
        axes.set_xlabel(x_label, fontsize=9, color=_GREY)
    axes.grid(color="#eeeeee", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#cccccc")
    axes.tick_params(labelsize=9, colors=_GREY)


def _flat_rows(nested: Any) -> np.ndarray:
    """Nested arrays [n, ...] as rows [n, k] of numbers."""
    return np.concatenate([np.reshape(leaf, (len(leaf), -1)) for leaf in leaves(nested)], axis=1).astype(np.float64)


def running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Means [n] of the last `window` of the values [n] up to each; of fewer at the beginning.

    >>> running_mean(np.array([1.0, 3.0, 5.0, 7.0]), 2).tolist()
    [1.0, 2.0, 4.0, 6.0]
    """
    sums = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(ends - window, 0)
    return (sums[ends] - sums[begins]) / (ends - begins)

"""What is left to look at after a run: a table of episodes and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from episodes.errors import MissingExtra
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks.nested import leaves

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_run", "episode_table"]

_BLUE, _ORANGE, _DARK, _LIGHT = "#2a6fbb", "#e07b39", "#444444", "#a9c4e4"
_MOST_PANELS = 6  # of observed numbers


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
    observed = _flat_rows(episode.get_observations())
    panels = [f"obs[{k}]" for k in range(min(observed.shape[1], _MOST_PANELS))]
    figure = Figure(figsize=(12, 5), dpi=120, layout="constrained")
    figure.suptitle(title, fontsize=12, fontweight="bold", color=_DARK)
    rows: Any = [["returns", panel] for panel in [*panels, "actions"]]
    axes = figure.subplot_mosaic(rows, height_ratios=[3.0] * len(panels) + [1.5])
    _draw_returns(axes["returns"], np.asarray(returns), np.cumsum(lengths), goal, window)
    for k, panel in enumerate(panels):
        _draw_numbers(axes[panel], observed[:, k], panel)
        axes[panel].sharex(axes["actions"])
    _draw_actions(axes["actions"], _flat_rows(episode.get_actions()))
    more = f", {len(panels)} of {observed.shape[1]} observed numbers" if observed.shape[1] > len(panels) else ""
    words = f"{len(episode)} steps, return {episode.get_return():g}, {ending_of(episode)}{more}"
    figure.align_ylabels([axes[panel] for panel in [*panels, "actions"]])
    _title(axes[panels[0]], f"the best of the last episodes: {words}")
    return figure


def _draw_returns(axes: Axes, returns: np.ndarray, steps: np.ndarray, goal: float | None, window: int) -> None:
    """Returns [n] at the number of steps [n] after which each episode ended."""
    axes.scatter(steps, returns, s=10, color=_LIGHT, linewidths=0, label="episode")
    axes.plot(steps, running_mean(returns, window), color=_BLUE, linewidth=2, label=f"mean of the last {window}")
    if goal is not None:
        axes.axhline(goal, color=_ORANGE, linewidth=1.2, linestyle=(0, (4, 3)), label=f"goal: {goal:g}")
    axes.set_xlabel("environment steps", fontsize=9, color=_DARK)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.legend(frameon=False, fontsize=9, loc="lower right", labelcolor=_DARK)
    _title(axes, "returns of whole episodes")
    _plain(axes)


def _draw_numbers(axes: Axes, numbers: np.ndarray, name: str) -> None:
    """Numbers [T + 1], one an observation."""
    axes.plot(numbers, color=_BLUE, linewidth=0.9)
    axes.set_ylabel(name, fontsize=9, color=_DARK, rotation=0, ha="right", va="center")
    axes.tick_params(labelbottom=False)
    _plain(axes)


def _draw_actions(axes: Axes, actions: np.ndarray) -> None:
    """Actions [T, k] as k strips of colour, a step wide each."""
    axes.imshow(
        actions.T, aspect="auto", interpolation="nearest", cmap="Blues", extent=(0, len(actions), actions.shape[1], 0)
    )
    axes.set_ylabel("actions", fontsize=9, color=_DARK, rotation=0, ha="right", va="center")
    axes.set_xlabel("step", fontsize=9, color=_DARK)
    axes.set_yticks([])
    _plain(axes)
    axes.grid(visible=False)


def _title(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=10, loc="left", color=_DARK)


def _plain(axes: Axes) -> None:
    axes.grid(color="#eeeeee", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#cccccc")
    axes.tick_params(labelsize=8, colors=_DARK, length=2)


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

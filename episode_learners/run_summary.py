"""Summary of a training run: a table of episodes, and a figure of returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from episodes.errors import needing
from episodes.inspect import plot_episode
from episodes.inspect.formatting import counted, ending_word
from episodes.inspect.plots import DARK, draw_returns
from episodes.single_agent import SingleAgentEpisode

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_run", "episode_table"]


def episode_table(episodes: Sequence[SingleAgentEpisode]) -> str:
    """Return a text table with the id, length, return and ending of each episode.

    >>> print(episode_table([SingleAgentEpisode.from_arrays([0, 1, 2], [0, 0], [1.0, 0.5], id_="a", terminated=True)]))
    episode  length      return  ending
    a             2         1.5  terminated
    """
    width = max([len(episode.id_) for episode in episodes] + [len("episode")])
    rows = [f"{'episode':<{width}}  {'length':>6}  {'return':>10}  ending"]
    rows += [
        f"{episode.id_:<{width}}  {len(episode):>6}  {episode.get_return():>10.6g}  {ending_word(episode.ending)}"
        for episode in episodes
    ]
    return "\n".join(rows)


def draw_run(
    returns: Sequence[float],
    lengths: Sequence[int],
    episode: SingleAgentEpisode,
    *,
    title: str,
    goal: float | None = None,
    window: int = 50,
) -> Figure:
    """Return a matplotlib figure of a training run: the returns of all complete episodes with their running mean, and
    the actions and rewards of one episode.

    Args:
        goal: a return that is drawn as a line.
        window: number of episodes of the running mean.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    with needing("plot", "draw_run needs matplotlib"):
        from matplotlib.figure import Figure
    figure = Figure(figsize=(12, 5), dpi=120, layout="constrained")
    figure.suptitle(title, fontsize=12, fontweight="bold", color=DARK)
    left, right = figure.subplots(1, 2)
    draw_returns(returns, np.cumsum(lengths), left, window=window, goal=goal, title="returns of whole episodes")
    words = f"{counted(len(episode), 'step')}, return {episode.get_return():g}, {ending_word(episode.ending)}"
    plot_episode(episode, right, title=f"the best of the last episodes: {words}")
    return figure

"""Looking at episodes: what notebooks show of them, plots, frames, pages, and a doctor.

Whatever is heavy (jinja2, matplotlib, imageio) is imported when something is drawn.
"""

from __future__ import annotations

from episodes.inspect.doctor import Finding, examine
from episodes.inspect.frames import frames, video
from episodes.inspect.lineage import Explanation, explain_batch
from episodes.inspect.plots import compare, plot_episode, plot_returns, plot_timeline, plot_trace

__all__ = [
    "plot_episode",
    "plot_returns",
    "plot_timeline",
    "plot_trace",
    "compare",
    "frames",
    "video",
    "examine",
    "Finding",
    "explain_batch",
    "Explanation",
]

"""Inspection of episodes: notebook views, plots, videos, HTML pages, comparison, and automatic problem checks.

Heavy packages (jinja2, matplotlib, imageio) are imported when something is drawn.
"""

from __future__ import annotations

from episodes.inspect.calibration import value_calibration
from episodes.inspect.comparison import compare_episodes
from episodes.inspect.conversation import view_conversation
from episodes.inspect.dataset_card import write_card
from episodes.inspect.doctor.examine import examine
from episodes.inspect.frames import frames, video
from episodes.inspect.lineage import explain_batch, link_batch
from episodes.inspect.plots import plot_episode, plot_episodes, plot_returns
from episodes.inspect.run_findings import examine_run
from episodes.inspect.update_explanation import explain_update

__all__ = [
    "plot_episode",
    "plot_returns",
    "plot_episodes",
    "compare_episodes",
    "frames",
    "video",
    "view_conversation",
    "write_card",
    "examine",
    "examine_run",
    "explain_batch",
    "link_batch",
    "explain_update",
    "value_calibration",
]

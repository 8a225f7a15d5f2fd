"""Inspection of episodes: notebook views, plots, videos, HTML pages, comparison, and automatic problem checks.

Heavy packages (jinja2, matplotlib, imageio) are imported when something is drawn.
"""

from __future__ import annotations

from episodes.inspect.comparison import EpisodeDifference, compare_episodes
from episodes.inspect.conversation import ConversationView, view_conversation
from episodes.inspect.doctor.examine import examine
from episodes.inspect.doctor.finding import Finding
from episodes.inspect.frames import frames, video
from episodes.inspect.lineage import BatchLinks, Explanation, explain_batch, link_batch
from episodes.inspect.plots import plot_episode, plot_episodes, plot_returns

__all__ = [
    "plot_episode",
    "plot_returns",
    "plot_episodes",
    "compare_episodes",
    "EpisodeDifference",
    "frames",
    "video",
    "view_conversation",
    "ConversationView",
    "examine",
    "Finding",
    "explain_batch",
    "Explanation",
    "link_batch",
    "BatchLinks",
]

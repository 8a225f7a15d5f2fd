"""Episodes and steps of a data set, found: tables of them, SQL over them, what was found, and statistics."""

from episodes.storage.search.episode_table import EpisodeTable
from episodes.storage.search.selection import Selection
from episodes.storage.search.statistics import TrackStatistics
from episodes.storage.search.step_table import StepTable

__all__ = ["EpisodeTable", "Selection", "StepTable", "TrackStatistics"]

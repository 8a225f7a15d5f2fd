"""Search in data sets: tables of episodes and steps, SQL, saved selections, splits and statistics."""

from episodes.storage.search.episode_table import EpisodeTable
from episodes.storage.search.selection import Selection
from episodes.storage.search.sql_columns import StepTable
from episodes.storage.search.statistics import TrackStatistics

__all__ = ["EpisodeTable", "Selection", "StepTable", "TrackStatistics"]

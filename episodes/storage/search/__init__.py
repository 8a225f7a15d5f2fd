"""Search in data sets: metadata tables, SQL queries, saved selections, train/test splits and statistics."""

from episodes.storage.search.episode_table import EpisodeTable
from episodes.storage.search.selection import Selection
from episodes.storage.search.sql_columns import StepTable
from episodes.storage.search.statistics import TrackStatistics

__all__ = ["EpisodeTable", "Selection", "StepTable", "TrackStatistics"]

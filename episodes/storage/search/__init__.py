"""Episodes and steps of a data set, found: tables of them, SQL over them, what was found, and statistics."""

from episodes.storage.search.episode_table import EpisodeTable
from episodes.storage.search.selection import Selection
from episodes.storage.search.sql_columns import StepTable
from episodes.storage.search.statistics import TrackStatistics

__all__ = ["EpisodeTable", "Selection", "StepTable", "TrackStatistics"]

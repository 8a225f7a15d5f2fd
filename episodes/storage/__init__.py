"""Episodes on disk: Arrow files that any number of processes may write, read as views of memory-mapped columns."""

from episodes.storage.dataset import EpisodeDataset
from episodes.storage.writer import EpisodeWriter

__all__ = ["EpisodeDataset", "EpisodeWriter"]

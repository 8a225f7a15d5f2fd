"""Episodes on disk: Arrow files that any number of processes may write, read as views of memory-mapped columns."""

from episodes.storage.added_tracks import add_track
from episodes.storage.checking import CheckReport, check
from episodes.storage.compacting import compact, merge, seal
from episodes.storage.copying import copy
from episodes.storage.dataset import EpisodeDataset
from episodes.storage.record_episodes import RecordEpisodes
from episodes.storage.remote import upload
from episodes.storage.writer import EpisodeWriter

__all__ = [
    "EpisodeDataset",
    "EpisodeWriter",
    "RecordEpisodes",
    "check",
    "CheckReport",
    "compact",
    "seal",
    "merge",
    "copy",
    "upload",
    "add_track",
]

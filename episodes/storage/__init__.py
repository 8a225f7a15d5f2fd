"""Episode data sets on disk: Arrow files that several processes may write at the same time,
read as memory-mapped arrays."""

from episodes.storage.added_tracks import add_track
from episodes.storage.checking import check
from episodes.storage.compacting import compact, merge, seal
from episodes.storage.copying import copy
from episodes.storage.dataset import EpisodeDataset
from episodes.storage.games import GameDataset
from episodes.storage.record_episodes import RecordEpisodes
from episodes.storage.remote.upload import upload
from episodes.storage.writer import EpisodeWriter

__all__ = [
    "EpisodeDataset",
    "GameDataset",
    "EpisodeWriter",
    "RecordEpisodes",
    "check",
    "compact",
    "seal",
    "merge",
    "copy",
    "upload",
    "add_track",
]
